// CUDA's threads on one thread of the host: those of a block are fibers, which run until they meet a barrier or another
// lane of their warp. What a card would do in parallel happens in some order here, so it finds wrong sums, wrong places
// and barriers that not all threads reach, but no races.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace rootdk::test::fibers {

/// Runs a kernel's blocks one after another. `shared` bytes are what dynamic_shared() points to.
void launch(dim3 blocks, unsigned threads, std::size_t shared, const std::function<void()>& kernel);

void* dynamic_shared();

/// All threads of the block, which have not ended: whether `vote` was true for all of them.
bool meet_block(bool vote);

constexpr unsigned kLanes = 32, kMostBytes = 32;

/// All lanes of the warp that have not ended: what each brought, `size` bytes of it; those that have ended bring zeros.
const std::byte (*meet_warp(const void* mine, std::size_t size))[kMostBytes];

template <class T>
T of_lane(T mine, unsigned lane) {
  static_assert(sizeof(T) <= kMostBytes);
  T theirs;
  std::memcpy(&theirs, meet_warp(&mine, sizeof mine)[lane], sizeof theirs);
  return theirs;
}

}  // namespace rootdk::test::fibers
