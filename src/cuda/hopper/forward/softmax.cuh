// Online softmax (Milakov and Gimelshein 2018) of a block of scores in the registers of a warpgroup, and the statistics
// that ride on it.
//
// The four lanes of a quad share two rows: s[4j + 2r + e] is row r of the pair, column 8j + 2·(lane % 4) + e.
// Exponents are of base 2 and relative to a maximum that the row had: gap = s·scale2 − origin ≤ kSlack, w = 2^gap.
// What statistics need beyond that is added up from gap and w.
#pragma once

#include "cuda/common/quad.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/pack.cuh"

namespace rootdk::cuda {

/// Sums and maxima are the thread's own until the end, the base agrees across the quad.
///
/// Weights are relative to `base`, a maximum that was: it follows the true one only once that is 2^kSlack times as
/// heavy, which after the first block hardly ever happens, so that what was added up before seldom has to be
/// multiplied, and threads seldom have to ask each other for their maxima. Sums of such weights are as exact as others;
/// in the end they are made relative to the maximum.
struct RowPair {
  float max[2], base[2], sum[2];  ///< max and base: of what softmax_step is given; with full statistics the base is
                                  ///< where weights count from, as origin_of says
};

inline constexpr float kSlack = 8;  ///< 2^8 times 2^8 such weights stay in the range of f16

/// Keys outside a row's run.
template <int N>
__device__ __forceinline__ void hide(float (&s)[N], const int (&begin)[2], const int (&end)[2], int first_key) {
  const int column = first_key + 2 * (thread_again() % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto keys = static_cast<unsigned>(end[r] - begin[r]);
    const int base = column - begin[r];
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (static_cast<unsigned>(base + 8 * j + e) >= keys) s[4 * j + 2 * r + e] = -kInfinityF;
  }
}

/// What a thread has seen of a pair of rows, this block included. NaN is passed over.
struct Range {
  float max[2], min[2];
};

/// The two rows go side by side and each has two chains.
template <bool kLowest, int N>
__device__ __forceinline__ Range range_of(const float (&s)[N], const float (&max)[2], const float (&min)[2]) {
  float top[4] = {max[0], max[0], max[1], max[1]}, low[4] = {min[0], min[0], min[1], min[1]};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      top[x] = fmaxf(top[x], s[4 * j + x]);
      if constexpr (kLowest) low[x] = fminf(low[x], s[4 * j + x]);
    }
  return {{fmaxf(top[0], top[1]), fmaxf(top[2], top[3])}, {fminf(low[0], low[1]), fminf(low[2], low[3])}};
}

/// The maxima in half as many steps. Above zero the bits of floats are in the order of the floats, so three at a time
/// can be compared as integers. False where that will not do: nothing above zero, or a NaN.
template <int N>
__device__ __forceinline__ bool maxima_by_bits(const float (&s)[N], const float (&max)[2], float (&out)[2]) {
  int top[2][2] = {{__float_as_int(max[0]), __float_as_int(max[0])}, {__float_as_int(max[1]), __float_as_int(max[1])}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      top[r][j % 2] =
          __vimax3_s32(top[r][j % 2], __float_as_int(s[4 * j + 2 * r]), __float_as_int(s[4 * j + 2 * r + 1]));
  bool sure = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int most = ::max(top[r][0], top[r][1]);
    sure = sure && static_cast<unsigned>(most) <= 0x7f800000u;
    out[r] = __int_as_float(most);
  }
  return sure;
}

/// Where weights count from, in base 2: 0 while nothing has been seen, so that they are 0 and not NaN.
__device__ __forceinline__ float origin_of(float base, float scale2) { return base == -kInfinityF ? 0 : base * scale2; }

/// Whether a row of the thread has a maximum too far from its base.
__device__ __forceinline__ bool too_far(const float (&max)[2], const RowPair& rows, const float (&scale2)[2]) {
  return (max[0] - rows.base[0]) * scale2[0] > kSlack || (max[1] - rows.base[1]) * scale2[1] > kSlack;
}

/// Moves the base of such rows, all in a warp at once: `shrink` is what all that was added up before is to be
/// multiplied by. Returns whether there is anything to do. The maxima of the quad agree from here on.
__device__ __forceinline__ bool move_base(RowPair& rows, const float (&max)[2], float (&shrink)[2],
                                          const float (&scale2)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.max[r] = quad_max(max[r]), shrink[r] = 1;
  if (!__any_sync(~0u, too_far(rows.max, rows, scale2))) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!((rows.max[r] - rows.base[r]) * scale2[r] > kSlack)) continue;
    shrink[r] = exp2_approx((rows.base[r] - rows.max[r]) * scale2[r]);
    rows.base[r] = rows.max[r], rows.sum[r] *= shrink[r];
  }
  return true;
}

/// Weights relative to `origin`, in place of exponents.
template <int N>
__device__ __forceinline__ void exponentiate(float (&s)[N], RowPair& rows, const float (&scale2)[2],
                                             const float (&origin)[2]) {
  float sum[2][2] = {{rows.sum[0], 0}, {rows.sum[1], 0}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float w = exp2_approx(fmaf(s[4 * j + x], scale2[x / 2], -origin[x / 2]));
      sum[x / 2][x % 2] += w;
      s[4 * j + x] = w;
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
}

/// Scores become weights. Returns whether everything before is to be multiplied by `shrink`.
template <bool kByBits, int N>
__device__ __forceinline__ bool softmax_step(float (&s)[N], RowPair& rows, float (&shrink)[2],
                                             const float (&scale2)[2]) {
  Range range;
  bool sure = true, moved = false;
  if constexpr (kByBits) sure = maxima_by_bits(s, rows.max, range.max);
  else range = range_of<false>(s, rows.max, rows.max);
  if (__any_sync(~0u, !sure || too_far(range.max, rows, scale2))) [[unlikely]] {
    if constexpr (kByBits) range = range_of<false>(s, rows.max, rows.max);
    moved = move_base(rows, range.max, shrink, scale2);
  } else {
    rows.max[0] = range.max[0], rows.max[1] = range.max[1];
  }
  const float origin[2] = {origin_of(rows.base[0], scale2[0]), origin_of(rows.base[1], scale2[1])};
  exponentiate(s, rows, scale2, origin);
  return moved;
}

}  // namespace rootdk::cuda
