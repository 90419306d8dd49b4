// From S and dP to P and dS, in registers: what the scale, masks, bias, ALiBi, soft-cap and dropout make of them.
#pragma once

#include "cuda/common/quad.cuh"
#include "cuda/mma/backward/shapes.cuh"
#include "cuda/mma/scores.cuh"

namespace rootdk::cuda::mma::back {

/// A step's tile of rows and keys, as its scores are made gradients.
struct Pairing {
  int b, h, first_row, first_key;  ///< of the tile
  bool masked;                     ///< some pair of it is hidden by the run of a row
  bool guarded;
  float reference;
};

/// A row's numbers and places, in shared memory; `row` counts in the tile.
template <int kRows>
struct RowArrays {
  const float* numbers;
  const int* places;
  __device__ __forceinline__ explicit RowArrays(const unsigned char* memory)
      : numbers(reinterpret_cast<const float*>(memory)),
        places(reinterpret_cast<const int*>(memory) + kRowNumbers * kRows) {}
  __device__ __forceinline__ float origin(int row) const { return numbers[kOrigin * kRows + row]; }
  __device__ __forceinline__ float delta(int row) const { return numbers[kDelta * kRows + row]; }
  __device__ __forceinline__ float scale(int row) const { return numbers[kScale * kRows + row]; }
  __device__ __forceinline__ int begin(int row) const { return places[kBegin * kRows + row]; }
  __device__ __forceinline__ int end(int row) const { return places[kEnd * kRows + row]; }
  __device__ __forceinline__ int position(int row) const { return places[kPosition * kRows + row]; }
};

/// Scores that are scaled and no more, of a head with one scale: P in place of S, dS times the scale over the reference
/// in place of dP. `sick`: of the tile's keys, from the warp's first on.
template <int kRows, int kM, int kN>
__device__ __forceinline__ void scaled_gradients(float (&s)[kM][kN][4], float (&d_p)[kM][kN][4],
                                                 const RowArrays<kRows>& rows, int row, int column, const int* sick,
                                                 const Pairing& at) {
  const int lane = thread_now() % 32;
  row += lane / 4, column += lane % 4 * 2;
  const float c = rows.scale(0), scale2 = c * kLog2E;
  const float ratio = c == at.reference ? 1 : c / at.reference;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half;
      const float origin = rows.origin(r), delta = rows.delta(r);
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int x = 2 * half; x < 2 * half + 2; ++x) {
          s[m][j][x] = exp2_fast(fmaf(s[m][j][x], scale2, origin));
          d_p[m][j][x] = s[m][j][x] * (d_p[m][j][x] - delta) * ratio;
        }
    }
  if (!at.masked && !at.guarded) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half, begin = rows.begin(r) - at.first_key, end = rows.end(r) - at.first_key;
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int x = 2 * half; x < 2 * half + 2; ++x) {
          const int key = column + 8 * j + x % 2;
          if (at.guarded && sick[key]) s[m][j][x] = d_p[m][j][x] = kNanF;
          if (at.masked && (key < begin || key >= end)) s[m][j][x] = d_p[m][j][x] = 0;
        }
    }
}

/// The same, to the bit, where d_c and d_scores of the warp's keys are wanted: `sums`, by the row of the tile.
template <int kRows, int kM, int kN>
__device__ __forceinline__ void scaled_gradients_and_sums(float (&s)[kM][kN][4], float (&d_p)[kM][kN][4],
                                                          const RowArrays<kRows>& rows, int row, int column,
                                                          const int* sick, const Pairing& at, float2* sums) {
  const int lane = thread_now() % 32;
  row += lane / 4, column += lane % 4 * 2;
  const float c = rows.scale(0), scale2 = c * kLog2E;
  const float ratio = c == at.reference ? 1 : c / at.reference;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half;
      const float origin = rows.origin(r), delta = rows.delta(r);
      float2 total = {0, 0};
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int x = 2 * half; x < 2 * half + 2; ++x) {
          const int key = column + 8 * j + x % 2;
          const bool visible = !at.masked || (key + at.first_key >= rows.begin(r) && key + at.first_key < rows.end(r));
          const float dot = s[m][j][x];
          float weight = exp2_fast(fmaf(dot, scale2, origin));
          if (at.guarded && sick[key]) weight = kNanF;
          const float d_score = visible ? weight * (d_p[m][j][x] - delta) : 0;
          if (visible) total.x = fmaf(d_score, dot, total.x);
          total.y = fmaf(d_score, d_score, total.y);
          s[m][j][x] = visible ? weight : 0, d_p[m][j][x] = d_score * ratio;
        }
      total = {quad_sum(total.x), quad_sum(total.y)};
      if (lane % 4 == 0) sums[r] = total;
    }
}

/// A bias's elements beside a row's scores. Keys from len_kv on are not read.
template <int kN>
__device__ __forceinline__ void read_bias_row(const Arguments& a, int b, int h, int i, int column,
                                              float (&bias)[kN][2]) {
  const View& t = a.f.p.bias;
  const std::int64_t row = at(t, b, h, i);
  const int len_kv = static_cast<int>(a.f.p.len_kv);
  column += thread_now() % 4 * 2;
  const auto read_as = [&]<class T>(T) {
    const T* from = reinterpret_cast<const T*>(t.data) + row;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const int key = column + 8 * j;
      struct alignas(2 * sizeof(T)) Pair {
        T first, second;
      } pair{};
      if (static_cast<Pairs>(a.bias_pairs) == Pairs::kTogether && key + 1 < len_kv) {
        pair = *reinterpret_cast<const Pair*>(from + key);
      } else {
        if (key < len_kv) pair.first = from[key * t.strides[3]];
        if (key + 1 < len_kv) pair.second = from[(key + 1) * t.strides[3]];
      }
      bias[j][0] = widen(pair.first), bias[j][1] = widen(pair.second);
    }
  };
  if (t.dtype == DType::kF32) read_as(float{});
  else if (t.dtype == DType::kBF16) read_as(__nv_bfloat16{});
  else read_as(__half{});
}

/// Of the pairs of a tile of 16 rows, as bits 4j + x: those that a boolean mask hides, and those that dropout drops.
struct PairBits {
  std::uint32_t hidden = 0, dropped = 0;
};

template <int kN>
__device__ __forceinline__ PairBits pair_bits(const Arguments& a, const Pairing& at, const int (&rows)[2], int column) {
  static_assert(kN <= 8);
  const ProblemView& p = a.f.p;
  const int heads[2] = {at.h, at.h};
  PairBits bits;
  if (p.allowed.data) {
    HiddenBlock<1, kN> hidden;
    read_allowed<1, kN>(p, static_cast<Pairs>(a.allowed_pairs), at.b, heads, rows, at.first_key + column, hidden);
    bits.hidden = static_cast<std::uint32_t>(hidden.bits[0]);
  }
  if (p.dropout) {
    const PhiloxKey seed = philox_key(p);
#pragma unroll 1
    for (int j = 0; j < kN; ++j) {
      float keep[4];
      keep_factors(p, seed, at.b, heads, rows, at.first_key + column + 8 * j, keep);
#pragma unroll
      for (int x = 0; x < 4; ++x) bits.dropped |= std::uint32_t{keep[x] == 0} << (4 * j + x);
    }
  }
  return bits;
}

/// The same of any problem. `kBare`: dS as it is of what softmax sees, which is what a bias gets. `sums`: where they
/// are wanted, d_c and d_scores of the warp's keys, by the row of the tile.
template <int kRows, bool kBare, int kM, int kN>
__device__ __forceinline__ void rich_gradients(const Arguments& a, float (&s)[kM][kN][4], float (&d_p)[kM][kN][4],
                                               const RowArrays<kRows>& rows, int row, int column, const int* sick,
                                               const Pairing& at, float2* sums) {
  const ProblemView& p = a.f.p;
  const int lane = thread_now() % 32, last_row = static_cast<int>(p.len_q) - 1;
  row += lane / 4;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    // Padding rows are some row that is there: what they get is thrown away.
    const int places[2] = {min(at.first_row + row + 16 * m, last_row), min(at.first_row + row + 16 * m + 8, last_row)};
    const PairBits bits = pair_bits<kN>(a, at, places, column);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half, begin = rows.begin(r) - at.first_key, end = rows.end(r) - at.first_key;
      const float origin = rows.origin(r), delta = rows.delta(r), c = rows.scale(r);
      const float inner = p.cap != 0 ? 1 / p.cap : 0;
      float bias[kN][2], squares = 0, d_c = 0;
      if (p.bias.data) read_bias_row<kN>(a, at.b, at.h, places[half], at.first_key + column, bias);
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int x = 2 * half + e, key = column + 8 * j + lane % 4 * 2 + e;
          const float dot = s[m][j][x];
          float score = c * dot, bend = 1;
          bool visible = (!at.masked || (key >= begin && key < end)) && !(bits.hidden >> (4 * j + x) & 1);
          if (p.cap != 0) {
            const float t = capped(score * inner);
            score = p.cap * t, bend = 1 - t * t;
          }
          if (p.slopes)
            score = fmaf(-p.slopes[at.h], fabsf(static_cast<float>(rows.position(r) - at.first_key - key)), score);
          if (p.bias.data) score += bias[j][e], visible = visible && bias[j][e] != -kInfinityF;
          float weight = exp2_fast((score + origin) * kLog2E);  // both may be as large as numbers go
          if (at.guarded && sick[key]) weight = kNanF;
          const float keep = !p.dropout ? 1 : bits.dropped >> (4 * j + x) & 1 ? 0 : p.keep_gain;
          const float d_score = visible ? weight * (keep * d_p[m][j][x] - delta) : 0;
          s[m][j][x] = visible ? weight * keep : 0;
          d_p[m][j][x] = d_score;
          if constexpr (!kBare) {
            const float d_raw = visible ? d_score * bend : 0;
            squares = fmaf(d_score, d_score, squares);
            if (visible) d_c = fmaf(d_raw, dot, d_c);
            d_p[m][j][x] = d_raw * (c == at.reference ? 1 : c / at.reference);
          }
        }
      if (kBare || !a.sums) continue;
      const float2 both = {quad_sum(d_c), quad_sum(squares)};
      if (lane % 4 == 0) sums[r] = both;
    }
  }
}

}  // namespace rootdk::cuda::mma::back
