// What a call keeps in its workspace on the device, and how the problem's arrays get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/arena.h"
#include "base/call.h"
#include "cuda/common/view.h"

namespace rootdk::cuda {

/// The problem's arrays, packed on the host as they will lie in the workspace. They travel as kernel arguments, so that
/// the call neither waits nor keeps a pointer into the caller's memory, and a captured graph replays what was captured.
class Arrays {
 public:
  template <class T>
  struct Slot {
    std::size_t offset = 0;
    bool present = false;
  };

  template <class T>
  Slot<T> add(const T* values, std::size_t count) {
    if (count == 0) return {};
    const std::size_t offset = bytes_.size(), size = count * sizeof(T);
    bytes_.resize(offset + (size + 15) / 16 * 16);
    std::memcpy(bytes_.data() + offset, values, size);
    return {offset, true};
  }

  template <class T>
  static const T* at(const std::byte* base, const Slot<T>& slot) {
    return slot.present && base ? reinterpret_cast<const T*>(base + slot.offset) : nullptr;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// The problem with its arrays in the workspace. While measuring (an arena over nothing) only the sizes count.
struct Staged {
  ProblemView view;
  Arrays arrays;
  std::byte* base = nullptr;  ///< where the arrays go
};

Staged stage(const Plan& plan, std::int64_t page_size, base::Arena& arena);

/// Enqueues the copy.
void upload(const Staged& staged, void* stream);

}  // namespace rootdk::cuda
