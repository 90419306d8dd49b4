// A block of scores of a problem that is more than a scale: what scores.cuh has, each where it is there, asked once for
// a block.
#pragma once

#include "cuda/mma/forward/moments.cuh"
#include "cuda/mma/forward/work.cuh"

namespace rootdk::cuda::mma {

/// What was read of bias and mask for a block before its product.
template <int kM, int kN>
struct PairsBlock {
  BiasBlock<kM, kN> bias;
  HiddenBlock<kM, kN> hidden;

  template <class Tile, Kind kKind>
  __device__ __forceinline__ void read(const Arguments& a, int b, const RowsMemory<Tile, kKind>& rows, int first_key) {
    if (a.bias == Pairs::kAbsent && a.allowed == Pairs::kAbsent) return;
    int h[2 * kM], i[2 * kM];
    of_thread<Tile>(rows.h, h), of_thread<Tile>(rows.i, i);
    if (a.bias != Pairs::kAbsent) read_bias(a.f.p, a.bias, b, h, i, first_key, bias);
    if (a.allowed != Pairs::kAbsent) read_allowed(a.f.p, a.allowed, b, h, i, first_key, hidden);
  }
};

/// What the passes learn of a thread's rows.
template <int kRows>
struct RichRows {
  float raw_max[kRows];
  int visible[kRows];  ///< counted where a mask or bias may hide keys

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) raw_max[r] = -kInfinityF, visible[r] = 0;
  }
};

/// Whether scores are something else than raw ones.
__device__ __forceinline__ bool is_transformed(const ProblemView& p) { return p.cap != 0 || p.slopes || p.bias.data; }

/// Keys outside the runs of the thread's rows.
template <class Tile, Kind kKind, int kM, int kN>
__device__ __forceinline__ void hide(float (&s)[kM][kN][4], const RowsMemory<Tile, kKind>& rows, int first_key) {
  int begin[2 * kM], end[2 * kM];
  of_thread<Tile>(rows.begin, begin), of_thread<Tile>(rows.end, end);
  hide(s, begin, end, first_key);
}

/// From q·k to scores. With full statistics raw scores are observed on the way, where they are others.
template <class Tile, Kind kKind, int kM, int kN>
__device__ __forceinline__ void transform(const Arguments& a, float (&s)[kM][kN][4],
                                          const RowsMemory<Tile, kKind>& rows, RichRows<2 * kM>& rich,
                                          FullRow (&full)[2 * kM], const PairsBlock<kM, kN>& pairs, bool at_end,
                                          bool observed, int first_key) {
  const ProblemView& p = a.f.p;
  float c[2 * kM];
  of_thread<Tile>(rows.c, c);
  each_score(s, first_key, [&](float& x, int r, int) { x *= c[r]; });
  if (at_end) hide(s, rows, first_key);
  if (a.allowed != Pairs::kAbsent) hide_pairs(s, pairs.hidden);
  if (a.bias != Pairs::kAbsent) hide_pairs(s, pairs.bias);
  const bool counts = a.allowed != Pairs::kAbsent || a.bias != Pairs::kAbsent;
  if (counts) each_score(s, first_key, [&](float& x, int r, int) { rich.visible[r] += x != -kInfinityF; });
  if (!is_transformed(p)) return;
  find_maxima(s, rich.raw_max, rich.raw_max);
  if constexpr (kKind == Kind::kFull)
    if (observed) observe_raw(s, full, at_end || counts, first_key);
  if (p.cap != 0) cap_scores(s, p.cap);
  if (p.slopes) {
    float slope[2 * kM];
    int position[2 * kM];
    of_thread<Tile>(rows.slope, slope), of_thread<Tile>(rows.position, position);
    add_slopes(s, slope, position, first_key);
  }
  if (a.bias != Pairs::kAbsent) add_pairs(s, pairs.bias);
}

}  // namespace rootdk::cuda::mma
