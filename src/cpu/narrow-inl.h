// The two products for few query rows (decoding): vectors lie along d, because there are not enough rows to fill the lanes,
// and every row shares one read of K and V. Scores still come out as [key][lane = row], so passes, softmax and statistics are
// those of the wide tiles; the output is row-major, [row][dim_v].
//
// dims are multiples of the lanes. A score is the sum of its lanes' chains, added in the order of sum_lanes().
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

#if defined(ROOTDK_CPU_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_NARROW_INL_H_
#undef ROOTDK_CPU_NARROW_INL_H_
#else
#define ROOTDK_CPU_NARROW_INL_H_
#endif

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

// R rows × kLanes/R keys: as many dot products as lanes.
template <int R>
HWY_INLINE void narrow_score_tile(const float* const* q, const float* const* k, std::size_t dim, float* HWY_RESTRICT out) {
  constexpr int kKeys = kLanes / R;
  V acc[kLanes];
  ROOTDK_UNROLL for (int i = 0; i < kLanes; ++i) acc[i] = hn::Zero(f32);
  for (std::size_t d = 0; d < dim; d += kLanes) {
    V x[R];
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) x[r] = hn::Load(f32, q[r] + d);
    ROOTDK_UNROLL for (int n = 0; n < kKeys; ++n) {
      const V y = hn::LoadU(f32, k[n] + d);
      ROOTDK_UNROLL for (int r = 0; r < R; ++r) acc[n * R + r] = hn::MulAdd(x[r], y, acc[n * R + r]);
    }
  }
  hn::Store(sum_lanes(acc), f32, out);
}

/// S[key][first_row …] for R rows.
template <int R>
HWY_INLINE void narrow_score_rows(const float* const* q, const float* k, std::size_t k_stride, std::size_t keys, std::size_t dim,
                                  float* s) {
  constexpr std::size_t kKeys = kLanes / R;
  alignas(64) float sums[kLanes];
  const float* rows[kKeys];
  for (std::size_t n = 0; n < keys; n += kKeys) {
    const std::size_t here = keys - n < kKeys ? keys - n : kKeys;
    for (std::size_t i = 0; i < kKeys; ++i) rows[i] = k + (n + (i < here ? i : 0)) * k_stride;  // a tail repeats a key
    narrow_score_tile<R>(q, rows, dim, sums);
    for (std::size_t i = 0; i < here; ++i) std::memcpy(s + (n + i) * kLanes, sums + i * R, R * sizeof(float));
  }
}

/// Scores of up to min(8, lanes) rows of q, [rows][dim]; lanes beyond them hold finite numbers that nobody reads.
HWY_INLINE void narrow_scores(const float* q, std::size_t rows, const float* k, std::size_t k_stride, std::size_t keys,
                              std::size_t dim, float* HWY_RESTRICT s) {
  if (rows < kLanes) std::memset(s, 0, keys * kLanes * sizeof(float));
  const float* at[4];
  std::size_t r = 0;
  while (r < rows) {
    for (std::size_t i = 0; i < 4; ++i) at[i] = q + (r + i < rows ? r + i : r) * dim;
    if (rows - r >= 3) {
      narrow_score_rows<4>(at, k, k_stride, keys, dim, s + r);  // a fourth row that is none writes to a lane that is none
      r += 4;
    } else if (rows - r == 2) {
      narrow_score_rows<2>(at, k, k_stride, keys, dim, s + r);
      r += 2;
    } else {
      narrow_score_rows<1>(at, k, k_stride, keys, dim, s + r);
      r += 1;
    }
  }
}

// R rows × J vectors of the output.
template <int R, int J, Guard kGuard>
HWY_INLINE void narrow_sum_tile(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, std::size_t v_stride, std::size_t keys,
                                const float* HWY_RESTRICT rescale, float* HWY_RESTRICT o, std::size_t o_stride) {
  V acc[R][J];
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    const V shrink = hn::Set(f32, rescale[r]);
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) acc[r][j] = hn::Mul(hn::Load(f32, o + static_cast<std::size_t>(r) * o_stride + j * kLanes), shrink);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    V x[J];
    ROOTDK_UNROLL for (int j = 0; j < J; ++j) x[j] = hn::LoadU(f32, v + k * v_stride + j * kLanes);
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

template <int R, Guard kGuard>
struct NarrowSumTiles {
  const float *p, *v;
  std::size_t v_stride, keys;
  const float* rescale;
  float* o;
  std::size_t o_stride;
  template <int J>
  HWY_INLINE void run(std::size_t j) const {
    narrow_sum_tile<R, J, kGuard>(p, v + j * kLanes, v_stride, keys, rescale, o + j * kLanes, o_stride);
  }
};

/// O[row][dim] = O·rescale[row] + Σ_k P[key][row]·V[key].
template <Guard kGuard>
HWY_INLINE void narrow_weighted_sum(const float* p, std::size_t rows, const float* v, std::size_t v_stride, std::size_t keys,
                                    std::size_t dim, const float* rescale, float* o) {
  constexpr int kVectors = kMr == 4 ? 4 : 2;  // 16 or 8 accumulators beside the operands
  std::size_t r = 0;
  for (; r + 4 <= rows; r += 4)
    cover<kVectors>(dim / kLanes, NarrowSumTiles<4, kGuard>{p + r, v, v_stride, keys, rescale + r, o + r * dim, dim});
  for (; r + 2 <= rows; r += 2)
    cover<kVectors>(dim / kLanes, NarrowSumTiles<2, kGuard>{p + r, v, v_stride, keys, rescale + r, o + r * dim, dim});
  for (; r < rows; ++r)
    cover<2 * kVectors>(dim / kLanes, NarrowSumTiles<1, kGuard>{p + r, v, v_stride, keys, rescale + r, o + r * dim, dim});
}

#else
// Named where wide tiles are chosen at compile time.
void narrow_scores(const float*, std::size_t, const float*, std::size_t, std::size_t, std::size_t, float*);
template <Guard kGuard>
void narrow_weighted_sum(const float*, std::size_t, const float*, std::size_t, std::size_t, std::size_t, const float*, float*);
#endif

template <int MR>
HWY_INLINE void largest_of(const float* HWY_RESTRICT s, std::size_t keys, V* largest) {
  for (std::size_t k = 0; k < keys; ++k)
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m)
      largest[m] = hn::Max(largest[m], hn::Load(f32, s + (k * MR + static_cast<std::size_t>(m)) * kLanes));
}

/// S = K·Qᵀ, narrow (q row-major) or wide (q in the lanes); `largest` takes the maximum of what it held and every score.
template <int MR>
HWY_INLINE void scores(const float* q, bool narrow, std::size_t rows, const float* k, std::size_t k_stride,
                       std::size_t keys, std::size_t dim, float* s, V* largest) {
  if constexpr (MR == 1 && kLanes > 1) {
    if (narrow) {
      narrow_scores(q, rows, k, k_stride, keys, dim, s);
      largest_of<MR>(s, keys, largest);
      return;
    }
  }
  score_product<MR>(q, k, k_stride, keys, dim, s, largest);
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
