// The narrow tiles of bf16_dot.cc, which alone includes this: a few queries, vectors along d.
#include <immintrin.h>

#include <atomic>

#include "cpu/products/bf16.h"

#define ROOTDK_UNROLL _Pragma("GCC unroll 32")
#define ROOTDK_INLINE inline __attribute__((always_inline))

namespace rootdk::cpu {

namespace {

constexpr std::size_t kLanes = 16;  // f32 sums, or pairs

ROOTDK_INLINE __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

ROOTDK_INLINE __m512i broadcast_pair(const void* pair) {
  std::uint32_t x;
  __builtin_memcpy(&x, pair, sizeof x);
  return _mm512_set1_epi32(static_cast<int>(x));
}

// Covers `count` with tiles of N, then 8, 4, 2 and 1.
template <int N, class Tile>
ROOTDK_INLINE void cover(std::size_t count, const Tile& tile, std::size_t start = 0) {
  for (; start + N <= count; start += N) tile.template run<N>(start);
  if constexpr (N > 1) {
    if (start < count) cover<(N > 8 ? 8 : N > 4 ? 4 : N > 2 ? 2 : 1)>(count, tile, start);
  }
}

ROOTDK_INLINE __m512 sum_blocks(const __m512* v) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

ROOTDK_INLINE __m512 sum_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Lane i of the result is the sum over the lanes of v[i].
ROOTDK_INLINE __m512 sum_lanes(const __m512* v) {
  return sum_pairs(sum_pairs(sum_blocks(v), sum_blocks(v + 4)), sum_pairs(sum_blocks(v + 8), sum_blocks(v + 12)));
}

// R dot products of one key. `whole` vectors of 32 elements, and 16 more if `half`.
template <int R>
ROOTDK_INLINE void dots(Bf16Rows q, const std::uint16_t* k, std::size_t whole, bool half, __m512* sum) {
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
  ROOTDK_UNROLL for (std::size_t j = 0; j < whole; ++j) {
    const __m512i y = _mm512_loadu_si512(k + 32 * j);
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) sum[r] =
        add_products(sum[r], _mm512_loadu_si512(q.data + static_cast<std::size_t>(r) * q.stride + 32 * j), y);
  }
  if (!half) return;
  const __m512i y = _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + 32 * whole)));
  ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
    const std::uint16_t* at = q.data + static_cast<std::size_t>(r) * q.stride + 32 * whole;
    sum[r] = add_products(sum[r], _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))), y);
  }
}

// s[row][key] for R rows, kLanes/R keys at a time. kWhole is the dim in vectors of 32 where it is known, else 0.
template <int R, std::size_t kWhole>
ROOTDK_INLINE void score_rows(Bf16Rows q, Bf16Rows k, std::size_t keys, std::size_t dim, const float* scale, float* s,
                              std::size_t s_stride) {
  constexpr std::size_t kKeys = kLanes / R;
  const std::size_t whole = kWhole ? kWhole : dim / 32;
  const bool half = kWhole ? false : dim % 32 != 0;
  alignas(64) float scales[kLanes], sums[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) scales[i] = scale[i / kKeys];
  __m512 acc[kLanes], key_sums[R];
  for (std::size_t i = 0; i < kLanes; ++i) acc[i] = _mm512_setzero_ps();
  for (std::size_t n = 0; n < keys; n += kKeys) {
    const std::size_t here = keys - n < kKeys ? keys - n : kKeys;
    for (std::size_t i = 0; i < here; ++i) {
      dots<R>(q, k.data + (n + i) * k.stride, whole, half, key_sums);
      ROOTDK_UNROLL for (std::size_t r = 0; r < R; ++r) acc[r * kKeys + i] = key_sums[r];
    }
    _mm512_store_ps(sums, _mm512_mul_ps(sum_lanes(acc), _mm512_load_ps(scales)));
    for (std::size_t r = 0; r < R; ++r) __builtin_memcpy(s + r * s_stride + n, sums + r * kKeys, here * sizeof(float));
  }
}

// Four rows at once: each block of 128 bits belongs to one row and meets the same 8 elements of a key, so a score is a
// sum over 4 lanes and 4 keys fill one vector with scores. q is [dim/8] vectors; kOctets is dim/8 where it is known,
// else 0.
template <std::size_t kOctets, int kKeys>
ROOTDK_INLINE void score_quad_keys(const __m512i* q, Bf16Rows k, std::size_t n, std::size_t dim, __m512 scale, float* s,
                                   std::size_t s_stride) {
  const std::size_t octets = kOctets ? kOctets : dim / 8;
  __m512 acc[kKeys];
  const std::uint16_t* key = k.data + n * k.stride;
  ROOTDK_UNROLL for (int i = 0; i < kKeys; ++i) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    ROOTDK_UNROLL for (std::size_t j = 0; j < octets; ++j) {
      const auto* at = reinterpret_cast<const __m128i*>(key + static_cast<std::size_t>(i) * k.stride + 8 * j);
      __m512& sum = j % 2 == 0 ? even : odd;
      sum = add_products(sum, q[j], _mm512_broadcast_i32x4(_mm_loadu_si128(at)));
    }
    acc[i] = _mm512_add_ps(even, odd);
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // keys come from memory one after another: compilers must not mix their loads
  }
  ROOTDK_UNROLL for (int i = 0; i < kKeys; i += 4) {
    const __m512 sums = _mm512_mul_ps(sum_blocks(acc + i), scale);
    float* out = s + n + i;
    _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(out + s_stride, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(out + 2 * s_stride, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(out + 3 * s_stride, _mm512_extractf32x4_ps(sums, 3));
  }
}

constexpr std::size_t kMostQuad = 512;  // elements of a row that score_quad() has room for

template <std::size_t kOctets>
ROOTDK_INLINE void score_quad(Bf16Rows q, Bf16Rows k, std::size_t keys, std::size_t dim, const float* scale, float* s,
                              std::size_t s_stride) {
  __m512i rows[kOctets ? kOctets : kMostQuad / 8];
  for (std::size_t j = 0; j < dim / 8; ++j) {
    const auto part = [&](std::size_t r) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q.data + r * q.stride + 8 * j));
    };
    const __m256i low = _mm256_set_m128i(part(1), part(0)), high = _mm256_set_m128i(part(3), part(2));
    rows[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  const __m512 scales = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                              _mm512_castps128_ps512(_mm_loadu_ps(scale)));
  std::size_t n = 0;
  for (; n + 8 <= keys; n += 8) score_quad_keys<kOctets, 8>(rows, k, n, dim, scales, s, s_stride);
  if (n + 4 <= keys) score_quad_keys<kOctets, 4>(rows, k, n, dim, scales, s, s_stride), n += 4;
  for (; n < keys; ++n) {  // four times the same key
    float copies[16];
    score_quad_keys<kOctets, 4>(rows, {k.data + n * k.stride, 0}, 0, dim, scales, copies, 4);
    for (std::size_t r = 0; r < 4; ++r) s[r * s_stride + n] = copies[4 * r];
  }
}

template <std::size_t kWhole>
void score_all(Bf16Rows q, std::size_t rows, Bf16Rows k, std::size_t keys, std::size_t dim, const float* scale,
               float* s, std::size_t s_stride) {
  std::size_t r = 0;
  const auto from = [&] { return Bf16Rows{q.data + r * q.stride, q.stride}; };
  for (; r + 4 <= rows; r += 4) {
    if (dim <= kMostQuad) score_quad<4 * kWhole>(from(), k, keys, dim, scale + r, s + r * s_stride, s_stride);
    else score_rows<4, kWhole>(from(), k, keys, dim, scale + r, s + r * s_stride, s_stride);
  }
  for (; r + 2 <= rows; r += 2) score_rows<2, kWhole>(from(), k, keys, dim, scale + r, s + r * s_stride, s_stride);
  if (r < rows) score_rows<1, kWhole>(from(), k, keys, dim, scale + r, s + r * s_stride, s_stride);
}

void narrow_scores(Bf16Rows q, std::size_t rows, Bf16Rows k, std::size_t keys, std::size_t dim, const float* scale,
                   float* s, std::size_t s_stride) {
  switch (dim) {
    case 64: return score_all<2>(q, rows, k, keys, dim, scale, s, s_stride);
    case 128: return score_all<4>(q, rows, k, keys, dim, scale, s, s_stride);
    default: return score_all<0>(q, rows, k, keys, dim, scale, s, s_stride);
  }
}

void narrow_pack_weights(float* p, std::size_t keys) {
  auto* out = reinterpret_cast<char*>(p);
  for (std::size_t k = 0; k < keys; k += kLanes) {
    const auto there = static_cast<__mmask16>(keys - k < kLanes ? (1u << (keys - k)) - 1 : 0xffffu);
    const auto pairs = static_cast<__mmask16>(keys - k < kLanes ? (1u << (keys - k + 1) / 2 * 2) - 1 : 0xffffu);
    const __m256i half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, p + k)));
    _mm256_mask_storeu_epi16(out + 2 * k, pairs, half);
  }
}

// Unpacking interleaves within blocks of 128 bits: sums of 32 elements come as two vectors whose blocks alternate.
struct Halves {
  __m512 low, high;
};

ROOTDK_INLINE Halves to_halves(__m512 first, __m512 second) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  return {_mm512_permutex2var_ps(first, low, second), _mm512_permutex2var_ps(first, high, second)};
}

ROOTDK_INLINE Halves from_halves(Halves x) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  return {_mm512_permutex2var_ps(x.low, first, x.high), _mm512_permutex2var_ps(x.low, second, x.high)};
}

// R rows × J times 32 elements of the output. The last 32 may be 16: then `mask` has no upper half.
template <int R>
struct NarrowSumTiles {
  const std::uint32_t* p;
  std::size_t p_stride;
  Bf16Rows v;
  std::size_t keys, dim;
  const float* rescale;
  float* o;

  template <int J>
  ROOTDK_INLINE void run(std::size_t j0) const {
    __m512 low[R][J], high[R][J];
    const std::size_t d0 = 32 * j0, left = dim - d0;
    const auto is_half = [&](int j) { return left < 32 * (static_cast<std::size_t>(j) + 1); };
    const auto at = [&](int r, int j) {
      return o + static_cast<std::size_t>(r) * dim + d0 + 32 * static_cast<std::size_t>(j);
    };
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 shrink = _mm512_set1_ps(rescale[r]);
      ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
        const __m512 second = is_half(j) ? _mm512_setzero_ps() : _mm512_loadu_ps(at(r, j) + 16);
        const Halves x = to_halves(_mm512_mul_ps(_mm512_loadu_ps(at(r, j)), shrink), _mm512_mul_ps(second, shrink));
        low[r][j] = x.low, high[r][j] = x.high;
      }
    }
    const __mmask32 mask = left < 32 * J ? 0x0000ffffu : 0xffffffffu;  // of the last vector
    for (std::size_t k = 0; k < keys; k += 2) {
      const std::uint16_t *even = v.data + k * v.stride + d0, *odd = k + 1 < keys ? even + v.stride : even;
      const __mmask32 there = k + 1 < keys ? 0xffffffffu : 0;
      ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
        const __mmask32 columns = j + 1 < J ? 0xffffffffu : mask;
        const __m512i x = _mm512_maskz_loadu_epi16(columns, even + 32 * j),
                      y = _mm512_maskz_loadu_epi16(columns & there, odd + 32 * j);
        const __m512i xy_low = _mm512_unpacklo_epi16(x, y), xy_high = _mm512_unpackhi_epi16(x, y);
        ROOTDK_UNROLL for (int r = 0; r < R; ++r) {
          const __m512i w = broadcast_pair(p + static_cast<std::size_t>(r) * p_stride + k / 2);
          low[r][j] = add_products(low[r][j], w, xy_low);
          high[r][j] = add_products(high[r][j], w, xy_high);
        }
      }
    }
    ROOTDK_UNROLL for (int r = 0; r < R; ++r) ROOTDK_UNROLL for (int j = 0; j < J; ++j) {
      const Halves x = from_halves({low[r][j], high[r][j]});
      _mm512_storeu_ps(at(r, j), x.low);
      if (!is_half(j)) _mm512_storeu_ps(at(r, j) + 16, x.high);
    }
  }
};

void narrow_sum(const std::uint32_t* p, std::size_t p_stride, std::size_t rows, Bf16Rows v, std::size_t keys,
                std::size_t dim, const float* rescale, float* o) {
  constexpr std::size_t kFew = 32;  // keys whose V stays in L1 for the rows and columns that come later
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  const std::size_t vectors = (dim + 31) / 32;
  for (std::size_t k = 0; k < keys; k += kFew) {
    const std::size_t here = keys - k < kFew ? keys - k : kFew;
    const Bf16Rows from{v.data + k * v.stride, v.stride};
    const std::uint32_t* weights = p + k / 2;
    const float* shrink = k == 0 ? rescale : ones;
    std::size_t r = 0;
    for (; r + 4 <= rows; r += 4)
      cover<3>(vectors, NarrowSumTiles<4>{weights + r * p_stride, p_stride, from, here, dim, shrink + r, o + r * dim});
    for (; r + 2 <= rows; r += 2)
      cover<4>(vectors, NarrowSumTiles<2>{weights + r * p_stride, p_stride, from, here, dim, shrink + r, o + r * dim});
    if (r < rows)
      cover<4>(vectors, NarrowSumTiles<1>{weights + r * p_stride, p_stride, from, here, dim, shrink + r, o + r * dim});
  }
}

}  // namespace

}  // namespace rootdk::cpu
