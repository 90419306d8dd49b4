// What the consumers of the Hopper backward have in common.
#pragma once

#include <type_traits>

#include "cuda/hopper/backward/producer.cuh"
#include "cuda/hopper/backward/wgmma.cuh"
#include "cuda/hopper/pack.cuh"
#include "cuda/common/quad.cuh"

namespace rootdk::cuda::back {

template <class Element>
__device__ __forceinline__ float2 unpack2(std::uint32_t x) {
  if constexpr (std::is_same_v<Element, __half>) return __half22float2(*reinterpret_cast<const __half2*>(&x));
  else return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

/// 64 rows of a warpgroup, of a tensor of `length` rows, from the thread's first on; where they are wanted the squares
/// of each row's norm.
template <class Element, int N>
__device__ __forceinline__ void write_rows(const View& to, int dim, std::int64_t length, int batch, int head, int first,
                                           const float (&x)[N], float scale, double* squares = nullptr) {
  if (!to.data) return;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + 8 * r;
    const bool real = row < length;
    Element* out = reinterpret_cast<Element*>(to.data) + (real ? at(to, batch, head, row) : 0);
    const bool aligned = to.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
    float square = 0;
#pragma unroll
    for (int j = 0; j < N / 4; j += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float low = x[4 * (j + n) + 2 * r] * scale, high = x[4 * (j + n) + 2 * r + 1] * scale;
        const int d = 8 * (j + n) + lane % 4 * 2;
        pairs[n] = pack2<Element>(low, high);
        if (squares) square = fmaf(low, low, fmaf(high, high, square));
        if (!aligned && real && d < dim)
          out[d * to.strides[3]] = narrow<Element>(low), out[(d + 1) * to.strides[3]] = narrow<Element>(high);
      }
      quad_transpose(pairs);
      const int d = 8 * (j + lane % 4);
      if (aligned && real && d < dim) *reinterpret_cast<uint4*>(out + d) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
    if (!squares) continue;
    square = quad_sum(square);
    if (real && lane % 4 == 0) squares[row] = square;
  }
}

/// The thread no longer reads what a barrier of the producer guards. Each says so itself, of both warpgroups: one that
/// spoke for a warp would be believed by the hardware, but not by racecheck, and costs as much.
inline constexpr int kReleases = 256;
__device__ __forceinline__ void release(std::uint32_t barrier) { barrier_arrive(barrier); }

/// threadIdx.x, read where it is needed: what is computed from it need not stay in a register.
__device__ __forceinline__ std::uint32_t thread_again() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// The same, as far as the compiler can tell another: what was computed from it before need not be kept.
__device__ __forceinline__ int again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Between the two consumer warpgroups, as one of them sees it. Each multiplies while the other is at its elementwise
/// work: who has the turn issues dQ, dK, S and dP, then passes it on. Each shows the other its dS, in two buffers, and
/// says when it no longer needs the other's.
struct Barriers {
  int group;
  __device__ __forceinline__ void take_turn() const { named_sync(1 + group, 256); }
  __device__ __forceinline__ void pass_turn() const { named_arrive(1 + (group ^ 1), 256); }
  __device__ __forceinline__ void show_scores(int buffer) const { named_arrive(3 + 2 * group + buffer, 256); }
  __device__ __forceinline__ void wait_scores(int buffer) const { named_sync(3 + 2 * (group ^ 1) + buffer, 256); }
  __device__ __forceinline__ void free_scores(int buffer) const { named_arrive(7 + 2 * group + buffer, 256); }
  __device__ __forceinline__ void wait_free(int buffer) const { named_sync(7 + 2 * (group ^ 1) + buffer, 256); }
};

/// S or dP, keys × queries, issued: 64 keys of K or V times a tile of rows of Q or dO.
template <class Tile, class Element>
__device__ __forceinline__ void multiply_scores(float (&s)[Tile::kRows / 2], std::uint64_t keys, std::uint64_t rows) {
#pragma unroll
  for (int x = 0; x < Tile::kDim / 16; ++x) {
    const int panel = x / 4, offset = x % 4 * 32;
    const std::uint64_t next_a = keys + (panel * Tile::kKeys * 128 + offset) / 16,
                        next_b = rows + (panel * Tile::kRows * 128 + offset) / 16;
    if (x == 0) FirstScores<Tile::kRows, Element>::mma(s, next_a, next_b);
    else Scores<Tile::kRows, Element>::mma(s, next_a, next_b, 1);
  }
  products_commit();
}

/// dV += Pᵀ·dO or dK += dSᵀ·Q, issued: weights in registers times a tile of rows.
template <class Tile, class Element>
__device__ __forceinline__ void multiply_rows(float (&d)[Tile::kDim / 2],
                                              const std::uint32_t (&weights)[Tile::kRows / 4], std::uint64_t rows) {
#pragma unroll
  for (int x = 0; x < Tile::kRows / 16; ++x)
    Values<Tile::kDim, Element>::mma(d, weights + 4 * x, rows + x * 16 * 128 / 16);
  products_commit();
}

/// dS = P∘(dP − D), in place of dP. `delta`: D from the thread's first two rows on; `p`: the weights at x and x + 1.
template <int N, class P>
__device__ __forceinline__ void times_difference(float (&d_p)[N], const float2* delta, const P& p) {
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    const float2 shift = delta[4 * j];
#pragma unroll
    for (int x = 4 * j; x < 4 * j + 4; x += 2) {
      const float2 weight = p(x);
      d_p[x] = weight.x * (d_p[x] - shift.x), d_p[x + 1] = weight.y * (d_p[x + 1] - shift.y);
    }
  }
}

template <int N>
__device__ __forceinline__ void multiply_all(float (&x)[N], float by) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] *= by;
}

/// Of dS, over the warp. Where a weight is zero a mask may hide the pair, and its dS is not to be looked at.
template <int N>
__device__ __forceinline__ float sum_of_squares(const float (&d_s)[N], const std::uint32_t (&weights)[N / 2]) {
  float square = 0;
#pragma unroll
  for (int x = 0; x < N; ++x)
    if ((weights[x / 2] & 0xffffu << 16 * (x % 2)) != 0) square = fmaf(d_s[x], d_s[x], square);
  return warp_sum(square);
}

/// Of pairs that a mask hides dS is zero, whatever dP and D are: P of the same two pairs says which.
template <class Element>
__device__ __forceinline__ std::uint32_t hide_gradients(std::uint32_t d_s, std::uint32_t p) {
  if constexpr (std::is_same_v<Element, __half>)
    return d_s & __hne2_mask(*reinterpret_cast<const __half2*>(&p), __half2{0, 0});
  else return d_s & __hne2_mask(*reinterpret_cast<const __nv_bfloat162*>(&p), __nv_bfloat162{0, 0});
}

/// P of a step from its scores, in place: masked where that is needed. Scores are keys × queries; `first_key` is the
/// thread's first.
template <class Tile, bool kRare, int N>
__device__ __forceinline__ void weigh(float (&s)[N], const std::uint8_t* memory, const Step& step, int q_stage,
                                      int first_key) {
  constexpr int kRows = Tile::kRows;
  const int lane = threadIdx.x % 32;
  const float scale2 = step.scale2;
  const auto* lse = reinterpret_cast<const float2*>(memory + Tile::kLse + q_stage * kRows * 4) + lane % 4;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float2 origin = lse[4 * j];
#pragma unroll
    for (int x = 0; x < 4; ++x) s[4 * j + x] = exp2_approx(fmaf(s[4 * j + x], scale2, x % 2 ? origin.y : origin.x));
  }
  const int special = step.special;  // kRare: may be more than a mask
  if (!(special & (kMasked | kGuarded))) return;
  if (kRare && special & kGuarded) {
    const int* sick = reinterpret_cast<const int*>(memory + Tile::kSick) + first_key % Tile::kKeys;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!sick[8 * r]) continue;
#pragma unroll
      for (int x = 2 * r; x < N; x += 4) s[x] = s[x + 1] = kNanF;
    }
  }
  if (!(special & kMasked)) return;
  const auto* ranges = reinterpret_cast<const int4*>(memory + Tile::kRanges + q_stage * kRows * 8) + lane % 4;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const int4 range = ranges[4 * j];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int begin = x % 2 ? range.z : range.x, end = x % 2 ? range.w : range.y, place = first_key + x / 2 * 8;
      if (place < begin || place >= end) s[4 * j + x] = 0;
    }
  }
}

}  // namespace rootdk::cuda::back
