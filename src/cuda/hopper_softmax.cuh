// Softmax of a block of scores in the registers of a warpgroup, and the statistics that ride on it.
//
// A thread has a quarter of two rows: s[4j + 2r + e] is row r of its pair, column 8j + 2·(lane % 4) + e. Exponents are of base 2 and relative
// to the row's maximum so far: gap = s·scale2 − origin ≤ 0, w = 2^gap. What statistics need beyond that is added up from gap and w.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/ptx.cuh"
#include "cuda/rows.cuh"

namespace rootdk::gpu {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <class T>
__device__ __forceinline__ std::uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack2<__nv_bfloat16>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ __forceinline__ std::uint32_t pack2<__half>(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <class T, int N>
__device__ __forceinline__ void pack(const float (&s)[N], std::uint32_t* p) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) p[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_min(float x) {
  x = fminf(x, __shfl_xor_sync(~0u, x, 1));
  return fminf(x, __shfl_xor_sync(~0u, x, 2));
}
template <class Number>
__device__ __forceinline__ Number quad_sum(Number x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Lane t of each quarter of a warp gives x[u] and gets what lane u had in x[t].
__device__ __forceinline__ void quad_transpose(std::uint32_t (&x)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = thread_again() & step;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n & step) continue;
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? x[n] : x[n + step], step);
      if (upper) x[n] = other;
      else x[n + step] = other;
    }
  }
}

/// Maxima agree across the quarter, sums are the thread's own until the end.
///
/// Weights are relative to `base`, a maximum that was: it follows the true one only once that is 2^kSlack times as heavy, which after the
/// first block hardly ever happens, so that what was added up before seldom has to be multiplied. Sums of such weights are as exact as others;
/// settle() makes them relative to the maximum in the end.
struct RowPair {
  float max[2], base[2], sum[2];  ///< max and base: of what softmax_step is given
};

inline constexpr float kSlack = 8;  ///< 2^8 times 2^8 such weights stay in the range of f16

/// What full statistics add; all in units of gap, relative to the maximum so far.
struct FullPair {
  float t[2], sum2[2], sum3[2];          ///< Σ w·gap, Σ w², Σ w³
  float first[2], second[2], count[2];   ///< Σ gap, Σ gap², how many
  float min[2];                          ///< of the scores as they come
  int max_block[2];                      ///< first key of the block that the maximum is in
};

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

/// The new maxima of a pair of rows. Two warps share a scheduler, so the two rows go side by side and each has two chains.
template <int N>
__device__ __forceinline__ void new_maxima(const float (&s)[N], const RowPair& rows, float (&out)[2]) {
  float max[2][2] = {{rows.max[0], rows.max[0]}, {rows.max[1], rows.max[1]}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) max[x / 2][x % 2] = fmaxf(max[x / 2][x % 2], s[4 * j + x]);
#pragma unroll
  for (int r = 0; r < 2; ++r) out[r] = quad_max(fmaxf(max[r][0], max[r][1]));
}

/// The same in half as many steps. Above zero the bits of floats are in the order of the floats, so three at a time can be compared as
/// integers; where that will not do (nothing above zero, or a NaN, which is passed over) one by one.
template <int N>
__device__ __forceinline__ void new_maxima_by_bits(const float (&s)[N], const RowPair& rows, float (&out)[2]) {
  int top[2][2] = {{__float_as_int(rows.max[0]), __float_as_int(rows.max[0])}, {__float_as_int(rows.max[1]), __float_as_int(rows.max[1])}};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r][j % 2] = __vimax3_s32(top[r][j % 2], __float_as_int(s[4 * j + 2 * r]), __float_as_int(s[4 * j + 2 * r + 1]));
  const int most[2] = {max(top[0][0], top[0][1]), max(top[1][0], top[1][1])};
  if (__any_sync(~0u, max(static_cast<unsigned>(most[0]), static_cast<unsigned>(most[1])) > 0x7f800000u)) return new_maxima(s, rows, out);
#pragma unroll
  for (int r = 0; r < 2; ++r) out[r] = quad_max(__int_as_float(most[r]));
}

/// Where weights count from, in base 2: 0 while nothing has been seen, so that they are 0 and not NaN.
__device__ __forceinline__ float origin_of(float base, float scale2) { return base == -kInfinityF ? 0 : base * scale2; }

/// Moves the base of rows whose maximum has gone too far, all in a warp at once if any: `shrink` is what all that was added up before is to
/// be multiplied by. Returns whether there is anything to do.
__device__ __forceinline__ bool move_base(RowPair& rows, const float (&max)[2], float (&shrink)[2], const float (&scale2)[2]) {
  bool far = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.max[r] = max[r], far = far || (max[r] - rows.base[r]) * scale2[r] > kSlack;
  if (!__any_sync(~0u, far)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    shrink[r] = 1;
    if (!((max[r] - rows.base[r]) * scale2[r] > kSlack)) continue;
    shrink[r] = exp2_approx((rows.base[r] - max[r]) * scale2[r]);
    rows.base[r] = max[r], rows.sum[r] *= shrink[r];
  }
  return true;
}

/// Weights relative to `origin`, in place of exponents.
template <int N>
__device__ __forceinline__ void exponentiate(float (&s)[N], RowPair& rows, const float (&scale2)[2], const float (&origin)[2]) {
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
__device__ __forceinline__ bool softmax_step(float (&s)[N], RowPair& rows, float (&shrink)[2], const float (&scale2)[2]) {
  float max[2];
  if constexpr (kByBits) new_maxima_by_bits(s, rows, max);
  else new_maxima(s, rows, max);
  const bool moved = move_base(rows, max, shrink, scale2);
  const float origin[2] = {origin_of(rows.base[0], scale2[0]), origin_of(rows.base[1], scale2[1])};
  exponentiate(s, rows, scale2, origin);
  return moved;
}

/// tanh, off by some 1e-7: two special functions. The hardware's own tanh is off by 5e-4, which a cap multiplies.
__device__ __forceinline__ float capped(float x) { return 1 - __fdividef(2.0f, 1 + exp2_approx(2 * kLog2E * x)); }

/// tanh(x) / x in x², for |x| ≤ ½: minimax, off by a relative 5.4e-07 at most.
inline constexpr float kTanhOverX[4] = {0.999999463558197f, -0.33326318860054016f, 0.13190296292304993f, -0.04440220072865486f};

/// Where weights under a soft-cap count from, in base 2. scale2 is cap · log₂e, `inner` c / cap.
__device__ __forceinline__ float capped_origin(float base, float scale2, float inner) { return capped(base * inner) * scale2; }

/// softmax_step under a soft-cap, which is monotone: the maximum is found before it. Where all scores of a warp are small against the cap, a
/// polynomial does; else tanh takes two more special functions for each.
template <int N>
__device__ __forceinline__ bool softmax_step_capped(float (&s)[N], RowPair& rows, float (&shrink)[2], float scale2, float inner, bool masked, const int (&begin)[2],
                                                    const int (&end)[2], int first_key) {
  float max[2], origin[2], peak[2] = {0, 0};
  new_maxima(s, rows, max);
#pragma unroll
  for (int j = 0; j < N; ++j) peak[j % 2] = fmaxf(peak[j % 2], fabsf(s[j]));
  bool moved = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = max[r], origin[r] = capped_origin(rows.base[r], scale2, inner), shrink[r] = 1;
    const float top = capped_origin(max[r], scale2, inner);
    if (!(top - origin[r] > kSlack)) continue;
    shrink[r] = exp2_approx(origin[r] - top), moved = true;
    rows.base[r] = max[r], rows.sum[r] *= shrink[r], origin[r] = top;
  }
  moved = __any_sync(~0u, moved);
  if (__all_sync(~0u, fmaxf(peak[0], peak[1]) * inner <= 0.5f)) {
    const float unit = scale2 * inner, square = inner * inner;
    const float a0 = kTanhOverX[0] * unit, a1 = kTanhOverX[1] * unit * square, a2 = kTanhOverX[2] * unit * square * square, a3 = kTanhOverX[3] * unit * square * square * square;
    float sum[2][2] = {{rows.sum[0], 0}, {rows.sum[1], 0}};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float u = s[j] * s[j], w = exp2_approx(fmaf(s[j], fmaf(fmaf(fmaf(a3, u, a2), u, a1), u, a0), -origin[j / 2 % 2]));
      sum[j / 2 % 2][j % 2] += w;
      s[j] = w;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
    return moved;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) s[j] = capped(s[j] * inner);
  if (masked) hide(s, begin, end, first_key);
  const float scales[2] = {scale2, scale2};
  exponentiate(s, rows, scales, origin);
  return moved;
}

/// What full statistics have added up, once weights are 2^step of what they were, and gaps are larger by `step`.
__device__ __forceinline__ void shift_full(FullPair& full, int r, float sum, float step) {
  const float a = exp2_approx(step), moved = step == -kInfinityF ? 0 : step;
  full.t[r] = a * fmaf(moved, sum, full.t[r]);
  full.sum2[r] *= a * a, full.sum3[r] *= a * a * a;
  full.second[r] = fmaf(moved, fmaf(2.0f, full.first[r], full.count[r] * moved), full.second[r]);
  full.first[r] = fmaf(full.count[r], moved, full.first[r]);
}

/// The smallest score of a row that a thread has, as new_maxima: below zero the larger bits are those of the smaller number.
template <int N>
__device__ __forceinline__ float lowest(const float (&s)[N], int r) {
  unsigned low = 0;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) low = __vimax3_u32(low, __float_as_uint(s[4 * j + 2 * r]), __float_as_uint(s[4 * j + 2 * r + 1]));
  if (low - 0x80000000u <= 0x7f800000u) return __uint_as_float(low);
  float min = kInfinityF;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) min = fminf(min, fminf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
  return min;
}

/// softmax_step with full statistics: six more additions and half a comparison for each score.
template <int N, bool kMasked>
__device__ __forceinline__ bool softmax_step_full(float (&s)[N], RowPair& rows, FullPair& full, float (&shrink)[2], const float (&scale2)[2], int first_key) {
  float max[2];
  new_maxima_by_bits(s, rows, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (max[r] > rows.max[r]) full.max_block[r] = first_key;
    if constexpr (!kMasked) full.min[r] = fminf(full.min[r], lowest(s, r));
  }
  const float old_base[2] = {rows.base[0], rows.base[1]}, old_sum[2] = {rows.sum[0], rows.sum[1]};
  const bool moved = move_base(rows, max, shrink, scale2);
  if (moved) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (rows.base[r] != old_base[r]) shift_full(full, r, old_sum[r], (old_base[r] - rows.base[r]) * scale2[r]);
  }
  if constexpr (!kMasked) full.count[0] += N / 2, full.count[1] += N / 2;
  const float origin[2] = {origin_of(rows.base[0], scale2[0]), origin_of(rows.base[1], scale2[1])};
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int r = x / 2;
      float gap = fmaf(s[4 * j + x], scale2[r], -origin[r]);
      const float w = exp2_approx(gap), square = w * w;
      if constexpr (kMasked) {
        const bool seen = s[4 * j + x] != -kInfinityF;
        if (seen) full.min[r] = fminf(full.min[r], s[4 * j + x]);
        gap = seen ? gap : 0;
        full.count[r] += seen ? 1 : 0;
      }
      rows.sum[r] += w;
      full.t[r] = fmaf(w, gap, full.t[r]);
      full.first[r] += gap;
      full.second[r] = fmaf(gap, gap, full.second[r]);
      full.sum2[r] += square;
      full.sum3[r] = fmaf(square, w, full.sum3[r]);
      s[4 * j + x] = w;
    }
  return moved;
}

/// A row's full statistics, once its thread has the sums of the quarter. `origin` and the sums are of base 2.
__device__ __forceinline__ base::FullRecord finish_full(const ProblemView& p, const FullPair& full, int r, std::int64_t h, float sum, float origin, int visible) {
  base::FullRecord record = {};
  const double ln2 = kLn2, n = visible;
  if (visible > 0) {
    const double mean = static_cast<double>(full.first[r]) / n;
    record.raw.mean = ln2 * (static_cast<double>(origin) + mean);
    record.raw.m2 = ln2 * ln2 * fmax(0.0, static_cast<double>(full.second[r]) - static_cast<double>(full.first[r]) * mean);
    record.raw.min = static_cast<double>(full.min[r] * static_cast<float>(factor_of(p, h)));
    record.raw.argmax = full.max_block[r];  // settle_argmax finds the key
  }
  record.score = record.raw;
  float sums = sum, t = kLn2 * full.t[r], sum2 = full.sum2[r], sum3 = full.sum3[r];
  if (p.sink) {
    const float z = p.sink[h], largest = origin * kLn2, high = sums > 0 ? fmaxf(largest, z) : z, delta = sums > 0 ? largest - high : 0;
    const float shrunk = sums > 0 ? expf(delta) : 0, e = expf(z - high);
    t = shrunk * fmaf(delta, sums, t) + e * (z - high);
    sums = shrunk * sums + e, sum2 = shrunk * shrunk * sum2 + e * e, sum3 = shrunk * shrunk * shrunk * sum3 + e * e * e;
    record.sink_mass = e / sums;
  }
  if (sums > 0) {
    const float inverse = 1 / sums;
    record.entropy = logf(sums) - t * inverse;
    record.sum_p2 = sum2 * inverse * inverse;
    record.sum_p3 = sum3 * inverse * inverse * inverse;
  }
  return record;
}

}  // namespace rootdk::gpu
