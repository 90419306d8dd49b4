// Few query rows (decoding): vectors lie along d in the two products and along keys in between, because there are not
// enough rows to fill the lanes; every row shares one read of K and V. Scores, probabilities and outputs are row-major.
// Passes, where a problem has some, run on a transposed copy: they are those of the wide tiles.
//
// dims are multiples of the lanes. A score is the sum of its lanes' chains, added in the order of sum_lanes().
#include <hwy/highway.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(ROOTDK_CPU_PRODUCTS_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_PRODUCTS_NARROW_INL_H_
#undef ROOTDK_CPU_PRODUCTS_NARROW_INL_H_
#else
#define ROOTDK_CPU_PRODUCTS_NARROW_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/products/wide-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // one lane is no vector

// Four vectors → one, each 128-bit block of which holds the four sums over that block.
HWY_INLINE V sum_blocks(const V* v) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<F>> pairs;
  const V ab = hn::Add(hn::InterleaveLower(f32, v[0], v[1]), hn::InterleaveUpper(f32, v[0], v[1]));
  const V cd = hn::Add(hn::InterleaveLower(f32, v[2], v[3]), hn::InterleaveUpper(f32, v[2], v[3]));
  const auto x = hn::BitCast(pairs, ab), y = hn::BitCast(pairs, cd);
  return hn::Add(hn::BitCast(f32, hn::InterleaveLower(pairs, x, y)),
                 hn::BitCast(f32, hn::InterleaveUpper(pairs, x, y)));
}

#if HWY_MAX_BYTES >= 32
// Two of those → one: blocks 2i and 2i+1 of the result are the sums of blocks 2i, 2i+1 of a and of b.
HWY_INLINE V sum_block_pairs(V a, V b) {
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}
#endif

/// Lane i of the result is the sum over the lanes of v[i].
HWY_INLINE V sum_lanes(const V* v) {
  if constexpr (kLanes == 4) return sum_blocks(v);
#if HWY_MAX_BYTES >= 32
  if constexpr (kLanes == 8) return sum_block_pairs(sum_blocks(v), sum_blocks(v + 4));
#endif
#if HWY_MAX_BYTES >= 64
  if constexpr (kLanes == 16) {
    const V low = sum_block_pairs(sum_blocks(v), sum_blocks(v + 4)),
            high = sum_block_pairs(sum_blocks(v + 8), sum_blocks(v + 12));
    return hn::Add(hn::ConcatLowerLower(f32, high, low), hn::ConcatUpperUpper(f32, high, low));
  }
#endif
}

// A vector of stored elements as f32.
HWY_INLINE V load_stored(const float* from) { return hn::LoadU(f32, from); }
HWY_INLINE V load_stored(const hwy::bfloat16_t* from) {
  return hn::PromoteTo(f32, hn::LoadU(hn::Rebind<hwy::bfloat16_t, F>(), from));
}
HWY_INLINE V load_stored(const hwy::float16_t* from) {
  return hn::PromoteTo(f32, hn::LoadU(hn::Rebind<hwy::float16_t, F>(), from));
}

// K and V come from memory in order and once; what needs them again finds them in L1. Fetching them is left to the
// hardware (docs/notebook/cpu.md says what was compared).

// sum[r] += q[r]·k over J vectors.
template <int R, int J, class T>
HWY_INLINE void dot_part(const float* HWY_RESTRICT q, std::size_t q_stride, const T* HWY_RESTRICT k,
                         V* HWY_RESTRICT sum) {
  ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
    const V y = load_stored(k + j * kLanes);
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) sum[r] =
        hn::MulAdd(hn::Load(f32, q + static_cast<std::size_t>(r) * q_stride + j * kLanes), y, sum[r]);
  }
}

template <int R, class T>
HWY_INLINE void dot(const float* q, const T* k, std::size_t dim, V* sum) {
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) sum[r] = hn::Zero(f32);
  std::size_t d = 0;
  for (; d + 8 * kLanes <= dim; d += 8 * kLanes) dot_part<R, 8>(q + d, dim, k + d, sum);
  if (d + 4 * kLanes <= dim) dot_part<R, 4>(q + d, dim, k + d, sum), d += 4 * kLanes;
  for (; d < dim; d += kLanes) dot_part<R, 1>(q + d, dim, k + d, sum);
}

/// s[row][key] for R rows, kLanes/R keys at a time: as many dot products as lanes.
template <int R, class T>
HWY_INLINE void narrow_score_rows(const float* q, const T* k, std::size_t k_stride, std::size_t keys, std::size_t dim,
                                  float* s, std::size_t s_stride) {
  constexpr std::size_t kKeys = kLanes / R;
  alignas(64) float sums[kLanes];
  V acc[kLanes], key_sums[R];
  std::size_t n = 0;
  for (; n + kKeys <= keys; n += kKeys) {
    ROOTDK_UNROLL for (std::size_t i = 0; i < kKeys; ++i) {
      dot<R>(q, k + (n + i) * k_stride, dim, key_sums);
      ROOTDK_UNROLL for (std::size_t r = 0; r < R; ++r) acc[r * kKeys + i] = key_sums[r];
      std::atomic_signal_fence(std::memory_order_seq_cst);  // compilers must not mix the keys' loads
    }
    hn::Store(sum_lanes(acc), f32, sums);
    ROOTDK_UNROLL for (std::size_t r = 0; r < R; ++r)
        std::memcpy(s + r * s_stride + n, sums + r * kKeys, kKeys * sizeof(float));
  }
  for (; n < keys; ++n) {
    ROOTDK_UNROLL for (int i = R; i < kLanes; ++i) acc[i] = hn::Zero(f32);
    dot<R>(q, k + n * k_stride, dim, acc);
    hn::Store(sum_lanes(acc), f32, sums);
    ROOTDK_UNROLL for (std::size_t r = 0; r < R; ++r) s[r * s_stride + n] = sums[r];
  }
}

#if HWY_MAX_BYTES >= 64
// q[r]·k[i] for two rows and four keys, as the half of a sum_lanes() of 16. The queries stay in registers, so that keys
// can be the operands from memory: that overlaps with fetching them, the other way round does not
// (docs/notebook/cpu.md).
template <int kVectors, class T>
HWY_INLINE V pair_scores(const float* HWY_RESTRICT q, const T* HWY_RESTRICT k, std::size_t k_stride) {
  V row[2][kVectors], acc[8];
  ROOTDK_UNROLL for (int r = 0; r < 2; ++r) {
    ROOTDK_UNROLL for (int j = 0; j < kVectors; ++j) row[r][j] = hn::Load(f32, q + (r * kVectors + j) * kLanes);
  }
  ROOTDK_UNROLL for (std::size_t i = 0; i < 4; ++i) {
    V sum[2] = {hn::Zero(f32), hn::Zero(f32)};
    ROOTDK_UNROLL for (int j = 0; j < kVectors; ++j) {
      const V y = load_stored(k + i * k_stride + static_cast<std::size_t>(j) * kLanes);
      ROOTDK_UNROLL for (int r = 0; r < 2; ++r) sum[r] = hn::MulAdd(row[r][j], y, sum[r]);
    }
    acc[i] = sum[0], acc[4 + i] = sum[1];
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // compilers must not mix the keys' loads, nor load the queries again
  }
  return sum_block_pairs(sum_blocks(acc), sum_blocks(acc + 4));
}

/// narrow_score_rows<4> of whole fours of keys, dim = kVectors·16.
template <int kVectors, class T>
HWY_INLINE void narrow_score_fours(const float* q, const T* k, std::size_t k_stride, std::size_t keys, float* s,
                                   std::size_t s_stride) {
  alignas(64) float sums[kLanes];
  for (std::size_t n = 0; n < keys; n += 4) {
    const V low = pair_scores<kVectors>(q, k + n * k_stride, k_stride);
    const V high = pair_scores<kVectors>(q + 2 * kVectors * kLanes, k + n * k_stride, k_stride);
    hn::Store(hn::Add(hn::ConcatLowerLower(f32, high, low), hn::ConcatUpperUpper(f32, high, low)), f32, sums);
    ROOTDK_UNROLL for (std::size_t r = 0; r < 4; ++r)
        std::memcpy(s + r * s_stride + n, sums + r * 4, 4 * sizeof(float));
  }
}
#endif

/// s[row][key] of up to min(8, lanes) rows of q, [rows][dim].
template <class T>
HWY_INLINE void narrow_scores(const float* q, std::size_t rows, const T* k, std::size_t k_stride, std::size_t keys,
                              std::size_t dim, float* HWY_RESTRICT s, std::size_t s_stride) {
  const auto all_rows = [&](auto size) HWY_ATTR {
    std::size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      std::size_t done = 0;
#if HWY_MAX_BYTES >= 64
      if constexpr (!std::is_same_v<decltype(size), std::size_t>) {
        done = keys / 4 * 4;
        narrow_score_fours<decltype(size)::value / kLanes>(q + r * size, k, k_stride, done, s + r * s_stride, s_stride);
      }
#endif
      narrow_score_rows<4>(q + r * size, k + done * k_stride, k_stride, keys - done, size, s + r * s_stride + done,
                           s_stride);
    }
    for (; r + 2 <= rows; r += 2)
      narrow_score_rows<2>(q + r * size, k, k_stride, keys, size, s + r * s_stride, s_stride);
    if (r < rows) narrow_score_rows<1>(q + r * size, k, k_stride, keys, size, s + r * s_stride, s_stride);
  };
  switch (dim) {  // a known size unrolls completely
    case 64: all_rows(std::integral_constant<std::size_t, 64>()); break;
    case 128: all_rows(std::integral_constant<std::size_t, 128>()); break;
    default: all_rows(dim);
  }
}

// R rows × J vectors of the output.
template <int R, int J, Guard kGuard, class T>
HWY_INLINE void narrow_sum_tile(const float* HWY_RESTRICT p, std::size_t p_stride, const T* HWY_RESTRICT v,
                                std::size_t v_stride, std::size_t keys, const float* HWY_RESTRICT rescale,
                                float* HWY_RESTRICT o, std::size_t o_stride) {
  V acc[R][J];
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    const V shrink = hn::Set(f32, rescale[r]);
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] =
        hn::Mul(hn::Load(f32, o + static_cast<std::size_t>(r) * o_stride + j * kLanes), shrink);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    if constexpr (kGuard == Guard::kOn) {
      ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
        const float weight = p[static_cast<std::size_t>(r) * p_stride + k];
        if (weight == 0) continue;
        const V w = hn::Set(f32, weight);
        ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] =
            hn::MulAdd(w, load_stored(v + k * v_stride + j * kLanes), acc[r][j]);
      }
    } else if constexpr (std::is_same_v<T, float>) {  // V as an operand of every multiply-add
      ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
        const V w = hn::Set(f32, p[static_cast<std::size_t>(r) * p_stride + k]);
        ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] =
            hn::MulAdd(w, load_stored(v + k * v_stride + j * kLanes), acc[r][j]);
        std::atomic_signal_fence(std::memory_order_seq_cst);  // or compilers would load it once, into a register
      }
    } else {  // a vector of V at a time: registers are full
      ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
        const V x = load_stored(v + k * v_stride + j * kLanes);
        ROOTDK_UNROLL for (int r = 0; r < R; ++r) acc[r][j] =
            hn::MulAdd(hn::Set(f32, p[static_cast<std::size_t>(r) * p_stride + k]), x, acc[r][j]);
      }
    }
  }
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    ROOTDK_UNROLL for (int j = 0; j < J; ++j)
        hn::Store(acc[r][j], f32, o + static_cast<std::size_t>(r) * o_stride + j * kLanes);
  }
}

template <int R, Guard kGuard, class T>
struct NarrowSumTiles {
  const float* p;
  std::size_t p_stride;
  const T* v;
  std::size_t v_stride, keys;
  const float* rescale;
  float* o;
  std::size_t o_stride;
  template <int J>
  HWY_INLINE void run(std::size_t j) const {
    narrow_sum_tile<R, J, kGuard, T>(p, p_stride, v + j * kLanes, v_stride, keys, rescale, o + j * kLanes, o_stride);
  }
};

/// O[row][dim] = O·rescale[row] + Σ_k p[row][key]·V[key].
template <Guard kGuard, class T>
HWY_INLINE void narrow_weighted_sum(const float* p, std::size_t p_stride, std::size_t rows, const T* v,
                                    std::size_t v_stride, std::size_t keys, std::size_t dim, const float* rescale,
                                    float* o) {
  // As many rows of O as registers hold take nearly whole rows of V in one go; what is left over finds them in L1,
  // where a few keys fit.
  constexpr std::size_t kFew = 16;
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  for (std::size_t k = 0; k < keys; k += kFew) {
    const std::size_t here = keys - k < kFew ? keys - k : kFew;
    const float* shrink = k == 0 ? rescale : ones;
    const auto tiles = [&](auto row_count, auto vectors, std::size_t r) HWY_ATTR {
      constexpr int R = decltype(row_count)::value, J = decltype(vectors)::value;
      cover<J>(dim / kLanes, NarrowSumTiles<R, kGuard, T>{p + r * p_stride + k, p_stride, v + k * v_stride, v_stride,
                                                          here, shrink + r, o + r * dim, dim});
    };
    std::size_t r = 0;
    for (; r + 4 <= rows; r += 4)
      tiles(std::integral_constant<int, 4>(), std::integral_constant < int,
            kMr != 4                   ? 3
            : std::is_same_v<T, float> ? 7
                                       : 6 > (),
            r);
    for (; r + 2 <= rows; r += 2)
      tiles(std::integral_constant<int, 2>(), std::integral_constant < int, kMr == 4 ? 8 : 4 > (), r);
    if (r < rows) tiles(std::integral_constant<int, 1>(), std::integral_constant<int, 8>(), r);
  }
}

#endif

/// Storage that narrow tiles read as it lies. (Highway's f16 conversion knows no Inf and NaN where the hardware has
/// none.)
HWY_INLINE bool narrow_reads(DType dtype) {
  constexpr bool kHardwareF16 = HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86;
  return dtype == DType::kF32 || dtype == DType::kBF16 || (dtype == DType::kF16 && kHardwareF16);
}

template <int MR>
HWY_INLINE void largest_of(const float* HWY_RESTRICT s, std::size_t keys, V* largest) {
  for (std::size_t k = 0; k < keys; ++k)
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) largest[m] =
        hn::Max(largest[m], hn::Load(f32, s + (k * MR + static_cast<std::size_t>(m)) * kLanes));
}

HWY_INLINE Ahead rows_of(const StoredMatrix& x, std::size_t from = 0) {
  const std::size_t row_bytes = x.stride * static_cast<std::size_t>(size_of(x.dtype));
  return {static_cast<const char*>(x.data) + from * row_bytes, row_bytes};
}

#if HWY_TARGET != HWY_SCALAR
/// Calls f with the stored elements as what they are.
template <class F>
HWY_INLINE void with_elements(const StoredMatrix& x, const F& f) {
  switch (x.dtype) {
    case DType::kF16: f(static_cast<const hwy::float16_t*>(x.data)); break;
    case DType::kBF16: f(static_cast<const hwy::bfloat16_t*>(x.data)); break;
    default: f(static_cast<const float*>(x.data)); break;
  }
}

/// s[row][key] of a narrow tile: q is row-major, k as stored.
HWY_INLINE void narrow_scores(const float* q, std::size_t rows, const StoredMatrix& k, std::size_t keys,
                              std::size_t dim, float* s, std::size_t s_stride) {
  with_elements(k, [&](const auto* data) HWY_ATTR { narrow_scores(q, rows, data, k.stride, keys, dim, s, s_stride); });
}

template <Guard kGuard>
HWY_INLINE void narrow_weighted_sum(const float* p, std::size_t p_stride, std::size_t rows, const StoredMatrix& v,
                                    std::size_t keys, std::size_t dim, const float* rescale, float* o) {
  with_elements(v, [&](const auto* data) HWY_ATTR {
    narrow_weighted_sum<kGuard>(p, p_stride, rows, data, v.stride, keys, dim, rescale, o);
  });
}

/// Turns a row's scores into e^{s−m} and moves its maximum; returns what older sums shrink by. Keys beyond `keys`, up
/// to a whole vector, are overwritten with 0.
HWY_INLINE float narrow_softmax(float* HWY_RESTRICT s, std::size_t keys, float& max, float& sum) {
  const V log2e = hn::Set(f32, kLog2E);
  const std::size_t padded = (keys + kLanes - 1) / kLanes * kLanes;
  for (std::size_t k = keys; k < padded; ++k) s[k] = -std::numeric_limits<float>::infinity();
  V largest = hn::Set(f32, max);
  for (std::size_t k = 0; k < padded; k += kLanes) largest = hn::Max(largest, hn::Load(f32, s + k));
  alignas(64) float lanes[kLanes];  // Highway's emulated MaxOfLanes knows nothing below the lowest finite number
  hn::Store(largest, f32, lanes);
  const float old = max;
  for (const float x : lanes) max = x > max ? x : max;
  const V shift = hn::Set(f32, max == -std::numeric_limits<float>::infinity() ? 0.0f : max);
  V total = hn::Zero(f32);
  for (std::size_t k = 0; k < padded; k += kLanes) {
    const V p = exp2(hn::Mul(hn::Sub(hn::Load(f32, s + k), shift), log2e));
    hn::Store(p, f32, s + k);
    total = hn::Add(total, p);
  }
  const float rescale = hn::GetLane(exp2(hn::Mul(hn::Sub(hn::Set(f32, old), shift), log2e)));
  sum = sum * rescale + hn::GetLane(hn::SumOfLanes(f32, total));
  return rescale;
}
#else  // one lane is no vector, and plans are never narrow
HWY_INLINE void narrow_scores(const float*, std::size_t, const StoredMatrix&, std::size_t, std::size_t, float*,
                              std::size_t) {}
template <Guard kGuard>
HWY_INLINE void narrow_weighted_sum(const float*, std::size_t, std::size_t, const StoredMatrix&, std::size_t,
                                    std::size_t, const float*, float*) {}
HWY_INLINE float narrow_softmax(float*, std::size_t, float&, float&) { return 0; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
