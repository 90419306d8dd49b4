// A second look at the scores, once every row's maximum and lse are known: how far keys lie below the maximum, and how
// much probability each key gets. Key-major: a task owns a block of keys of one head and meets the query tiles in
// order.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/arena.h"
#include "base/call.h"
#include "base/element.h"
#include "base/gaps.h"
#include "base/parallel.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_STATISTICS_SECOND_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_STATISTICS_SECOND_PASS_INL_H_
#undef ROOTDK_CPU_STATISTICS_SECOND_PASS_INL_H_
#else
#define ROOTDK_CPU_STATISTICS_SECOND_PASS_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/products/wide-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// One a thread.
struct SecondScratch {
  Lanes* lanes;
  float *qt, *s, *additive, *rows, *k;
  float *max, *lse;    ///< of the tile's rows; +inf for rows that are not to be counted, so that they get probability 0
  float* mass;         ///< [kTileKeys][kLanes]
  std::int32_t* bins;  ///< of one vector of scores
  std::int64_t* counts;  ///< [GapHistogram::kBins]

  static SecondScratch take(base::Arena& arena, const Plan& plan) {
    const Shape& s = plan.shape;
    constexpr auto kKeys = static_cast<std::int64_t>(kTileKeys);
    SecondScratch scratch{};
    scratch.lanes = arena.take<Lanes>(1);
    scratch.qt = arena.take<float>(s.dim_qk * kTileRows);
    scratch.s = arena.take<float>(kKeys * kTileRows);
    scratch.additive = plan.problem.mask.has_dense_part() ? arena.take<float>(kKeys * kTileRows) : nullptr;
    scratch.rows = arena.take<float>(kTileRows * std::max(s.dim_qk, kKeys));
    scratch.k = arena.take<float>(kKeys * s.dim_qk);
    scratch.max = arena.take<float>(kTileRows);
    scratch.lse = arena.take<float>(kTileRows);
    scratch.mass = arena.take<float>(kKeys * kLanes);
    scratch.bins = arena.take<std::int32_t>(kLanes);
    scratch.counts = arena.take<std::int64_t>(GapHistogram::kBins);
    return scratch;
  }
};

class SecondPass {
 public:
  explicit SecondPass(const base::ForwardCall& call)
      : call_(call), shape_(call.plan.shape), passes_(call.plan.problem) {}

  static bool wanted(const Problem& problem) { return problem.stats_options.gaps || problem.stats_options.key_mass; }

  std::int64_t blocks() const { return (shape_.len_kv + kKeys - 1) / kKeys; }

  HWY_NOINLINE void look_at(std::int64_t b, std::int64_t h, std::int64_t n, const SecondScratch& scratch) const {
    const std::int64_t key0 = n * kKeys;
    const auto keys = static_cast<std::size_t>(std::min(kKeys, shape_.len_kv - key0));
    const Matrix k = load_keys(call_.plan.problem, call_.in.k, b, h / shape_.group(), key0, keys, scratch.k);
    std::memset(scratch.mass, 0, keys * kLanes * sizeof(float));
    std::fill_n(scratch.counts, GapHistogram::kBins, 0);
    for (std::int64_t first = 0; first < shape_.len_q; first += kTileRows) {
      if (!load_tile(b, h, first, key0, keys, scratch)) continue;
      switch (width_of(scratch.lanes->count) / kLanes) {
        case 1: look<1>(k, key0, keys, scratch); break;
        case 2: look<2>(k, key0, keys, scratch); break;
        case 3:
          if constexpr (kMr > 2) look<3>(k, key0, keys, scratch);
          break;
        case 4:
          if constexpr (kMr > 3) look<4>(k, key0, keys, scratch);
          break;
      }
    }
    if (call_.out.key_mass.present())
      for (std::size_t j = 0; j < keys; ++j)
        base::write(call_.out.key_mass, b, h, key0 + static_cast<std::int64_t>(j), 0,
                    static_cast<double>(hn::GetLane(hn::SumOfLanes(f32, hn::Load(f32, scratch.mass + j * kLanes)))));
    std::int64_t* total = call_.gaps ? call_.gaps + (b * shape_.heads_q + h) * GapHistogram::kBins : nullptr;
    for (int i = 0; i < GapHistogram::kBins && total; ++i)
      if (scratch.counts[i] != 0) base::shared_add(total[i], scratch.counts[i]);
  }

 private:
  static constexpr auto kKeys = static_cast<std::int64_t>(kTileKeys);

  /// False if no row of the tile sees a key of the block.
  HWY_INLINE bool load_tile(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t key0, std::size_t keys,
                            const SecondScratch& scratch) const {
    const int count = static_cast<int>(std::min<std::int64_t>(kTileRows, shape_.len_q - first));
    const int width = width_of(count);
    Lanes& lanes = *scratch.lanes;
    lanes.fill(call_.plan, {b, h / shape_.group(), h, shape_.len_q}, first, count, width);
    if (!lanes.sees_block(key0, static_cast<std::int64_t>(keys))) return false;
    const auto dim = static_cast<std::size_t>(shape_.dim_qk);
    load_tile_rows(call_.in.q, lanes, scratch.rows, dim);
    for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r)
      for (std::size_t d = 0; d < dim; ++d) scratch.rows[r * dim + d] *= lanes.scale[r];
    to_lanes(scratch.rows, dim, static_cast<std::size_t>(count), dim, scratch.qt, static_cast<std::size_t>(width));
    for (int r = 0; r < width; ++r) {
      const base::RowRecord* record =
          r < count ? &call_.records[(b * shape_.heads_q + h) * shape_.len_q + first + r] : nullptr;
      const bool counts = record && record->finite && record->visible > 0;
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      scratch.lse[r] = counts ? static_cast<float>(record->lse) : kInfinity;
      scratch.max[r] = counts ? static_cast<float>(record->score_max) : kInfinity;
    }
    return true;
  }

  template <int MR>
  HWY_INLINE void look(const Matrix& k, std::int64_t key0, std::size_t block_keys, const SecondScratch& scratch) const {
    const Lanes& lanes = *scratch.lanes;
    const std::size_t keys = std::min(block_keys, static_cast<std::size_t>(lanes.last_key - key0));
    const TilePlace place{lanes, key0, keys};
    V unused[MR];
    ROOTDK_UNROLL for (int m = 0; m < MR; ++m) unused[m] = hn::Zero(f32);
    score_product<MR>(scratch.qt, k.data, k.stride, keys, static_cast<std::size_t>(shape_.dim_qk), {}, scratch.s,
                      unused);
    if (passes_.touch(place)) passes_.apply<MR>(place, scratch.s, scratch.additive, scratch.rows, RawStats{}, nullptr);
    const V log2e = hn::Set(f32, kLog2E);
    const hn::RebindToSigned<F> i32;
    const auto lowest = hn::Set(i32, base::kFirstGapBits), last = hn::Set(i32, GapHistogram::kBins - 1);
    for (std::size_t j = 0; j < keys; ++j) {
      V mass = hn::Load(f32, scratch.mass + j * kLanes);
      for (int m = 0; m < MR; ++m) {
        const V s = hn::Load(f32, scratch.s + (j * MR + static_cast<std::size_t>(m)) * kLanes);
        const V max = hn::Load(f32, scratch.max + m * kLanes);
        const auto seen =
            hn::And(hn::Ne(s, minus_infinity()), hn::Ne(max, hn::Set(f32, std::numeric_limits<float>::infinity())));
        mass = hn::Add(
            mass, hn::IfThenElseZero(seen, exp2(hn::Mul(hn::Sub(s, hn::Load(f32, scratch.lse + m * kLanes)), log2e))));
        if (!call_.gaps) continue;
        const auto bits = hn::ShiftRight<base::kGapShift>(hn::BitCast(i32, hn::Sub(max, s)));
        const auto bin = hn::Min(hn::Max(hn::Sub(bits, lowest), hn::Zero(i32)), last);
        hn::Store(hn::IfThenElse(hn::RebindMask(i32, seen), bin, hn::Set(i32, -1)), i32, scratch.bins);
        for (int lane = 0; lane < kLanes; ++lane)
          if (scratch.bins[lane] >= 0) ++scratch.counts[scratch.bins[lane]];
      }
      hn::Store(mass, f32, scratch.mass + j * kLanes);
    }
  }

  const base::ForwardCall& call_;
  const Shape& shape_;
  Passes passes_;
};

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
