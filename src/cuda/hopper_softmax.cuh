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
__device__ __forceinline__ void pack(const float (&s)[N], std::uint32_t (&p)[N / 2]) {
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
struct RowPair {
  float max[2], sum[2];  ///< max: of what softmax_step is given
};

/// What full statistics add; all in units of gap, relative to the maximum so far.
struct FullPair {
  float t[2], sum2[2], sum3[2];          ///< Σ w·gap, Σ w², Σ w³
  float first[2], second[2], count[2];   ///< Σ gap, Σ gap², how many
  float min[2];                          ///< of gap + origin
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

/// Weights relative to `origin`, in place of exponents.
template <int N>
__device__ __forceinline__ void exponentiate(float (&s)[N], RowPair& rows, const float (&shrink)[2], const float (&scale2)[2], const float (&origin)[2]) {
  float sum[2][2] = {{rows.sum[0] * shrink[0], 0}, {rows.sum[1] * shrink[1], 0}};
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

/// Scores become weights; `shrink` is what everything before is multiplied by.
template <int N>
__device__ __forceinline__ void softmax_step(float (&s)[N], RowPair& rows, float (&shrink)[2], const float (&scale2)[2]) {
  float max[2], origin[2];
  new_maxima(s, rows, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    origin[r] = max[r] == -kInfinityF ? 0 : max[r] * scale2[r];  // nothing seen yet: weights are 0, not NaN
    shrink[r] = exp2_approx(fmaf(rows.max[r], scale2[r], -origin[r]));
    rows.max[r] = max[r];
  }
  exponentiate(s, rows, shrink, scale2, origin);
}

/// tanh, off by some 1e-7: two special functions. The hardware's own tanh is off by 5e-4, which a cap multiplies.
__device__ __forceinline__ float capped(float x) { return 1 - __fdividef(2.0f, 1 + exp2_approx(2 * kLog2E * x)); }

/// tanh(x) / x in x², for |x| ≤ ½: minimax, off by a relative 5.4e-07 at most.
inline constexpr float kTanhOverX[4] = {0.999999463558197f, -0.33326318860054016f, 0.13190296292304993f, -0.04440220072865486f};

/// The same under a soft-cap, which is monotone: the maximum is found before it. scale2 is cap · log₂e, `inner` c / cap, of both rows. Where all
/// scores of a warp are small against the cap, a polynomial does; else tanh takes two more special functions for each.
template <int N>
__device__ __forceinline__ void softmax_step_capped(float (&s)[N], RowPair& rows, float (&shrink)[2], float scale2, float inner, bool masked, const int (&begin)[2],
                                                    const int (&end)[2], int first_key) {
  float max[2], origin[2], peak[2] = {0, 0};
  new_maxima(s, rows, max);
#pragma unroll
  for (int j = 0; j < N; ++j) peak[j % 2] = fmaxf(peak[j % 2], fabsf(s[j]));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    origin[r] = capped(max[r] * inner) * scale2;
    shrink[r] = rows.max[r] == max[r] ? 1 : exp2_approx(fmaf(capped(rows.max[r] * inner), scale2, -origin[r]));
    rows.max[r] = max[r];
  }
  if (__all_sync(~0u, fmaxf(peak[0], peak[1]) * inner <= 0.5f)) {
    const float unit = scale2 * inner, square = inner * inner;
    const float a0 = kTanhOverX[0] * unit, a1 = kTanhOverX[1] * unit * square, a2 = kTanhOverX[2] * unit * square * square, a3 = kTanhOverX[3] * unit * square * square * square;
    float sum[2][2] = {{rows.sum[0] * shrink[0], 0}, {rows.sum[1] * shrink[1], 0}};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float u = s[j] * s[j], w = exp2_approx(fmaf(s[j], fmaf(fmaf(fmaf(a3, u, a2), u, a1), u, a0), -origin[j / 2 % 2]));
      sum[j / 2 % 2][j % 2] += w;
      s[j] = w;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) s[j] = capped(s[j] * inner);
  if (masked) hide(s, begin, end, first_key);
  const float scales[2] = {scale2, scale2};
  exponentiate(s, rows, shrink, scales, origin);
}

/// The same with full statistics: six more additions and half a comparison for each score.
template <int N, bool kMasked>
__device__ __forceinline__ void softmax_step_full(float (&s)[N], RowPair& rows, FullPair& full, float (&shrink)[2], const float (&scale2)[2], int first_key) {
  float max[2], origin[2];
  unsigned low[2] = {0, 0};  // bits of the smallest gap: below zero the larger number has the larger magnitude, so the larger bits
  new_maxima(s, rows, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float old_max = rows.max[r];
    origin[r] = max[r] == -kInfinityF ? 0 : max[r] * scale2[r];
    const float step = fmaf(old_max, scale2[r], -origin[r]), a = exp2_approx(step), moved = old_max == -kInfinityF ? 0 : step;
    shrink[r] = a;
    rows.max[r] = max[r];
    full.t[r] = a * fmaf(moved, rows.sum[r], full.t[r]);
    full.sum2[r] *= a * a, full.sum3[r] *= a * a * a;
    full.second[r] = fmaf(moved, fmaf(2.0f, full.first[r], full.count[r] * moved), full.second[r]);
    full.first[r] = fmaf(full.count[r], moved, full.first[r]);
    if (max[r] > old_max) full.max_block[r] = first_key;
    rows.sum[r] *= a;
    if constexpr (!kMasked) full.count[r] += N / 2;
  }
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float gap[2], w[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = s[4 * j + 2 * r + e];
        gap[e] = fmaf(x, scale2[r], -origin[r]), w[e] = exp2_approx(gap[e]);
        if constexpr (kMasked) {
          const bool seen = x != -kInfinityF;
          gap[e] = seen ? gap[e] : 0;
          full.count[r] += seen ? 1 : 0;
        }
        rows.sum[r] += w[e];
        full.t[r] = fmaf(w[e], gap[e], full.t[r]);
        full.first[r] += gap[e];
        full.second[r] = fmaf(gap[e], gap[e], full.second[r]);
        const float square = w[e] * w[e];
        full.sum2[r] += square;
        full.sum3[r] = fmaf(square, w[e], full.sum3[r]);
        s[4 * j + 2 * r + e] = w[e];
      }
      low[r] = __vimax3_u32(low[r], __float_as_uint(gap[0]), __float_as_uint(gap[1]));
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) full.min[r] = fminf(full.min[r], origin[r] + __uint_as_float(low[r]));
}

/// A row's full statistics, once its thread has the sums of the quarter. `origin` and the sums are of base 2.
__device__ __forceinline__ base::FullRecord finish_full(const ProblemView& p, const FullPair& full, int r, std::int64_t h, float sum, float origin, int visible) {
  base::FullRecord record = {};
  const double ln2 = kLn2, n = visible;
  if (visible > 0) {
    const double mean = static_cast<double>(full.first[r]) / n;
    record.raw.mean = ln2 * (static_cast<double>(origin) + mean);
    record.raw.m2 = ln2 * ln2 * fmax(0.0, static_cast<double>(full.second[r]) - static_cast<double>(full.first[r]) * mean);
    record.raw.min = ln2 * static_cast<double>(full.min[r]);
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
