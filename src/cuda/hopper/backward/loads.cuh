// What the Hopper backward loads (TMA): a task's keys and values, a step's rows; and how what is not finite, or behind
// a length, is cleaned on its way, so that nothing hidden reaches a product.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/hopper/backward/tasks.cuh"
#include "cuda/hopper/bulk.cuh"
#include "cuda/hopper/clean.cuh"

namespace rootdk::cuda::back {

/// Of a block, in shared memory, since producers have no registers to spare.
struct Cleaning {
  std::uint64_t raw;    ///< the barrier on which what is cleaned arrives
  std::uint32_t count;  ///< how often it has, modulo 2
  int guarded;          ///< what is not finite becomes zero, in all that is loaded
};
static_assert(sizeof(Cleaning) == 16);

/// Keys that an item has: what lies behind them may be anything.
__device__ __forceinline__ int keys_of(const ProblemView& p, int batch) {
  return base::end_of_keys<base::MaskParts::kUnpadded, int>(p, batch);
}

/// Trouble that is known when a launch of main starts, or a later kernel does.
__device__ __forceinline__ bool is_guarded(const BackwardArguments& a, bool keys_too) {
  const int trouble = a.trouble ? load_acquire(a.trouble) : kNoTrouble;
  return trouble == kSickRows || (keys_too && trouble == kSickKeys);
}

/// What is not finite becomes zero. A warp's work.
template <int kPanels, int kRows>
__device__ __forceinline__ void clean_rows(const BackwardArguments& a, std::uint32_t tile) {
  change_pairs<kPanels, kRows>(tile, [&](int, unsigned& pair) { pair &= ~not_finite(pair, exponents(a.f.q.dtype)); });
}

/// The same of keys; the rows of those that had any are noted.
template <int kPanels, int kRows>
__device__ __forceinline__ void clean_keys(const BackwardArguments& a, std::uint32_t tile, int* sick) {
  for (int row = thread_again() % 32; row < kRows; row += 32) sick[row] = 0;
  __syncwarp();
  change_pairs<kPanels, kRows>(tile, [&](int row, unsigned& pair) {
    const unsigned bad = not_finite(pair, exponents(a.f.k.dtype));
    if (bad) sick[row] = 1;
    pair &= ~bad;
  });
}

/// Rows that see no key become zero.
template <int kPanels, int kRows>
__device__ __forceinline__ void clear_idle(std::uint32_t tile, const int2* ranges) {
  change_pairs<kPanels, kRows>(tile, [&](int row, unsigned& pair) {
    const int2 range = ranges[row];
    if (range.x >= range.y) pair = 0;
  });
}

/// Both panels of a tile, or the one.
template <class Tile>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const CUtensorMap* map, int rows, int row, int head,
                                          int batch, std::uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel)
    copy_box(to + panel * rows * 128, map, panel * 64, row, head, batch, barrier);
}

template <class Tile>
__device__ __forceinline__ volatile Step& step_in(std::uint8_t* memory, unsigned step) {
  return *reinterpret_cast<volatile Step*>(memory + Tile::kSteps + kStepBytes * (step % Tile::kQueryStages));
}

/// A step's Q, LSE and masks, in a place that is free; they complete on `full`. One thread's work; `at` is a Step, or
/// what is kept of one in shared memory.
template <class Tile, class At>
__device__ __forceinline__ void load_queries(const BackwardArguments& a, std::uint32_t base, int batch, const At& at,
                                             unsigned step, std::uint32_t full) {
  constexpr int kRows = Tile::kRows;
  const unsigned stage = step % Tile::kQueryStages;
  const bool masked = at.special & kMasked;
  barrier_expect(full, Tile::kRowBytes + kRows * 4 + (masked ? kRows * 8 : 0));
  copy_rows<Tile>(base + Tile::kQ + stage * Tile::kRowBytes, &a.q, kRows, at.m * kRows, at.head, batch, full);
  copy_run(base + Tile::kLse + stage * kRows * 4, a.lse + std::int64_t{at.tile} * kRows, kRows * 4, full);
  if (masked)
    copy_run(base + Tile::kRanges + stage * kRows * 8, a.rows + std::int64_t{batch * a.row_tiles + at.m} * kRows,
             kRows * 8, full);
}

/// The same of dO and D, when their place is free.
template <class Tile, class At>
__device__ __forceinline__ void load_gradients(const BackwardArguments& a, std::uint32_t base, int batch, const At& at,
                                               unsigned step, std::uint32_t full) {
  constexpr int kRows = Tile::kRows;
  const unsigned stage = step % Tile::kGradStages;
  barrier_wait(base + Tile::kEmptyDO + 8 * stage, step / Tile::kGradStages & 1 ^ 1);
  barrier_expect(full, Tile::kRowBytes + kRows * 4);
  copy_rows<Tile>(base + Tile::kDO + stage * Tile::kRowBytes, &a.d_o, kRows, at.m * kRows, at.head, batch, full);
  copy_run(base + Tile::kDelta + stage * kRows * 4, a.delta + std::int64_t{at.tile} * kRows, kRows * 4, full);
}

/// Copies what `load` issues, cleans it and hands it on: a warp's work.
template <class Load, class Clean>
__device__ __forceinline__ void load_cleaned(volatile Cleaning* cleaning, std::uint32_t full, const Load& load,
                                             const Clean& clean) {
  const std::uint32_t raw = shared_address(const_cast<Cleaning*>(cleaning));
  if (thread_again() % 32 == 0) load(raw);
  __syncwarp();
  barrier_wait(raw, cleaning->count);
  clean();
  __syncwarp();
  if (thread_again() % 32 == 0) cleaning->count = cleaning->count ^ 1, barrier_arrive(full);
  __syncwarp();
}

/// A step whose rows are cleaned: all of them, or those that see nothing.
template <class Tile>
__device__ __forceinline__ void load_cleaned_step(const BackwardArguments& a, std::uint8_t* memory, int batch,
                                                  unsigned step) {
  constexpr int kRows = Tile::kRows;
  const std::uint32_t base = shared_address(memory);
  auto* cleaning = reinterpret_cast<volatile Cleaning*>(memory + Tile::kCleaning);
  const auto clean = [&](std::uint32_t tile) {
    if (cleaning->guarded) clean_rows<Tile::kPanels, kRows>(a, tile);
    __syncwarp();
    if (step_in<Tile>(memory, step).special & kMasked)
      clear_idle<Tile::kPanels, kRows>(
          tile, reinterpret_cast<const int2*>(memory + Tile::kRanges + step % Tile::kQueryStages * kRows * 8));
  };
  load_cleaned(
      cleaning, base + Tile::kFullQ + 8 * (step % Tile::kQueryStages),
      [&](std::uint32_t full) { load_queries<Tile>(a, base, batch, step_in<Tile>(memory, step), step, full); },
      [&] { clean(base + Tile::kQ + step % Tile::kQueryStages * Tile::kRowBytes); });
  load_cleaned(
      cleaning, base + Tile::kFullDO + 8 * (step % Tile::kGradStages),
      [&](std::uint32_t full) { load_gradients<Tile>(a, base, batch, step_in<Tile>(memory, step), step, full); },
      [&] { clean(base + Tile::kDO + step % Tile::kGradStages * Tile::kRowBytes); });
}

}  // namespace rootdk::cuda::back
