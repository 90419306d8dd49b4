// What the scores did: learned in the same pass that computes the output.
//
// Two places to look: raw is c·q·k, before soft-cap, your transform and biases (its maximum is what explodes in an
// unstable run); score is what softmax sees. Only visible keys count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

enum class StatsLevel : std::uint8_t {
  kNone,   ///< the output only
  kBasic,  ///< maxima, p_max, lse: by-products of softmax, so they are the default
  kFull,   ///< and moments, entropy, Σp², Σp³, the Jacobian's norms, quantiles
};

/// Counts on a fixed grid, so that adding two gives the histogram of both. What lies outside goes to the outermost bins.
struct Histogram {
  static constexpr int kBins = 512;

  double low = 0, high = 1;
  std::vector<std::uint64_t> counts;  ///< empty, or kBins

  ROOTDK_API void add(double x);
  ROOTDK_API void merge(const Histogram& other);

  /// The value below which a share `q` of what was added lies, to within a bin; NaN if nothing was added.
  ROOTDK_API double quantile(double q) const;
};

/// How the scores of a head are spread, over the visible pairs of its finite rows.
struct Spread {
  std::int64_t pairs = 0;
  double mean = 0;
  double m2 = 0;         ///< Σ (s − mean)²
  double within_m2 = 0;  ///< Σ (s − its row's mean)²
  std::int64_t within_degrees = 0;  ///< Σ (keys of the row − 1)
  double min = 0, max = 0;          ///< NaN without pairs
  std::int64_t max_query = -1, max_key = -1;  ///< where: the lowest query, then the lowest key

  double variance() const { return pairs > 1 ? m2 / static_cast<double>(pairs - 1) : 0; }

  /// The part that softmax can see.
  double within_row_variance() const { return within_degrees > 0 ? within_m2 / static_cast<double>(within_degrees) : 0; }
};

/// What softmax made of the scores: means over the rows that count, unless said otherwise.
struct SoftmaxStats {
  double entropy = 0, sum_p2 = 0, sum_p3 = 0;
  double effective_keys = 0;   ///< e^H
  double participation = 0;    ///< 1/Σp²
  double trace_j = 0;          ///< 1 − Σp²: tr of softmax's Jacobian
  double frobenius_j = 0;      ///< Σp² − 2Σp³ + (Σp²)²: its squared norm
  double sink_mass = 0;        ///< probability that the sink took
  double log_keys = 0;         ///< ln n: e to this is the geometric mean of the visible keys
  std::int64_t p_max_over[3] = {};  ///< rows with p_max > 0.5, 0.9, 0.99
  std::int64_t trace_j_under_001 = 0;  ///< rows with tr J < 0.01: they pass almost no gradient
  Histogram relative_entropy = {0, 1, {}};   ///< of H / ln n
  Histogram logit_p_max = {-16, 16, {}};     ///< of ln p/(1−p)
  Histogram log_trace_j = {-24, 0, {}};      ///< of ln tr J
};

/// One head of one batch item. Averages leave out rows with fewer than two visible keys (they look saturated whatever
/// the scores do) and rows that are not finite.
struct HeadStats {
  std::int64_t rows = 0;             ///< queries
  std::int64_t rows_masked = 0;      ///< of these, with no visible key
  std::int64_t rows_short = 0;       ///< of these, with fewer than two visible keys (the masked ones included)
  std::int64_t rows_not_finite = 0;  ///< of these, with NaN or Inf in the output or lse
  std::int64_t rows_counted = 0;     ///< the rows that averages are over
  float raw_max = 0;                 ///< largest c·q·k over visible pairs of finite rows; −inf if there is none
  float score_max = 0;               ///< the same just before softmax
  double mean_p_max = 0;             ///< mean over rows of the largest probability; NaN if no row counts
  double mean_lse = 0;               ///< mean over the same rows of ln Σ e^s
  Spread raw, score;                 ///< kFull only
  SoftmaxStats softmax;              ///< kFull only
};

/// Of both, as if one pass had seen all their rows. Rows of b count as coming after those of a.
ROOTDK_API HeadStats merge(const HeadStats& a, const HeadStats& b);

/// Heads in the order [batch][query head].
struct Stats {
  StatsLevel level = StatsLevel::kNone;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::vector<HeadStats> per_head;

  const HeadStats& at(std::int64_t batch_index, std::int64_t head) const {
    return per_head[static_cast<std::size_t>(batch_index * heads + head)];
  }
};

/// Per-row statistics, each an f32 (f64 for f64 problems) tensor [batch, heads_q, len_q, 1]; absent ones are not written.
struct RowTensors {
  Tensor raw_max = {};
  Tensor score_max = {};
  Tensor p_max = {};
  Tensor entropy = {};         ///< this and the following at kFull only
  Tensor sum_p2 = {};
  Tensor score_mean = {};
  Tensor score_variance = {};  ///< of the row's visible scores; 0 for fewer than two
};

}  // namespace rootdk
