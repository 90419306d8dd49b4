// The two products for few query rows (decoding): vectors lie along d, because there are not enough rows to fill the lanes,
// and every row shares one read of K and V. Scores still come out as [key][lane = row], so passes, softmax and statistics are
// those of the wide tiles; the output is row-major, [row][dim_v].
//
// dims are multiples of the lanes. A score is the sum of its lanes' chains, added in the order of sum_lanes().
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#if defined(ROOTDK_CPU_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_NARROW_INL_H_
#undef ROOTDK_CPU_NARROW_INL_H_
#else
#define ROOTDK_CPU_NARROW_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/micro-inl.h"
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
  return hn::Add(hn::BitCast(f32, hn::InterleaveLower(pairs, x, y)), hn::BitCast(f32, hn::InterleaveUpper(pairs, x, y)));
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
    const V low = sum_block_pairs(sum_blocks(v), sum_blocks(v + 4)), high = sum_block_pairs(sum_blocks(v + 8), sum_blocks(v + 12));
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

/// Where the keys are. What comes from memory is read strictly in order, one key after the other, as the hardware's prefetchers
/// like it; what another row has brought into the cache is read a few keys at a time, to use each load of q again.
enum class From : bool { kMemory, kCache };

// R rows × kLanes/R keys: as many dot products as lanes.
template <int R, From kFrom, class T>
HWY_INLINE void narrow_score_tile(const float* const* q, const T* const* k, std::size_t dim, const Ahead& ahead, std::size_t first,
                                  float* HWY_RESTRICT out) {
  constexpr int kKeys = kLanes / R;
  V acc[kLanes];
  constexpr int kTogether = kFrom == From::kMemory ? 1 : kKeys < 4 ? kKeys : 4;
  ROOTDK_UNROLL for (int i = 0; i < kLanes; ++i) acc[i] = hn::Zero(f32);
  ROOTDK_UNROLL for (int n0 = 0; n0 < kKeys; n0 += kTogether) {
    for (std::size_t d = 0; d < dim; d += kLanes) {
      V x[R];
      ROOTDK_UNROLL for (int r = 0; r < R; ++r) x[r] = hn::Load(f32, q[r] + d);
      ROOTDK_UNROLL for (int n = n0; n < n0 + kTogether; ++n) {
        const V y = load_stored(k[n] + d);
        if (kFrom == From::kMemory && ahead.data) ahead.fetch(first + static_cast<std::size_t>(n), d * sizeof(T));
        ROOTDK_UNROLL for (int r = 0; r < R; ++r) acc[n * R + r] = hn::MulAdd(x[r], y, acc[n * R + r]);
      }
    }
  }
  hn::Store(sum_lanes(acc), f32, out);
}

/// S[key][first_row …] for R rows.
template <int R, From kFrom, class T>
HWY_INLINE void narrow_score_rows(const float* const* q, const T* k, std::size_t k_stride, std::size_t keys, std::size_t dim,
                                  const Ahead& ahead, float* s) {
  constexpr std::size_t kKeys = kLanes / R;
  alignas(64) float sums[kLanes];
  const T* rows[kKeys];
  for (std::size_t n = 0; n < keys; n += kKeys) {
    const std::size_t here = keys - n < kKeys ? keys - n : kKeys;
    for (std::size_t i = 0; i < kKeys; ++i) rows[i] = k + (n + (i < here ? i : 0)) * k_stride;  // a tail repeats a key
    narrow_score_tile<R, kFrom, T>(q, rows, dim, ahead, n, sums);
    for (std::size_t i = 0; i < here; ++i) std::memcpy(s + (n + i) * kLanes, sums + i * R, R * sizeof(float));
  }
}

/// Scores of up to min(8, lanes) rows of q, [rows][dim]; lanes beyond them hold finite numbers that nobody reads.
template <class T>
HWY_INLINE void narrow_scores(const float* q, std::size_t rows, const T* k, std::size_t k_stride, std::size_t keys,
                              std::size_t dim, const Ahead& ahead, float* HWY_RESTRICT s) {
  if (rows < kLanes) std::memset(s, 0, keys * kLanes * sizeof(float));
  const float* at[4];
  std::size_t r = 0;
  while (r < rows) {
    for (std::size_t i = 0; i < 4; ++i) at[i] = q + (r + i < rows ? r + i : r) * dim;
    const std::size_t left = rows - r;
    if (left >= 3) {  // a fourth row that is none writes to a lane that is none
      if (r == 0) narrow_score_rows<4, From::kMemory>(at, k, k_stride, keys, dim, ahead, s + r);
      else narrow_score_rows<4, From::kCache>(at, k, k_stride, keys, dim, ahead, s + r);
    } else if (left == 2) {
      narrow_score_rows<2, From::kMemory>(at, k, k_stride, keys, dim, ahead, s + r);
    } else {
      narrow_score_rows<1, From::kMemory>(at, k, k_stride, keys, dim, ahead, s + r);
    }
    r += left >= 3 ? 4 : left;
  }
}

// R rows × J vectors of the output.
template <int R, int J, Guard kGuard, class T>
HWY_INLINE void narrow_sum_tile(const float* HWY_RESTRICT p, const T* HWY_RESTRICT v, std::size_t v_stride, std::size_t keys, const Ahead& ahead,
                                const float* HWY_RESTRICT rescale, float* HWY_RESTRICT o, std::size_t o_stride) {
  V acc[R][J];
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    const V shrink = hn::Set(f32, rescale[r]);
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] = hn::Mul(hn::Load(f32, o + static_cast<std::size_t>(r) * o_stride + j * kLanes), shrink);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    V x[J];
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
      x[j] = load_stored(v + k * v_stride + j * kLanes);
      if (ahead.data) ahead.fetch(k, static_cast<std::size_t>(j) * kLanes * sizeof(T));
    }
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
      const float weight = p[k * kLanes + static_cast<std::size_t>(r)];
      if constexpr (kGuard == Guard::kOn) {
        if (weight == 0) continue;
      }
      const V w = hn::Set(f32, weight);
      ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] = hn::MulAdd(w, x[j], acc[r][j]);
    }
  }
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) hn::Store(acc[r][j], f32, o + static_cast<std::size_t>(r) * o_stride + j * kLanes);
  }
}

template <int R, Guard kGuard, class T>
struct NarrowSumTiles {
  const float* p;
  const T* v;
  std::size_t v_stride, keys;
  Ahead ahead;
  const float* rescale;
  float* o;
  std::size_t o_stride;
  template <int J>
  HWY_INLINE void run(std::size_t j) const {
    narrow_sum_tile<R, J, kGuard, T>(p, v + j * kLanes, v_stride, keys, ahead.from_byte(j * kLanes * sizeof(T)), rescale, o + j * kLanes, o_stride);
  }
};

/// O[row][dim] = O·rescale[row] + Σ_k P[key][row]·V[key].
template <Guard kGuard, class T>
HWY_INLINE void narrow_weighted_sum(const float* p, std::size_t rows, const T* v, std::size_t v_stride, std::size_t keys,
                                    std::size_t dim, const Ahead& ahead, const float* rescale, float* o) {
  const auto tiles = [&](auto row_count, auto vectors, std::size_t r, const Ahead& fetch = {}) HWY_ATTR {
    constexpr int R = decltype(row_count)::value, J = decltype(vectors)::value;
    cover<J>(dim / kLanes, NarrowSumTiles<R, kGuard, T>{p + r, v, v_stride, keys, fetch, rescale + r, o + r * dim, dim});
  };
  // The first pair takes whole rows of V, as they lie in memory; others find them in the cache.
  constexpr std::integral_constant<int, (kMr == 4 ? 8 : 4)> whole;
  constexpr std::integral_constant<int, (kMr == 4 ? 4 : 2)> part;
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 4> four;
  std::size_t r = 0;
  if (rows >= 2) tiles(two, whole, r, ahead), r += 2;
  for (; r + 4 <= rows; r += 4) tiles(four, part, r);
  for (; r + 2 <= rows; r += 2) tiles(two, whole, r);
  if (r < rows) tiles(one, whole, r, r == 0 ? ahead : Ahead{});
}

#else  // named by code that is not compiled with one lane
template <class T>
void narrow_scores(const float*, std::size_t, const T*, std::size_t, std::size_t, std::size_t, const Ahead&, float*);
template <Guard kGuard, class T>
void narrow_weighted_sum(const float*, std::size_t, const T*, std::size_t, std::size_t, std::size_t, const Ahead&, const float*, float*);
#endif

/// Storage that narrow tiles read as it lies. (Highway's f16 conversion knows no Inf and NaN where the hardware has none.)
HWY_INLINE bool narrow_reads(DType dtype) {
  constexpr bool kHardwareF16 = HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86;
  return dtype == DType::kF32 || dtype == DType::kBF16 || (dtype == DType::kF16 && kHardwareF16);
}

template <int MR>
HWY_INLINE void largest_of(const float* HWY_RESTRICT s, std::size_t keys, V* largest) {
  for (std::size_t k = 0; k < keys; ++k)
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m)
      largest[m] = hn::Max(largest[m], hn::Load(f32, s + (k * MR + static_cast<std::size_t>(m)) * kLanes));
}

HWY_INLINE Ahead rows_of(const StoredMatrix& x, std::size_t from = 0) {
  const std::size_t row_bytes = x.stride * static_cast<std::size_t>(size_of(x.dtype));
  return {static_cast<const char*>(x.data) + from * row_bytes, row_bytes};
}

/// S = K·Qᵀ, narrow (q row-major, k as stored) or wide (q in the lanes, k in f32); `largest` takes the maximum of what it held
/// and every score. `next` is what will be read afterwards, if this tile is the first to read k.
template <int MR>
HWY_INLINE void scores(const float* q, bool narrow, std::size_t rows, const StoredMatrix& k, std::size_t keys, std::size_t dim,
                       const Ahead& next, float* s, V* largest) {
  if constexpr (MR == 1 && kLanes > 1) {
    if (narrow) {
      const auto from = [&](const auto* data) HWY_ATTR { narrow_scores(q, rows, data, k.stride, keys, dim, next, s); };
      switch (k.dtype) {
        case DType::kF16: from(static_cast<const hwy::float16_t*>(k.data)); break;
        case DType::kBF16: from(static_cast<const hwy::bfloat16_t*>(k.data)); break;
        default: from(static_cast<const float*>(k.data)); break;
      }
      largest_of<MR>(s, keys, largest);
      return;
    }
  }
  score_product<MR>(q, static_cast<const float*>(k.data), k.stride, keys, dim, next, s, largest);
}

/// O = O·rescale + V·P, likewise; o is [row][dim] or [dim][width].
template <int MR, Guard kGuard>
HWY_INLINE void accumulate(const float* p, bool narrow, std::size_t rows, const StoredMatrix& v, std::size_t keys, std::size_t dim,
                           const Ahead& next, const V* rescale, float* o) {
  if constexpr (MR == 1 && kLanes > 1) {
    if (narrow) {
      alignas(64) float shrink[kLanes];
      hn::Store(rescale[0], f32, shrink);
      const auto from = [&](const auto* data) HWY_ATTR {
        narrow_weighted_sum<kGuard>(p, rows, data, v.stride, keys, dim, next, shrink, o);
      };
      switch (v.dtype) {
        case DType::kF16: from(static_cast<const hwy::float16_t*>(v.data)); break;
        case DType::kBF16: from(static_cast<const hwy::bfloat16_t*>(v.data)); break;
        default: from(static_cast<const float*>(v.data)); break;
      }
      return;
    }
  }
  weighted_sum<MR, kGuard>(p, static_cast<const float*>(v.data), v.stride, keys, dim, next, o, rescale);
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
