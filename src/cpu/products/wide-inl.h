// The three products, as register tiles. Lanes are query rows: a matrix with W = MR·lanes rows is held transposed, as
// [column][W], so that an element of K or V is one broadcast that feeds MR multiply-adds, K and V are read as they lie
// in memory, and nothing is ever summed across lanes.
//
//   score_product:  S[k][W]  = Σ_d K[k][d]·Qᵀ[d][W]          (also dP = V·dOᵀ)
//   weighted_sum:   O[j][W]  = O[j][W]·r[W] + Σ_k V[k][j]·P[k][W]   (also dQ += Kᵀ·dS)
//   outer_product:  C[k][d] += Σ_q A[k][q]·B[q][d]           (dV += P·dO, dK += dS·Q; vectors lie along d)
//
// Every output element is a chain of multiply-adds in ascending order of the summed index, whatever the tile sizes.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_PRODUCTS_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_PRODUCTS_WIDE_INL_H_
#undef ROOTDK_CPU_PRODUCTS_WIDE_INL_H_
#else
#define ROOTDK_CPU_PRODUCTS_WIDE_INL_H_
#endif

#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

// Register tile: MR vectors × kNr<MR> broadcasts, as many accumulators; the rest of the registers hold operands. Fewer
// vectors take more broadcasts, to keep the multiply-adds' latency covered.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3  // 16 registers
inline constexpr int kMr = 2;
template <int MR>
inline constexpr int kNr = 12 / MR;
#else  // 32 registers
inline constexpr int kMr = 4;
template <int MR>
inline constexpr int kNr = MR == 1 ? 12 : 24 / MR;
#endif

// Rows in the lanes of one tile, and keys in a block. The tile of scores is 24 KB at 64 rows; the keys are a multiple
// of every kNr and of 4 (dropout draws for four keys at a time).
inline constexpr int kTileRows = kMr * kLanes;
inline constexpr std::size_t kTileKeys = 96;
static_assert(kTileRows <= kMaxTileRows && kTileKeys % 24 == 0);

/// Lanes that so many rows take: whole vectors.
HWY_INLINE int width_of(int rows) { return (rows + kLanes - 1) / kLanes * kLanes; }

/// 0·NaN must not leak through a mask: a guarded product skips terms whose weight is exactly 0.
enum class Guard : bool { kOff, kOn };

/// What to bring into L2 while something else is worked on: V while scores are computed, the next keys while values are
/// summed. So memory is busy during the softmax, too.
struct Ahead {
  const char* data = nullptr;  ///< null: nothing
  std::size_t row_bytes = 0;

  HWY_INLINE Ahead from_row(std::size_t row) const { return data ? Ahead{data + row * row_bytes, row_bytes} : Ahead{}; }
  HWY_INLINE Ahead from_byte(std::size_t byte) const { return data ? Ahead{data + byte, row_bytes} : Ahead{}; }

  HWY_INLINE void fetch(std::size_t row, std::size_t byte) const {
    __builtin_prefetch(data + row * row_bytes + byte, /*read*/ 0, /*L2*/ 2);
  }
};

template <int MR, int NR>
HWY_INLINE void score_tile(const float* HWY_RESTRICT qt, const float* HWY_RESTRICT k, std::size_t k_stride,
                           std::size_t dim, const Ahead& ahead, float* HWY_RESTRICT s, V* HWY_RESTRICT largest) {
  V acc[NR][MR];
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) { ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[n][m] = hn::Zero(f32); }
  constexpr std::size_t kLine = 64 / sizeof(float);
  for (std::size_t line = 0; line < dim; line += kLine) {
    if (ahead.data) {
      ROOTDK_UNROLL for (int n = 0; n < NR; ++n) ahead.fetch(static_cast<std::size_t>(n), line * sizeof(float));
    }
    const std::size_t end = line + kLine < dim ? line + kLine : dim;
    for (std::size_t d = line; d < end; ++d) {
      V q[MR];
      ROOTDK_UNROLL for (int m = 0; m < MR; ++m) q[m] =
          hn::Load(f32, qt + (d * MR + static_cast<std::size_t>(m)) * kLanes);
      ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
        const V b = hn::Set(f32, k[static_cast<std::size_t>(n) * k_stride + d]);
        ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[n][m] = hn::MulAdd(b, q[m], acc[n][m]);
      }
    }
  }
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
      largest[m] = hn::Max(largest[m], acc[n][m]);
      hn::Store(acc[n][m], f32, s + (n * MR + m) * kLanes);
    }
  }
}

template <int MR, int NR, Guard kGuard>
HWY_INLINE void sum_tile(const float* HWY_RESTRICT p, const float* HWY_RESTRICT x, std::size_t x_stride,
                         std::size_t keys, const Ahead& ahead, float* HWY_RESTRICT out, const V* HWY_RESTRICT rescale) {
  V acc[NR][MR];
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) acc[n][m] =
        hn::Mul(hn::Load(f32, out + (n * MR + m) * kLanes), rescale[m]);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    if (ahead.data) ahead.fetch(k, 0);
    V w[MR];
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) w[m] =
        hn::Load(f32, p + (k * MR + static_cast<std::size_t>(m)) * kLanes);
    ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
      const V b = hn::Set(f32, x[k * x_stride + static_cast<std::size_t>(n)]);
      ROOTDK_UNROLL for (int m = 0; m < MR; ++m) {
        if constexpr (kGuard == Guard::kOn) {
          acc[n][m] = hn::MulAdd(hn::IfThenElseZero(hn::Ne(w[m], hn::Zero(f32)), b), w[m], acc[n][m]);
        } else {
          acc[n][m] = hn::MulAdd(b, w[m], acc[n][m]);
        }
      }
    }
  }
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) hn::Store(acc[n][m], f32, out + (n * MR + m) * kLanes);
  }
}

template <int VR, int NR, Guard kGuard>
HWY_INLINE void outer_tile(const float* HWY_RESTRICT a, std::size_t a_stride, const float* HWY_RESTRICT b,
                           std::size_t b_stride, std::size_t rows, float* HWY_RESTRICT c, std::size_t c_stride) {
  V acc[NR][VR];
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
    ROOTDK_UNROLL for (int m = 0; m < VR; ++m) acc[n][m] =
        hn::Load(f32, c + static_cast<std::size_t>(n) * c_stride + m * kLanes);
  }
  for (std::size_t q = 0; q < rows; ++q) {
    V x[VR];
    ROOTDK_UNROLL for (int m = 0; m < VR; ++m) x[m] = hn::Load(f32, b + q * b_stride + m * kLanes);
    ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
      const float weight = a[static_cast<std::size_t>(n) * a_stride + q];
      if constexpr (kGuard == Guard::kOn) {
        if (weight == 0) continue;
      }
      const V w = hn::Set(f32, weight);
      ROOTDK_UNROLL for (int m = 0; m < VR; ++m) acc[n][m] = hn::MulAdd(w, x[m], acc[n][m]);
    }
  }
  ROOTDK_UNROLL for (int n = 0; n < NR; ++n) {
    ROOTDK_UNROLL for (int m = 0; m < VR; ++m)
        hn::Store(acc[n][m], f32, c + static_cast<std::size_t>(n) * c_stride + m * kLanes);
  }
}

// Covers `count` with tiles of N, then 8, 4, 2 and 1: calls tile.template run<size>(start).
template <int N, class Tile>
HWY_INLINE void cover(std::size_t count, const Tile& tile, std::size_t start = 0) {
  for (; start + N <= count; start += N) tile.template run<N>(start);
  if constexpr (N > 1) {
    if (start < count) cover<(N > 8 ? 8 : N > 4 ? 4 : N > 2 ? 2 : 1)>(count, tile, start);
  }
}

template <int MR>
struct ScoreTiles {
  const float *qt, *k;
  std::size_t k_stride, dim;
  Ahead ahead;
  float* s;
  V* largest;
  template <int NR>
  HWY_INLINE void run(std::size_t n) const {
    score_tile<MR, NR>(qt, k + n * k_stride, k_stride, dim, ahead.from_row(n), s + n * MR * kLanes, largest);
  }
};

/// S for `keys` keys; `largest` takes the maximum of what it held and every score.
template <int MR>
HWY_INLINE void score_product(const float* qt, const float* k, std::size_t k_stride, std::size_t keys, std::size_t dim,
                              const Ahead& ahead, float* s, V* largest) {
  cover<kNr<MR>>(keys, ScoreTiles<MR>{qt, k, k_stride, dim, ahead, s, largest});
}

template <int MR, Guard kGuard>
struct SumTiles {
  const float *p, *x;
  std::size_t x_stride, keys, dim;
  Ahead ahead;
  float* out;
  const V* rescale;
  template <int NR>
  HWY_INLINE void run(std::size_t j) const {
    // Each tile fetches another line of the rows ahead; there are about as many of one as of the other.
    const std::size_t byte = j / NR * 64;
    const Ahead line = byte < dim * sizeof(float) ? ahead.from_byte(byte) : Ahead{};
    sum_tile<MR, NR, kGuard>(p, x + j, x_stride, keys, line, out + j * MR * kLanes, rescale);
  }
};

template <int MR, Guard kGuard>
HWY_INLINE void weighted_sum(const float* p, const float* x, std::size_t x_stride, std::size_t keys, std::size_t dim,
                             const Ahead& ahead, float* out, const V* rescale) {
  cover<kNr<MR>>(dim, SumTiles<MR, kGuard>{p, x, x_stride, keys, dim, ahead, out, rescale});
}

template <int VR, Guard kGuard>
struct OuterTiles {
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_stride, rows;
  float* c;
  std::size_t c_stride;
  template <int NR>
  HWY_INLINE void run(std::size_t n) const {
    outer_tile<VR, NR, kGuard>(a + n * a_stride, a_stride, b, b_stride, rows, c + n * c_stride, c_stride);
  }
};

template <Guard kGuard>
struct OuterPanels {
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_stride, rows, keys;
  float* c;
  std::size_t c_stride;
  template <int VR>
  HWY_INLINE void run(std::size_t v) const {
    cover<kNr<VR>>(keys, OuterTiles<VR, kGuard>{a, a_stride, b + v * kLanes, b_stride, rows, c + v * kLanes, c_stride});
  }
};

/// `dim` is a multiple of the lanes: rows of b and c are padded.
template <Guard kGuard>
HWY_INLINE void outer_product(const float* a, std::size_t a_stride, const float* b, std::size_t b_stride,
                              std::size_t rows, std::size_t keys, std::size_t dim, float* c, std::size_t c_stride) {
  cover<kMr>(dim / kLanes, OuterPanels<kGuard>{a, a_stride, b, b_stride, rows, keys, c, c_stride});
}

/// Σ a·b, in f32 over runs of kLanes·64 and in double over those.
HWY_INLINE double dot_product(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::size_t n) {
  constexpr std::size_t kRun = kLanes * 64;
  double total = 0;
  std::size_t i = 0;
  while (i + kLanes <= n) {
    V sum = hn::Zero(f32);
    for (const std::size_t end = std::min(n, i + kRun); i + kLanes <= end; i += kLanes)
      sum = hn::MulAdd(hn::LoadU(f32, a + i), hn::LoadU(f32, b + i), sum);
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(f32, sum)));
  }
  for (; i < n; ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
