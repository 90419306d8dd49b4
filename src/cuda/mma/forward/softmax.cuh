// Online softmax (Milakov and Gimelshein 2018) of a block of scores in the registers of a warp, laid out as scores.cuh
// says.
#pragma once

#include "cuda/common/quad.cuh"
#include "cuda/mma/forward/tile.h"

namespace rootdk::cuda::mma {

inline constexpr float kSlack = 8;  ///< 2^8 times 2^8 such weights stay in the range of f16

/// Where weights count from, and how far from there a score is, in powers of two.
///
/// Scores that are more than scaled may be as large as numbers go: finfo.min is what many hide keys by. There origins
/// are scores, and the lowest number is the first. Scores that are scaled and no more come before their scale, and one
/// multiply-add takes both.
template <bool kScores>
struct Origin {
  static constexpr float kFirst = kScores ? -0x1.fffffep127f : -0x1p127f;  ///< finite: a hidden score's weight is 0

  static __device__ __forceinline__ float at(float score, float scale2) {
    return kScores ? score : __fmul_rn(score, scale2);
  }
  static __device__ __forceinline__ float gap(float score, float scale2, float origin) {
    return kScores ? (score - origin) * scale2 : fmaf(score, scale2, -origin);
  }
  /// From one origin to another; finite, so that nothing times this is nothing.
  static __device__ __forceinline__ float step(float from, float to, float scale2) {
    return kScores ? fmaxf((from - to) * scale2, -0x1p100f) : from - to;
  }
};

/// A thread's rows so far. Weights are 2^gap. The origin agrees across the quad; it follows the maximum only once that
/// is 2^kSlack times as heavy, so that what was added up seldom has to be multiplied, and lanes seldom have to ask each
/// other. Maxima and sums are the thread's own until the end.
template <int kRows, bool kOfScores>
struct RowsSoFar {
  static constexpr bool kScores = kOfScores;
  float max[kRows], origin[kRows], sum[kRows];

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) max[r] = -kInfinityF, origin[r] = Origin<kScores>::kFirst, sum[r] = 0;
  }
};

/// The maxima of a block and what was before it.
template <int kM, int kN>
__device__ __forceinline__ void find_maxima(const float (&s)[kM][kN][4], const float (&before)[2 * kM],
                                            float (&max)[2 * kM]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top[2] = {before[2 * m + half], s[m][0][2 * half]};
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) top[e] = fmaxf(top[e], s[m][j][2 * half + e]);
      max[2 * m + half] = fmaxf(top[0], top[1]);
    }
}

/// Moves the origin of rows whose maximum has become too large, where a warp has any. `step` is by how much, `shrink`
/// what all that was added up is to be multiplied by. Returns whether there is anything to do. A row's own scores alone
/// decide what happens to it.
template <int kM, int kN, bool kScores>
__device__ __forceinline__ bool move_origins(const float (&s)[kM][kN][4], RowsSoFar<2 * kM, kScores>& rows,
                                             float scale2, float (&step)[2 * kM], float (&shrink)[2 * kM]) {
  float max[2 * kM];
  find_maxima(s, rows.max, max);
  bool far = false;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    far = far || Origin<kScores>::gap(max[r], scale2, rows.origin[r]) > kSlack;
    rows.max[r] = max[r];
  }
  if (!__any_sync(~0u, far)) return false;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    rows.max[r] = quad_max(max[r]), step[r] = 0, shrink[r] = 1;
    if (!(Origin<kScores>::gap(rows.max[r], scale2, rows.origin[r]) > kSlack)) continue;
    const float to = Origin<kScores>::at(rows.max[r], scale2);
    step[r] = Origin<kScores>::step(rows.origin[r], to, scale2), shrink[r] = exp2_fast(step[r]);
    rows.origin[r] = to;
  }
  return true;
}

/// Scores become weights.
template <int kM, int kN, bool kScores>
__device__ __forceinline__ void exponentiate(float (&s)[kM][kN][4], RowsSoFar<2 * kM, kScores>& rows, float scale2) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        s[m][j][x] = exp2_fast(Origin<kScores>::gap(s[m][j][x], scale2, rows.origin[2 * m + x / 2]));
        sum[x] += s[m][j][x];
      }
    rows.sum[2 * m] += sum[0] + sum[1], rows.sum[2 * m + 1] += sum[2] + sum[3];
  }
}

/// A step without full statistics. Returns whether what the caller added up is to be multiplied by `shrink`.
template <int kM, int kN, bool kScores>
__device__ __forceinline__ bool softmax_step(float (&s)[kM][kN][4], RowsSoFar<2 * kM, kScores>& rows, float scale2,
                                             float (&shrink)[2 * kM]) {
  float step[2 * kM];
  const bool moved = move_origins(s, rows, scale2, step, shrink);
  if (moved) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) rows.sum[r] *= shrink[r];
  }
  exponentiate(s, rows, scale2);
  return moved;
}

/// In the end: the maxima and sums of the quads, relative to the maximum, and what values are to be multiplied by for
/// that.
template <int kRows, bool kScores>
__device__ __forceinline__ void end_rows(RowsSoFar<kRows, kScores>& rows, float scale2, float (&shrink)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows.max[r] = quad_max(rows.max[r]);
    shrink[r] = rows.max[r] == -kInfinityF ? 1 : exp2_fast(-Origin<kScores>::gap(rows.max[r], scale2, rows.origin[r]));
    rows.sum[r] = quad_sum(rows.sum[r]) * shrink[r];
  }
}

}  // namespace rootdk::cuda::mma
