// Why scores are spread as they are: the sizes of queries and keys, one more read of both.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "base/call.h"
#include "base/visibility.h"
#include "cpu/parallel.h"

#if defined(ROOTDK_CPU_CAUSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_CAUSES_INL_H_
#undef ROOTDK_CPU_CAUSES_INL_H_
#else
#define ROOTDK_CPU_CAUSES_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Sums over rows [count][dim], each about `reference`. Rows that are not finite are left out.
class ComponentSums {
 public:
  ComponentSums(std::size_t dim, float* reference, float* partial, double* sums)
      : dim_(dim), reference_(reference), partial_(partial), sums_(sums) {}

  /// The first row becomes the reference, unless it is to be 0.
  void start(bool about_first) {
    std::fill_n(reference_, dim_, 0.0f);
    std::fill_n(partial_, dim_, 0.0f);
    std::fill_n(sums_, dim_, 0.0);
    rows_ = in_partial_ = 0;
    squares_ = 0;
    wants_reference_ = about_first;
  }

  HWY_INLINE void add(const float* HWY_RESTRICT row) {
    float square = squared_distance(row);
    if (!std::isfinite(square)) return;
    if (wants_reference_) std::copy_n(row, dim_, reference_), wants_reference_ = false, square = 0;
    squares_ += static_cast<double>(square);
    const float *HWY_RESTRICT from = reference_;
    float* HWY_RESTRICT to = partial_;
    for (std::size_t d = 0; d < dim_; ++d) to[d] += row[d] - from[d];
    ++rows_;
    if (++in_partial_ == kPartial) flush();
  }

  double rows() const { return static_cast<double>(rows_); }
  double squares() const { return squares_; }  ///< Σ ‖row − reference‖²

  /// ‖mean‖² and Σ ‖row − mean‖².
  struct Moments {
    double mean_square, centred;
  };
  Moments moments() {
    flush();
    Moments m{0, squares_};
    for (std::size_t d = 0; d < dim_ && rows_ > 0; ++d) {
      const double shift = sums_[d] / rows(), mean = static_cast<double>(reference_[d]) + shift;
      m.mean_square += mean * mean;
      m.centred -= rows() * shift * shift;
    }
    m.centred = std::max(0.0, m.centred);
    return m;
  }

 private:
  static constexpr int kPartial = 64;  // rows that f32 sums up before double takes over

  HWY_INLINE float squared_distance(const float* HWY_RESTRICT row) const {
    V sum = hn::Zero(f32);
    std::size_t d = 0;
    for (; d + kLanes <= dim_; d += kLanes) {
      const V x = hn::Sub(hn::LoadU(f32, row + d), hn::LoadU(f32, reference_ + d));
      sum = hn::MulAdd(x, x, sum);
    }
    float total = hn::GetLane(hn::SumOfLanes(f32, sum));
    for (; d < dim_; ++d) total += (row[d] - reference_[d]) * (row[d] - reference_[d]);
    return total;
  }

  void flush() {
    for (std::size_t d = 0; d < dim_; ++d) sums_[d] += static_cast<double>(partial_[d]), partial_[d] = 0;
    in_partial_ = 0;
  }

  std::size_t dim_;
  float *reference_, *partial_;
  double* sums_;
  std::int64_t rows_ = 0;
  int in_partial_ = 0;
  double squares_ = 0;
  bool wants_reference_ = false;
};

HWY_INLINE bool wants_causes(const Problem& problem) { return problem.stats == StatsLevel::kFull && problem.stats_options.causes; }

/// One a thread.
struct CausesScratch {
  float *reference, *partial, *rows;
  double* sums;

  static constexpr std::int64_t kRows = 32;

  static CausesScratch take(base::Arena& arena, const Shape& s) {
    return {arena.take<float>(s.dim_qk), arena.take<float>(s.dim_qk), arena.take<float>(kRows * s.dim_qk), arena.take<double>(s.dim_qk)};
  }
};

/// Fills in call.causes for the heads that read one key head.
HWY_NOINLINE void find_causes(const base::ForwardCall& call, std::int64_t b, std::int64_t kv_head, const CausesScratch& scratch) {
  const Shape& s = call.plan.shape;
  const auto dim = static_cast<std::size_t>(s.dim_qk);
  const auto size = static_cast<double>(s.dim_qk);
  ComponentSums sums(dim, scratch.reference, scratch.partial, scratch.sums);
  Causes causes;
  causes.dim = size;

  sums.start(true);
  const std::int64_t len_kv = base::key_length(call.plan.problem.mask, s, b);
  for (std::int64_t key0 = 0; key0 < len_kv; key0 += CausesScratch::kRows) {
    const auto keys = static_cast<std::size_t>(std::min(CausesScratch::kRows, len_kv - key0));
    const Matrix k = load_keys(call.plan.problem, call.in.k, b, kv_head, key0, keys, scratch.rows);
    for (std::size_t j = 0; j < keys; ++j) sums.add(k.data + j * k.stride);
  }
  const ComponentSums::Moments moments = sums.moments();
  causes.key_mean_square = moments.mean_square;
  causes.k_variance = sums.rows() > 0 ? moments.centred / (sums.rows() * size) : 0;

  for (std::int64_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h) {
    sums.start(false);
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      load_row(call.in.q.dtype, call.in.q.data, base::offset_of(call.in.q, b, h, i, 0), call.in.q.strides[3], dim, scratch.rows);
      sums.add(scratch.rows);
    }
    causes.q_square = sums.rows() > 0 ? sums.squares() / (sums.rows() * size) : 0;
    call.causes[b * s.heads_q + h] = causes;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
