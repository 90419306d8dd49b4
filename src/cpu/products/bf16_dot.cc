// Products of bf16 pairs with AVX512-BF16: vdpbf16ps adds two products to each f32 lane. The tiles are those of
// wide-inl.h and narrow-inl.h, half as long. The build compiles this file alone for these instructions; where it does
// not, there is nothing here. This is what many queries get; bf16_dot_narrow-inl.h has the tiles for a few.
#include "cpu/products/bf16.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include "cpu/products/bf16_dot_narrow-inl.h"

namespace rootdk::cpu {

namespace {

template <int MR>
constexpr int kNr = MR == 1 ? 12 : 24 / MR;

// Wide tiles: MR vectors of query rows × NR broadcasts ---------------------------------------------------------------

template <int MR>
struct ScoreTiles {
  const std::uint32_t* q;
  Bf16Rows k;
  std::size_t dim;
  const float* scale;
  float* s;

  template <int NR>
  ROOTDK_INLINE void run(std::size_t n) const {
    __m512 acc[NR][MR];
    ROOTDK_UNROLL for (int i = 0; i < NR; ++i) ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[i][m] =
        _mm512_setzero_ps();
    const std::uint16_t* key = k.data + n * k.stride;
    for (std::size_t d = 0; d < dim; d += 2) {
      __m512i row[MR];
      ROOTDK_UNROLL for (int m = 0; m < MR; ++m) row[m] =
          _mm512_loadu_si512(q + (d / 2 * MR + static_cast<std::size_t>(m)) * kLanes);
      ROOTDK_UNROLL for (int i = 0; i < NR; ++i) {
        const __m512i b = broadcast_pair(key + static_cast<std::size_t>(i) * k.stride + d);
        ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[i][m] = add_products(acc[i][m], row[m], b);
      }
    }
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
      const __m512 c = _mm512_loadu_ps(scale + static_cast<std::size_t>(m) * kLanes);
      ROOTDK_UNROLL for (int i = 0; i < NR; ++i)
          _mm512_storeu_ps(s + ((n + static_cast<std::size_t>(i)) * MR + static_cast<std::size_t>(m)) * kLanes,
                           _mm512_mul_ps(acc[i][m], c));
    }
  }
};

void scores(const std::uint32_t* q, std::size_t width, Bf16Rows k, std::size_t keys, std::size_t dim,
            const float* scale, float* s) {
  switch (width / kLanes) {
    case 1: return cover<kNr<1>>(keys, ScoreTiles<1>{q, k, dim, scale, s});
    case 2: return cover<kNr<2>>(keys, ScoreTiles<2>{q, k, dim, scale, s});
    case 3: return cover<kNr<3>>(keys, ScoreTiles<3>{q, k, dim, scale, s});
    default: return cover<kNr<4>>(keys, ScoreTiles<4>{q, k, dim, scale, s});
  }
}

std::size_t packed_values(std::size_t keys, std::size_t dim) { return (keys + 1) / 2 * 2 * dim; }

// Pairs of neighbouring keys: [keys/2][dim].
void pack_values(Bf16Rows v, std::size_t keys, std::size_t dim, std::uint16_t* packed) {
  for (std::size_t k = 0; k < keys; k += 2) {
    const std::uint16_t *even = v.data + k * v.stride, *odd = even + v.stride;
    std::uint16_t* out = packed + k * dim;
    for (std::size_t d = 0; d < dim; d += kLanes) {
      const auto mask = static_cast<__mmask16>(dim - d < kLanes ? (1u << (dim - d)) - 1 : 0xffffu);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + d));
      const __m512i high =
          k + 1 < keys ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd + d)) : _mm512_setzero_si512();
      _mm512_mask_storeu_epi32(out + 2 * d, mask, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

void pack_weights(float* p, std::size_t width, std::size_t keys) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (std::size_t k = 0; k < keys; k += 2)
    for (std::size_t lane = 0; lane < width; lane += kLanes) {
      const __m512 even = _mm512_loadu_ps(p + k * width + lane);
      const __m512 odd = k + 1 < keys ? _mm512_loadu_ps(p + (k + 1) * width + lane) : _mm512_setzero_ps();
      const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));  // even in the lower half
      _mm512_storeu_si512(p + k / 2 * width + lane, _mm512_permutexvar_epi16(interleave, both));
    }
}

template <int MR>
struct SumTiles {
  const std::uint32_t* p;
  const std::uint16_t* packed;
  std::size_t keys, dim;
  const float* rescale;
  float* o;

  template <int NR>
  ROOTDK_INLINE void run(std::size_t d) const {
    __m512 acc[NR][MR];
    float* out = o + d * MR * kLanes;
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
      const __m512 shrink = _mm512_loadu_ps(rescale + static_cast<std::size_t>(m) * kLanes);
      ROOTDK_UNROLL for (int i = 0; i < NR; ++i) acc[i][m] =
          _mm512_mul_ps(_mm512_loadu_ps(out + static_cast<std::size_t>(i * MR + m) * kLanes), shrink);
    }
    for (std::size_t k = 0; k < keys; k += 2) {
      __m512i w[MR];
      ROOTDK_UNROLL for (int m = 0; m < MR; ++m) w[m] =
          _mm512_loadu_si512(p + (k / 2 * MR + static_cast<std::size_t>(m)) * kLanes);
      ROOTDK_UNROLL for (int i = 0; i < NR; ++i) {
        const __m512i b = broadcast_pair(packed + k * dim + 2 * (d + static_cast<std::size_t>(i)));
        ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[i][m] = add_products(acc[i][m], w[m], b);
      }
    }
    ROOTDK_UNROLL for (int i = 0; i < NR; ++i) ROOTDK_UNROLL for (int m = 0; m < MR; ++m)
        _mm512_storeu_ps(out + static_cast<std::size_t>(i * MR + m) * kLanes, acc[i][m]);
  }
};

void weighted_sum(const std::uint32_t* p, std::size_t width, PackedValues v, std::size_t keys, std::size_t dim,
                  const float* rescale, float* o) {
  switch (width / kLanes) {
    case 1: return cover<kNr<1>>(dim, SumTiles<1>{p, v.data, keys, dim, rescale, o});
    case 2: return cover<kNr<2>>(dim, SumTiles<2>{p, v.data, keys, dim, rescale, o});
    case 3: return cover<kNr<3>>(dim, SumTiles<3>{p, v.data, keys, dim, rescale, o});
    default: return cover<kNr<4>>(dim, SumTiles<4>{p, v.data, keys, dim, rescale, o});
  }
}

}  // namespace

const Bf16Products* bf16_dot() {
  // Intel's cores take several cycles for each vdpbf16ps: half the speed of f32 (measured on Emerald Rapids). AMD's
  // take one.
  static const Bf16Products products = {.isa = "AVX3_BF16",
                                        .pays = !__builtin_cpu_is("intel"),
                                        .dim_step = 2,
                                        .key_step = 2,
                                        .packed_values = &packed_values,
                                        .scores = &scores,
                                        .pack_values = &pack_values,
                                        .pack_weights = &pack_weights,
                                        .weighted_sum = &weighted_sum,
                                        .narrow_scores = &narrow_scores,
                                        .narrow_pack_weights = &narrow_pack_weights,
                                        .narrow_sum = &narrow_sum};
  static const bool usable = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512bf16");
  return usable ? &products : nullptr;
}

}  // namespace rootdk::cpu

#else

namespace rootdk::cpu {

const Bf16Products* bf16_dot() { return nullptr; }

}  // namespace rootdk::cpu

#endif
