// What a kernel must know of a query row and of a score: which keys it sees, its scale, and the way of a score from q·k
// to softmax. Rules that the CPU has, too, are base's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/constants.h"
#include "base/dropout.h"
#include "base/length_rules.h"
#include "base/row_state.h"
#include "cuda/common/view.h"

namespace rootdk::cuda {

using base::is_sampled, base::kLn2, base::kLog2E, base::philox, base::PhiloxKey, base::with_sink;
using SinkShare = base::SinkResult<float>;

inline constexpr float kInfinityF = __builtin_huge_valf(), kNanF = __builtin_nanf("");

template <class T>
__device__ inline float widen(T x) {
  return static_cast<float>(x);
}

template <class T>
__device__ inline T narrow(float x) {
  return static_cast<T>(x);
}

__device__ inline float read(const View& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::kF16: return widen(reinterpret_cast<const __half*>(t.data)[offset]);
    case DType::kBF16: return widen(reinterpret_cast<const __nv_bfloat16*>(t.data)[offset]);
    default: return reinterpret_cast<const float*>(t.data)[offset];
  }
}

__device__ inline void write(const View& t, std::int64_t offset, float value) {
  switch (t.dtype) {
    case DType::kF16: reinterpret_cast<__half*>(t.data)[offset] = __float2half_rn(value); break;
    case DType::kBF16: reinterpret_cast<__nv_bfloat16*>(t.data)[offset] = __float2bfloat16_rn(value); break;
    default: reinterpret_cast<float*>(t.data)[offset] = value; break;
  }
}

__device__ inline std::int64_t at(const View& t, std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d = 0) {
  return b * t.strides[0] + h * t.strides[1] + l * t.strides[2] + d * t.strides[3];
}

/// One value per row, where it is wanted.
__device__ inline void write_row(const View& t, std::int64_t b, std::int64_t h, std::int64_t i, float value) {
  if (t.data) write(t, at(t, b, h, i), value);
}

/// The run of keys that structural masks leave a row.
using QueryRow = base::KeyRange;

template <class Int>
__device__ inline QueryRow visible_keys(const ProblemView& p, std::int64_t b, Int i) {
  return base::visible_keys(p, b, static_cast<std::int64_t>(i));
}

/// The same for kernels that take no padding (base::has_padding), and need not ask for it.
template <class Int>
__device__ inline base::KeyRangeOf<Int> unpadded_keys(const ProblemView& p, std::int64_t b, Int i) {
  return base::visible_keys<base::MaskParts::kUnpadded>(p, b, i);
}

__device__ inline double factor_of(const ProblemView& p, std::int64_t h) {
  return p.factor ? p.factor[h] : p.factor_of_all;
}

/// The length rule's part of c.
__device__ inline double length_factor(const ProblemView& p, std::int64_t h, const QueryRow& row) {
  return base::length_factor(
      p.length, row, [&] { return p.log_n_gain[h]; }, [&] { return p.log_n_offset[h]; });
}

__device__ inline double scale_of(const ProblemView& p, std::int64_t h, const QueryRow& row) {
  return factor_of(p, h) * length_factor(p, h, row);
}

/// Offset of key j's first element.
__device__ inline std::int64_t key_offset(const ProblemView& p, const View& t, std::int64_t b, std::int64_t kv_head,
                                          std::int64_t j) {
  if (!p.pages) return at(t, b, kv_head, j);
  return at(t, p.pages[b * p.pages_per_item + j / p.page_size], kv_head, j % p.page_size);
}

struct Score {
  float raw, score, slope;
  bool visible;
};

/// From q·k to what softmax sees, of a key inside the row's run.
__device__ inline Score score_of(const ProblemView& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
                                 const QueryRow& row, float c, float dot) {
  Score s{c * dot, 0, 1, true};
  if (p.allowed.data && p.allowed.data[at(p.allowed, b, h, i, j)] == 0) s.visible = false;
  float bias = 0;
  if (p.bias.data) bias = read(p.bias, at(p.bias, b, h, i, j));
  if (bias == -kInfinityF) s.visible = false;
  if (p.slopes) bias -= p.slopes[h] * static_cast<float>(llabs(row.position - j));
  s.score = s.raw;
  if (p.cap != 0) {
    const float t = tanhf(s.score / p.cap);
    s.score = p.cap * t;
    s.slope = 1 - t * t;
  }
  s.score += bias;
  return s;
}

/// To be asked once, not for every score: the seed may lie in memory.
__device__ inline PhiloxKey philox_key(const ProblemView& p) {
  if (!p.dropout || !p.seed) return {p.seed_low, p.seed_high};
  return base::philox_key(*p.seed);
}

/// What dropout multiplies a probability by.
__device__ inline float keep_factor(const ProblemView& p, const PhiloxKey& key, std::int64_t b, std::int64_t h,
                                    std::int64_t i, std::int64_t j) {
  if (!p.dropout) return 1;
  return base::dropout_word(key, b, h, i, j) < p.keep_threshold ? p.keep_gain : 0.0f;
}

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// NaN loses.
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

__device__ inline float warp_min(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fminf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// The table's formulas of rows, as base::kFullRowTensors has them.
__device__ inline void write_full_rows(const ForwardView& f, std::int64_t b, std::int64_t h, std::int64_t i,
                                       bool sampled, std::int32_t visible, const base::FullRecord& full) {
  const double nan = __longlong_as_double(0x7ff8000000000000ll), n = visible;
  const auto of_keys = [&](std::int32_t keys, double x) { return keys > 0 ? x : nan; };
  const auto variance = [&](std::int32_t keys, double m2) { return keys > 1 ? m2 / (n - 1) : 0; };
#define ROOTDK_FULL_ROW(merges, name, formula, doc) const double value_of_##name = static_cast<double>(formula);
#include "rootdk/statistics.def"
#define ROOTDK_FULL_ROW(merges, name, formula, doc) \
  write_row(f.full_rows.name, b, h, i, static_cast<float>(sampled ? value_of_##name : nan));
#include "rootdk/statistics.def"
}

}  // namespace rootdk::cuda
