// From q·k to what softmax sees, in the registers that products leave: score_of of cuda/common/rows.cuh, a pass over
// the block for each thing that is there. A hidden key is −∞ from the first pass on.
//
// s[m][j][x]: kM tiles of 16 query rows by kN of 8 keys. Element x is in row 2m + x / 2 of the thread's rows (they lie
// 8 apart) and key first_key + 8j + 2 · (lane % 4) + x % 2. "Row r" below is of the thread's 2 · kM rows.
//
// Order: read_pairs before the product (so that bias and mask are on their way meanwhile), then scale, hide where the
// block is at the end of a run, hide_pairs, raw maxima, cap, ALiBi, add_pairs; dropout on weights, last.
#pragma once

#include "cuda/common/rows.cuh"
#include "cuda/mma/instructions.cuh"

namespace rootdk::cuda::mma {

/// What the passes must know of a thread's rows. Of padding rows `real` is false, and b, h and i are those of some row
/// that is there: arrays can be read, results are thrown away.
template <int kRows>
struct ThreadRows {
  int begin[kRows], end[kRows], position[kRows];  ///< the run of keys
  int h[kRows], i[kRows];
  float c[kRows], slope[kRows];  ///< scale, and ALiBi's slope
  bool real[kRows];
};

/// f(value, row, key).
template <int kM, int kN, class F>
__device__ __forceinline__ void each_score(float (&s)[kM][kN][4], int first_key, const F& f) {
  const int column = first_key + 2 * (thread_now() % 4);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) f(s[m][j][x], 2 * m + x / 2, column + 8 * j + x % 2);
}

/// Keys outside a row's run.
template <int kM, int kN>
__device__ __forceinline__ void hide(float (&s)[kM][kN][4], const int (&begin)[2 * kM], const int (&end)[2 * kM],
                                     int first_key) {
  each_score(s, first_key, [&](float& x, int r, int key) {
    if (static_cast<unsigned>(key - begin[r]) >= static_cast<unsigned>(end[r] - begin[r])) x = -kInfinityF;
  });
}

/// How two neighbouring keys' elements of a bias or boolean mask are read, by its strides and address.
enum class Pairs : unsigned char { kAbsent, kTogether, kOneByOne };
inline Pairs pairs_of(const View& t) {
  if (!t.data) return Pairs::kAbsent;
  const unsigned size = t.dtype == DType::kF32 ? 4 : t.dtype == DType::kBool ? 1 : 2;
  bool together = t.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % (2 * size) == 0;
  for (int axis = 0; axis < 3; ++axis) together = together && t.strides[axis] % 2 == 0;
  return together ? Pairs::kTogether : Pairs::kOneByOne;
}

/// Elements of a bias beside the scores that they belong to.
template <int kM, int kN>
struct BiasBlock {
  float x[kM][kN][4];
};
/// Of a boolean mask: bits 4j + x of row tile m, set where a key is hidden.
template <int kM, int kN>
struct HiddenBlock {
  static_assert(kN <= 16);
  std::uint64_t bits[kM];
  __device__ __forceinline__ bool hides(int m, int j, int x) const { return bits[m] >> (4 * j + x) & 1; }
};

/// of[r] is the element offset of row r at key 0. Keys from len_kv on are not read.
template <int kM, int kN, class Element, class Convert, class Put>
__device__ __forceinline__ void read_pairs(const View& t, Pairs pairs, const std::int64_t (&of)[2 * kM], int first_key,
                                           int len_kv, const Convert& convert, const Put& put) {
  const int column = first_key + 2 * (thread_now() % 4);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Element* row = reinterpret_cast<const Element*>(t.data) + of[2 * m + half];
      struct alignas(2 * sizeof(Element)) Pair {
        Element first, second;
      };
      if (pairs == Pairs::kTogether && first_key + 8 * kN <= len_kv) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          const Pair pair = *reinterpret_cast<const Pair*>(row + column + 8 * j);
          put(m, j, 2 * half, convert(pair.first)), put(m, j, 2 * half + 1, convert(pair.second));
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = column + 8 * j + e;
          Element x{};
          if (key < len_kv) x = row[key * t.strides[3]];
          put(m, j, 2 * half + e, convert(x));
        }
    }
}

template <int kM, int kN>
__device__ __forceinline__ void read_bias(const ProblemView& p, Pairs pairs, int b, const int (&h)[2 * kM],
                                          const int (&i)[2 * kM], int first_key, BiasBlock<kM, kN>& out) {
  std::int64_t of[2 * kM];
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) of[r] = at(p.bias, b, h[r], i[r]);
  const auto put = [&](int m, int j, int x, float value) { out.x[m][j][x] = value; };
  const int len_kv = static_cast<int>(p.len_kv);
  if (p.bias.dtype == DType::kF32)
    read_pairs<kM, kN, float>(
        p.bias, pairs, of, first_key, len_kv, [](float x) { return x; }, put);
  else if (p.bias.dtype == DType::kBF16)
    read_pairs<kM, kN, __nv_bfloat16>(p.bias, pairs, of, first_key, len_kv, widen<__nv_bfloat16>, put);
  else read_pairs<kM, kN, __half>(p.bias, pairs, of, first_key, len_kv, widen<__half>, put);
}

template <int kM, int kN>
__device__ __forceinline__ void read_allowed(const ProblemView& p, Pairs pairs, int b, const int (&h)[2 * kM],
                                             const int (&i)[2 * kM], int first_key, HiddenBlock<kM, kN>& out) {
  std::int64_t of[2 * kM];
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) of[r] = at(p.allowed, b, h[r], i[r]);
#pragma unroll
  for (int m = 0; m < kM; ++m) out.bits[m] = 0;
  read_pairs<kM, kN, unsigned char>(
      p.allowed, pairs, of, first_key, static_cast<int>(p.len_kv), [](unsigned char x) { return x == 0; },
      [&](int m, int j, int x, bool hidden) { out.bits[m] |= std::uint64_t{hidden} << (4 * j + x); });
}

template <int kM, int kN>
__device__ __forceinline__ void hide_pairs(float (&s)[kM][kN][4], const HiddenBlock<kM, kN>& hidden) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        if (hidden.hides(m, j, x)) s[m][j][x] = -kInfinityF;
}

/// A bias of −∞ hides, whatever the score.
template <int kM, int kN>
__device__ __forceinline__ void hide_pairs(float (&s)[kM][kN][4], const BiasBlock<kM, kN>& bias) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        if (bias.x[m][j][x] == -kInfinityF) s[m][j][x] = -kInfinityF;
}

/// To scores that are not hidden.
template <int kM, int kN>
__device__ __forceinline__ void add_pairs(float (&s)[kM][kN][4], const BiasBlock<kM, kN>& bias) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        if (s[m][j][x] != -kInfinityF) s[m][j][x] += bias.x[m][j][x];
}

/// tanh, off by some 1e-7: two special functions. The hardware's own tanh is off by 5e-4, which a cap multiplies.
__device__ __forceinline__ float capped(float x) {
  // Near 0 the quotient loses digits against x: there a minimax polynomial of tanh(x) / x in x².
  const float u = x * x;
  const float small = x * fmaf(fmaf(fmaf(-0.04440220072865486f, u, 0.13190296292304993f), u, -0.33326318860054016f), u,
                               0.999999463558197f);
  const float large = 1 - 2 * reciprocal_fast(1 + exp2_fast(2 * kLog2E * x));
  return u <= 0.25f ? small : large;
}

/// cap · tanh(s / cap), of scores that are not hidden.
template <int kM, int kN>
__device__ __forceinline__ void cap_scores(float (&s)[kM][kN][4], float cap) {
  const float inner = 1 / cap;
  each_score(s, 0, [&](float& x, int, int) { x = x == -kInfinityF ? x : cap * capped(x * inner); });
}

/// ALiBi: what lies farther away scores less.
template <int kM, int kN>
__device__ __forceinline__ void add_slopes(float (&s)[kM][kN][4], const float (&slope)[2 * kM],
                                           const int (&position)[2 * kM], int first_key) {
  each_score(s, first_key,
             [&](float& x, int r, int key) { x = fmaf(-slope[r], fabsf(static_cast<float>(position[r] - key)), x); });
}

/// What dropout multiplies the weights of eight keys by: keep[x] beside s[m][j][x], for rows r and r + 1 of the thread.
/// One call of Philox serves four keys of a row, which two lanes share: each draws one row's numbers and gives the
/// other its half. All lanes of a warp take part. first_key is a multiple of 8.
__device__ __forceinline__ void keep_factors(const ProblemView& p, const PhiloxKey& key, int b, const int (&h)[2],
                                             const int (&i)[2], int first_key, float (&keep)[4]) {
  const int t = thread_now() % 4;
  const bool second = t % 2 != 0;
  std::uint32_t x[4] = {static_cast<std::uint32_t>(first_key / 4 + t / 2),
                        static_cast<std::uint32_t>(second ? i[1] : i[0]),
                        static_cast<std::uint32_t>(second ? h[1] : h[0]), static_cast<std::uint32_t>(b)};
  philox(key, x);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const std::uint32_t mine = second ? x[2 + e] : x[e], given = __shfl_xor_sync(~0u, second ? x[e] : x[2 + e], 1);
    keep[e] = (second ? given : mine) < p.keep_threshold ? p.keep_gain : 0.0f;
    keep[2 + e] = (second ? mine : given) < p.keep_threshold ? p.keep_gain : 0.0f;
  }
}

/// Dropout of weights.
template <int kM, int kN>
__device__ __forceinline__ void drop(const ProblemView& p, const PhiloxKey& key, int b, const int (&h)[2 * kM],
                                     const int (&i)[2 * kM], int first_key, float (&w)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int heads[2] = {h[2 * m], h[2 * m + 1]}, rows[2] = {i[2 * m], i[2 * m + 1]};
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      float keep[4];
      keep_factors(p, key, b, heads, rows, first_key + 8 * j, keep);
#pragma unroll
      for (int x = 0; x < 4; ++x) w[m][j][x] *= keep[x];
    }
  }
}

}  // namespace rootdk::cuda::mma
