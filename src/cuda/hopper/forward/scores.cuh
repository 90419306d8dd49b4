// From q·k to what softmax sees, in the registers of a warpgroup, for problems with more than a scale: score_of of
// cuda/common/rows.cuh, a pass over the block for each thing that is there. Hidden keys are −∞ from the first pass on.
#pragma once

#include "cuda/hopper/forward/softmax_capped.cuh"

namespace rootdk::cuda {

/// What the passes must know of a thread's two rows.
struct RichPair {
  float c[2], slope[2];
  float raw_max[2];
  int position[2], visible[2];
  int h[2], i[2];  ///< h: −1 of padding
};

/// f(value, row of the pair, key).
template <int N, class F>
__device__ __forceinline__ void each_score(float (&s)[N], int first_key, const F& f) {
  const int column = first_key + 2 * (thread_again() % 4);
#pragma unroll
  for (int j = 0; j < N / 4; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) f(s[4 * j + x], x / 2, column + 8 * j + x % 2);
}

template <int N>
__device__ __forceinline__ void transform(const ProblemView& p, float (&s)[N], RichPair& rich, int batch, bool masked,
                                          const int (&begin)[2], const int (&end)[2], int first_key) {
  each_score(s, first_key, [&](float& x, int r, int) { x *= rich.c[r]; });
  if (masked) hide(s, begin, end, first_key);
  // Padding rows see keys that are not there: only real ones read arrays.
  if (p.allowed.data)
    each_score(s, first_key, [&](float& x, int r, int key) {
      if (x != -kInfinityF && rich.h[r] >= 0 &&
          p.allowed.data[at(p.allowed, batch, rich.h[r], rich.i[r]) + key * p.allowed.strides[3]] == 0)
        x = -kInfinityF;
    });
  if (p.bias.data)
    each_score(s, first_key, [&](float& x, int r, int key) {
      if (x != -kInfinityF && rich.h[r] >= 0 &&
          read(p.bias, at(p.bias, batch, rich.h[r], rich.i[r]) + key * p.bias.strides[3]) == -kInfinityF)
        x = -kInfinityF;
    });
  if (p.allowed.data || p.bias.data)
    each_score(s, first_key, [&](float& x, int r, int) { rich.visible[r] += x != -kInfinityF; });
  each_score(s, first_key, [&](float& x, int r, int) { rich.raw_max[r] = fmaxf(rich.raw_max[r], x); });
  if (p.cap != 0) {
    const float inner = 1 / p.cap;
    each_score(s, first_key, [&](float& x, int, int) { x = x == -kInfinityF ? x : p.cap * capped(x * inner); });
  }
  if (p.slopes)
    each_score(s, first_key, [&](float& x, int r, int key) {
      x = fmaf(-rich.slope[r], fabsf(static_cast<float>(rich.position[r] - key)), x);
    });
  if (p.bias.data)
    each_score(s, first_key, [&](float& x, int r, int key) {
      if (x != -kInfinityF && rich.h[r] >= 0)
        x += read(p.bias, at(p.bias, batch, rich.h[r], rich.i[r]) + key * p.bias.strides[3]);
    });
}

/// philox_key for one draw: kept from draw to draw it would spill, and a load is little beside ten rounds.
__device__ __forceinline__ PhiloxKey philox_key_again(const ProblemView& p) {
  PhiloxKey key{p.seed_low, p.seed_high};
  if (p.seed) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(key.low), "=r"(key.high) : "l"(p.seed));
  return key;
}

/// Dropout of weights, after they were summed. Lanes 2n and 2n + 1 need the same four numbers of both rows: each draws
/// one row's and gives the other its half.
template <int N>
__device__ __forceinline__ void drop(const ProblemView& p, float (&s)[N], const RichPair& rich, int batch,
                                     int first_key) {
  const int t = thread_again() % 4, mine = t % 2;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    std::uint32_t x[4] = {static_cast<std::uint32_t>((first_key + 8 * j) / 4 + t / 2),
                          static_cast<std::uint32_t>(mine ? rich.i[1] : rich.i[0]),
                          static_cast<std::uint32_t>(mine ? rich.h[1] : rich.h[0]), static_cast<std::uint32_t>(batch)};
    philox(philox_key_again(p), x);
    const std::uint32_t keep[2] = {mine ? x[2] : x[0], mine ? x[3] : x[1]};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t given = __shfl_xor_sync(~0u, mine ? x[e] : x[2 + e], 1);
      s[4 * j + e] *= (mine ? given : keep[e]) < p.keep_threshold ? p.keep_gain : 0.0f;
      s[4 * j + 2 + e] *= (mine ? keep[e] : given) < p.keep_threshold ? p.keep_gain : 0.0f;
    }
  }
}

}  // namespace rootdk::cuda
