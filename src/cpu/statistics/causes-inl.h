// Why scores are spread as they are: the sizes of queries and keys, one more read of both.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "base/call.h"
#include "base/parallel.h"
#include "base/visibility.h"

#if defined(ROOTDK_CPU_STATISTICS_CAUSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_STATISTICS_CAUSES_INL_H_
#undef ROOTDK_CPU_STATISTICS_CAUSES_INL_H_
#else
#define ROOTDK_CPU_STATISTICS_CAUSES_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Sums over rows, each about `reference`. Rows that are not finite are left out.
class ComponentSums {
 public:
  /// `reference` and `sums` have room for `dim`.
  ComponentSums(std::size_t dim, float* reference, double* sums) : dim_(dim), reference_(reference), sums_(sums) {
    std::fill_n(reference_, dim_, 0.0f);
    std::fill_n(sums_, dim_, 0.0);
  }

  /// Few rows, so that f32 may sum them up; double takes over between calls. `counts(r)`: whether a row does.
  template <class Counts>
  HWY_INLINE void add(Matrix rows, std::size_t count, const Counts& counts) {
    bool all = true;
    for (std::size_t r = 0; r < count; ++r) all = all && counts(r);
    if (all && all_finite(rows, count, dim_)) return add_finite(rows, count);
    for (std::size_t r = 0; r < count; ++r)
      if (const Matrix row{rows.data + r * rows.stride, rows.stride}; counts(r) && all_finite(row, 1, dim_))
        add_finite(row, 1);
  }

  /// Before anything is added: sums of squares about a row of the same population keep their digits where the mean is
  /// large.
  void refer_to(const float* row) {
    if (all_finite(Matrix{row, dim_}, 1, dim_)) std::copy_n(row, dim_, reference_);
  }

  double rows() const { return rows_; }
  double squares() const { return squares_; }  ///< Σ ‖row − reference‖²

  /// ‖mean‖² and Σ ‖row − mean‖².
  struct Moments {
    double mean_square, centred;
  };
  Moments moments() const {
    Moments m{0, squares_};
    for (std::size_t d = 0; d < dim_ && rows_ > 0; ++d) {
      const double shift = sums_[d] / rows_, mean = static_cast<double>(reference_[d]) + shift;
      m.mean_square += mean * mean;
      m.centred -= rows_ * shift * shift;
    }
    m.centred = std::max(0.0, m.centred);
    return m;
  }

 private:
  HWY_INLINE void add_finite(Matrix rows, std::size_t count) {
    V all_squares = hn::Zero(f32);
    std::size_t d = 0;
    for (; d + kLanes <= dim_; d += kLanes) {
      const V reference = hn::LoadU(f32, reference_ + d);
      V sum = hn::Zero(f32), squares = sum;
      for (std::size_t r = 0; r < count; ++r) {
        const V x = hn::Sub(hn::LoadU(f32, rows.data + r * rows.stride + d), reference);
        sum = hn::Add(sum, x);
        squares = hn::MulAdd(x, x, squares);
      }
      alignas(64) float lanes[kLanes];
      hn::Store(sum, f32, lanes);
      for (std::size_t i = 0; i < kLanes; ++i) sums_[d + i] += static_cast<double>(lanes[i]);
      all_squares = hn::Add(all_squares, squares);
    }
    squares_ += static_cast<double>(hn::GetLane(hn::SumOfLanes(f32, all_squares)));
    for (; d < dim_; ++d)
      for (std::size_t r = 0; r < count; ++r) {
        const double x = static_cast<double>(rows.data[r * rows.stride + d] - reference_[d]);
        sums_[d] += x;
        squares_ += x * x;
      }
    rows_ += static_cast<double>(count);
  }

  std::size_t dim_;
  float* reference_;
  double* sums_;
  double rows_ = 0, squares_ = 0;
};

HWY_INLINE bool wants_causes(const Problem& problem) {
  return problem.stats == StatsLevel::kFull && problem.stats_options.causes;
}

/// One a thread.
struct CausesScratch {
  float *reference, *rows;
  double* sums;
  std::uint8_t* seen;  ///< [len_kv]

  static constexpr std::int64_t kRows = 32;

  static CausesScratch take(base::Arena& arena, const Shape& s) {
    return {arena.take<float>(s.dim_qk), arena.take<float>(kRows * s.dim_qk), arena.take<double>(s.dim_qk),
            arena.take<std::uint8_t>(s.len_kv)};
  }
};

/// Fills in call.causes for the heads that read one key head, from the queries that see a key, as the records say, and
/// the keys that are seen.
HWY_NOINLINE void find_causes(const base::ForwardCall& call, std::int64_t b, std::int64_t kv_head,
                              const CausesScratch& scratch) {
  const Shape& s = call.plan.shape;
  const auto dim = static_cast<std::size_t>(s.dim_qk);
  const auto size = static_cast<double>(s.dim_qk);
  Causes causes;
  causes.dim = size;

  ComponentSums keys(dim, scratch.reference, scratch.sums);
  base::mark_seen_keys(call.plan.problem.mask, s, b, kv_head, scratch.seen);
  const std::int64_t first_seen = std::find(scratch.seen, scratch.seen + s.len_kv, std::uint8_t{1}) - scratch.seen;
  for (std::int64_t key0 = first_seen / CausesScratch::kRows * CausesScratch::kRows; key0 < s.len_kv;
       key0 += CausesScratch::kRows) {
    const auto count = static_cast<std::size_t>(std::min(CausesScratch::kRows, s.len_kv - key0));
    const std::uint8_t* seen = scratch.seen + key0;
    if (std::find(seen, seen + count, std::uint8_t{1}) == seen + count) continue;
    const Matrix k = load_keys(call.plan.problem, call.in.k, b, kv_head, key0, count, scratch.rows);
    if (first_seen >= key0) keys.refer_to(k.data + static_cast<std::size_t>(first_seen - key0) * k.stride);
    keys.add(k, count, [&](std::size_t r) { return seen[r] != 0; });
  }
  const ComponentSums::Moments moments = keys.moments();
  causes.key_mean_square = moments.mean_square;
  causes.k_variance = keys.rows() > 0 ? moments.centred / (keys.rows() * size) : 0;

  for (std::int64_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h) {
    ComponentSums queries(dim, scratch.reference, scratch.sums);
    for (std::int64_t first = 0; first < s.len_q; first += CausesScratch::kRows) {
      const auto count = static_cast<std::size_t>(std::min(CausesScratch::kRows, s.len_q - first));
      for (std::size_t r = 0; r < count; ++r)
        load_row(call.in.q.dtype, call.in.q.data,
                 base::offset_of(call.in.q, b, h, first + static_cast<std::int64_t>(r), 0), call.in.q.strides[3], dim,
                 scratch.rows + r * dim);
      const base::RowRecord* records = call.records + (b * s.heads_q + h) * s.len_q + first;
      queries.add({scratch.rows, dim}, count, [&](std::size_t r) { return records[r].visible > 0; });
    }
    causes.q_square = queries.rows() > 0 ? queries.squares() / (queries.rows() * size) : 0;
    call.causes[b * s.heads_q + h] = causes;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
