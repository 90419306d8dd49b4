// Scratch for one call. Each thread keeps a small one for its next call: what a call of some microseconds needs would
// else cost as much as the call.
#pragma once

#include <cstddef>
#include <span>

namespace rootdk::torch_operators {

/// At least so many bytes, aligned as the engine wants them, of this thread, until its next call here.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;

  std::span<std::byte> span() const { return {memory_, bytes_}; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  bool own_ = false;
};

}  // namespace rootdk::torch_operators
