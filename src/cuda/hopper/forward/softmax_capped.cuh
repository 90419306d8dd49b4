// The softmax step under a soft-cap (Gemma 2): cap·tanh(s / cap) in the same registers.
#pragma once

#include "cuda/hopper/forward/softmax.cuh"

namespace rootdk::cuda {

/// tanh, off by some 1e-7: two special functions. The hardware's own tanh is off by 5e-4, which a cap multiplies.
__device__ __forceinline__ float capped(float x) { return 1 - __fdividef(2.0f, 1 + exp2_approx(2 * kLog2E * x)); }

/// tanh(x) / x in x², for |x| ≤ ½: minimax, off by a relative 5.4e-07 at most.
inline constexpr float kTanhOverX[4] = {0.999999463558197f, -0.33326318860054016f, 0.13190296292304993f,
                                        -0.04440220072865486f};

/// Where weights under a soft-cap count from, in base 2. scale2 is cap · log₂e, `inner` c / cap.
__device__ __forceinline__ float capped_origin(float base, float scale2, float inner) {
  return capped(base * inner) * scale2;
}

/// softmax_step under a soft-cap, which is monotone: the maximum is found before it. Where what a thread has of a row
/// is small against the cap a polynomial does, and where that is so in all of a warp it is all there is; else tanh
/// takes two more special functions for each.
template <int N>
__device__ __forceinline__ bool softmax_step_capped(float (&s)[N], RowPair& rows, float (&shrink)[2], float scale2,
                                                    float inner, bool masked, const int (&begin)[2],
                                                    const int (&end)[2], int first_key) {
  float origin[2],
      peak[2] = {0, 0};  // of the thread's part of each row: a row's bits must not depend on its neighbours
#pragma unroll
  for (int j = 0; j < N; ++j) peak[j / 2 % 2] = fmaxf(peak[j / 2 % 2], fabsf(s[j]));
  const Range range = range_of<false>(s, rows.max, rows.max);
  bool far = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = range.max[r], origin[r] = capped_origin(rows.base[r], scale2, inner);
    far = far || capped_origin(rows.max[r], scale2, inner) - origin[r] > kSlack;
  }
  const bool moved = __any_sync(~0u, far);
  if (moved) [[unlikely]] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.max[r] = quad_max(rows.max[r]), shrink[r] = 1;
      const float top = capped_origin(rows.max[r], scale2, inner);
      if (!(top - origin[r] > kSlack)) continue;
      shrink[r] = exp2_approx(origin[r] - top);
      rows.base[r] = rows.max[r], rows.sum[r] *= shrink[r], origin[r] = top;
    }
  }
  const auto exponent_of_small = [&](float x, int r) {
    const float unit = scale2 * inner, square = inner * inner, u = x * x;
    const float a0 = kTanhOverX[0] * unit, a1 = kTanhOverX[1] * unit * square,
                a2 = kTanhOverX[2] * unit * square * square, a3 = kTanhOverX[3] * unit * square * square * square;
    return fmaf(x, fmaf(fmaf(fmaf(a3, u, a2), u, a1), u, a0), -origin[r]);
  };
  const bool small[2] = {peak[0] * inner <= 0.5f, peak[1] * inner <= 0.5f};
  if (__all_sync(~0u, small[0] && small[1])) {
    float sum[2][2] = {{rows.sum[0], 0}, {rows.sum[1], 0}};
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = exp2_approx(exponent_of_small(s[j], j / 2 % 2)), sum[j / 2 % 2][j % 2] += s[j];
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.sum[r] = sum[r][0] + sum[r][1];
    return moved;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (small[r]) {
#pragma unroll
      for (int j = 2 * r; j < N; j += 4) s[j] = exponent_of_small(s[j], r), s[j + 1] = exponent_of_small(s[j + 1], r);
    } else {
#pragma unroll
      for (int j = 2 * r; j < N; j += 4)
        s[j] = fmaf(capped(s[j] * inner), scale2, -origin[r]),
        s[j + 1] = fmaf(capped(s[j + 1] * inner), scale2, -origin[r]);
    }
  }
  if (masked) hide(s, begin, end, first_key);
  constexpr float kAsTheyAre[2] = {1, 1}, kNoOrigin[2] = {0, 0};
  exponentiate(s, rows, kAsTheyAre, kNoOrigin);
  return moved;
}

}  // namespace rootdk::cuda
