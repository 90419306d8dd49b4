// A bump allocator over a workspace. Laid out twice by the same code: once over nothing, to learn the size, and once
// over the memory itself, so that size and use cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootdk::base {

inline constexpr std::size_t kAlignment = 64;  ///< of a workspace, at least
/// What is taken lies at multiples of this from the base: a GPU's bulk copies touch a line of 128 bytes more each where
/// they begin in the middle of one, and its allocators align to this.
inline constexpr std::size_t kGrain = 256;

class Arena {
 public:
  Arena() = default;  ///< measures only
  explicit Arena(std::byte* base) : base_(base) {}

  /// `count` objects, aligned as the base is, to 256 bytes at most; null while measuring.
  template <class T>
  T* take(std::int64_t count) {
    T* here = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    used_ += (bytes + kGrain - 1) / kGrain * kGrain;
    return here;
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace rootdk::base
