// How the Hopper forward keeps what masks hide from what they show: Guard says why there is anything to do.
#pragma once

#include "cuda/hopper/clean.cuh"
#include "cuda/hopper/forward/scheduler.cuh"

namespace rootdk::cuda {

/// A block of values before it is multiplied: rows from `keys` on become zero, the others what the guard makes of them.
/// A warp's work.
template <class Tile>
__device__ __forceinline__ void clean_values(std::uint32_t v, int keys, const volatile Guard& guard, DType dtype) {
  if (guard != Guard::kNone) {
    change_pairs<Tile::kPanels, Tile::kKeys>(v, [&](int, unsigned& pair) {
      const unsigned bad = not_finite(pair, exponents(dtype));
      pair = guard == Guard::kZero ? pair & ~bad : bad & (dtype == DType::kBF16 ? 0x3f803f80u : 0x3c003c00u);
    });
    __syncwarp();
  }
  clear_rows<Tile::kPanels, Tile::kKeys>(v, keys);
}

/// A block's list of tiles to compute again. At an address that is known, so that nobody keeps it in a register.
struct alignas(16) AgainList {
  unsigned written;  ///< how often a warp has written its rows of a tile; a counter, since a barrier's parity would
                     ///< have to be looked at after every tile
  int first;         ///< −1 where there is none
};
template <class Tile>
__device__ __forceinline__ AgainList& again_list() {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  return *reinterpret_cast<AgainList*>(memory + Tile::kBytes - 16);
}

/// The first lane of a warp whose rows are written. What another thread is to see beyond that suspect() orders itself:
/// to wait for all stores of a tile takes time.
template <class Tile>
__device__ __forceinline__ void say_written() {
  asm volatile("red.relaxed.cta.shared::cta.add.u32 [%0], 1;" ::"r"(shared_address(&again_list<Tile>().written))
               : "memory");
}

/// The producer, in the end: so many tiles are written.
template <class Tile>
__device__ __forceinline__ void wait_written(int tiles) {
  for (unsigned written = 0; written != 4u * Tile::kGroups * tiles;)
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
                 : "=r"(written)
                 : "r"(shared_address(&again_list<Tile>().written))
                 : "memory");
}

/// The tile goes onto that list; a.again says what comes after each. The first lane's work.
template <class Tile>
__device__ __forceinline__ void suspect(const HopperArguments& a, Work& work) {
  if (atomicExch(&work.suspect, 1) == 0) a.again[work.index] = atomicExch(&again_list<Tile>().first, work.index);
  __threadfence_block();
}

/// The tile after `before`: the next of its run, or the first of another; in the end those that are suspect, a run at a
/// time, once for each guard.
template <class Tile>
__device__ __forceinline__ int next_index(const HopperArguments& a, const Work& before, Guard& guard) {
  const int run = a.run == 1 ? before.index : before.index / a.run;
  guard = before.guard;
  if (before.index >= 0) {
    const int next = before.index + 1;
    if (next % a.run != 0 && !(Tile::kPacked && next % a.padded_splits >= a.splits)) return next;
    if (guard == Guard::kNone)
      return (a.next_tile ? static_cast<int>(gridDim.x) + atomicAdd(a.next_tile, 1)
                          : run + static_cast<int>(gridDim.x)) *
             a.run;
  }
  if (guard == Guard::kZero) {
    guard = Guard::kMark;
    return run * a.run;
  }
  guard = Guard::kZero;
  const int tile = again_list<Tile>().first;
  if (tile < 0) return a.tiles;
  again_list<Tile>().first = a.again[tile];
  return tile / a.run * a.run;
}

}  // namespace rootdk::cuda
