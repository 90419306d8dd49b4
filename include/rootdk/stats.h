// What the scores did: learned in the same pass that computes the output.
//
// Two places to look: raw is c·q·k, before soft-cap, your transform and biases (its maximum is what explodes in an
// unstable run); score is what softmax sees. Only visible keys count.
//
// statistics.def has the name, the formula and a line about each number; most members below are made from it.
//
// Everything merges: over batches, steps, runs of queries and ranks, merge(a, b) is what one pass over both would have
// given, in any order. Counts are integers here; RunningStats (running_stats.h) uses the same types with decayed,
// fractional ones.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

enum class StatsLevel : std::uint8_t {
  kNone,   ///< the output only
  kBasic,  ///< maxima, p_max, lse: by-products of softmax, so they are the default
  kFull,   ///< and moments, entropy, Σp², Σp³, the Jacobian's norms, quantiles, causes
};

/// What to learn beyond the level, each at its own price. Plain data, part of a Problem.
struct StatsOptions {
  std::int64_t sample = 1;  ///< full statistics from every so many blocks of 64 queries; 1 means from all. Maxima,
                            ///< p_max and lse stay exact; standard_errors() says how far the rest may be off
  std::int64_t sample_offset = 0;  ///< take the blocks whose number modulo `sample` is this
  std::int64_t first_query = 0;    ///< what the first query is numbered, where it is not the first of its sequence
  bool causes =
      true;  ///< at kFull, σ_q, σ_k and the mean key: reads Q and K once more, which decoding notices, and a GPU
  bool by_keys = false;   ///< the same again in buckets by the number of visible keys
  bool gaps = false;      ///< how far keys lie below their row's maximum: costs a second pass over QKᵀ
  bool key_mass = false;  ///< Σ over queries of each key's probability, into Outputs::key_mass: the same second pass
};

inline constexpr std::int64_t kSampleBlock = 64;  ///< queries

/// Counts on a fixed grid, so that adding two gives the histogram of both. What lies outside goes to the outermost
/// bins.
template <class Count>
struct HistogramOf {
  static constexpr int kBins = 512;

  double low = 0, high = 1;
  std::vector<Count> counts = {};  ///< empty, or kBins

  ROOTDK_API void add(double x);
  ROOTDK_API void merge(const HistogramOf& other);

  /// The value below which a share `q` of what was added lies, to within a bin; NaN if nothing was added.
  ROOTDK_API double quantile(double q) const;
};

/// Numbers of keys by the distance m − s to their row's maximum: 16 bins to an octave, evenly spaced within it. The
/// first bin also holds what is nearer than 2⁻⁸ (the maximum itself), the last what is further than 2¹².
template <class Count>
struct GapHistogramOf {
  static constexpr int kPerOctave = 16, kLowest = -8, kHighest = 12, kBins = (kHighest - kLowest) * kPerOctave;

  std::vector<Count> counts = {};  ///< empty, or kBins

  /// The lower end of bin i; that of bin kBins is the upper end of the last.
  ROOTDK_API static double edge(int i);

  /// How many keys lie within x of their row's maximum, to within a bin.
  ROOTDK_API double within(double x) const;
};

/// How the scores of a head are spread, over the visible pairs of its finite rows.
template <class Count>
struct SpreadOf {
  Count pairs = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();  ///< this, min and max are NaN without pairs
  double m2 = 0;                                           ///< Σ (s − mean)²
  double within_m2 = 0;                                    ///< Σ (s − its row's mean)²
  Count within_degrees = 0;                                ///< Σ (keys of the row − 1)
  double min = std::numeric_limits<double>::quiet_NaN(), max = std::numeric_limits<double>::quiet_NaN();
  std::int64_t max_query = -1,
               max_key = -1;  ///< where: the lowest query, then the lowest key; −1 if that row was not sampled

  double total_variance() const { return pairs > 1 ? m2 / static_cast<double>(pairs - 1) : 0; }

  /// The part that softmax can see.
  double within_row_variance() const {
    return within_degrees > 0 ? within_m2 / static_cast<double>(within_degrees) : 0;
  }
};

/// Means over the rows that count of what softmax made of their scores.
struct SoftmaxMeans {
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) double name = 0;
#include "rootdk/statistics.def"

  static constexpr int kCount = 0
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) +1
#include "rootdk/statistics.def"
      ;
  /// All of them, for code that treats them alike, and their names.
  static constexpr std::array<double SoftmaxMeans::*, kCount> all();
  static constexpr std::array<const char*, kCount> names();
};

constexpr std::array<double SoftmaxMeans::*, SoftmaxMeans::kCount> SoftmaxMeans::all() {
  return {
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) &SoftmaxMeans::name,
#include "rootdk/statistics.def"
  };
}

constexpr std::array<const char*, SoftmaxMeans::kCount> SoftmaxMeans::names() {
  return {
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) #name,
#include "rootdk/statistics.def"
  };
}

template <class Count>
struct SoftmaxStatsOf : SoftmaxMeans {
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) Count rows_##name = 0;
#include "rootdk/statistics.def"
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) HistogramOf<Count> name = {low, high};
#include "rootdk/statistics.def"

  double p_max_quantile(double q) const { return 1 / (1 + std::exp(-logit_p_max.quantile(q))); }
  double trace_j_quantile(double q) const { return std::exp(log_trace_j.quantile(q)); }
};

/// Why a head's scores are where they are: Var(q·k) within a row is dim·σ_q²·σ_k²·alignment. Over the queries that see
/// a key and the keys that a query of any head of their group sees, where they are finite.
struct Causes {
  double weight = 0;  ///< queries this is over, for merging
  double dim = 0;
  double q_square = 0;         ///< mean square of q's components
  double k_variance = 0;       ///< mean square of k's components, each about its mean over the keys
  double key_mean_square = 0;  ///< of the length of the mean key (rotary aside, softmax does not see it)
  double scale_square = 0;     ///< mean over queries of c²

  double sigma_q() const { return std::sqrt(q_square); }
  double sigma_k() const { return std::sqrt(k_variance); }
  double key_mean_norm() const { return std::sqrt(key_mean_square); }
};

/// Sums over blocks of 64 queries of products of a block's total x and its weight n: what standard errors need.
struct BlockSums {
  double xx = 0, xn = 0, nn = 0;
};

template <class Count>
struct SampledBlocksOf {
  Count all = 0, seen = 0;  ///< blocks
  std::array<BlockSums, SoftmaxMeans::kCount> means = {};
  BlockSums raw_within_row_variance, score_within_row_variance;
};

template <class Count>
struct KeyBucketOf;

/// One head of one batch item. Averages leave out rows with fewer than two visible keys (they look saturated whatever
/// the scores do) and rows that are not finite.
template <class Count>
struct HeadStatsOf {
#define ROOTDK_ROW_COUNT(level, name, when, doc) Count name = 0;
#define ROOTDK_MAXIMUM(name, doc) float name = -std::numeric_limits<float>::infinity();
#define ROOTDK_MEAN(name, value, doc) double name = 0;
#include "rootdk/statistics.def"

  // kFull only:
  SpreadOf<Count> raw, score;
  SoftmaxStatsOf<Count> softmax;
  Causes causes;
  SampledBlocksOf<Count> blocks;

  // On request:
  GapHistogramOf<Count> gaps;
  std::vector<KeyBucketOf<Count>> by_keys;  ///< ascending, without empty ones

  /// Var(q·k) within rows, as a multiple of what directions that know nothing of each other would give; NaN where
  /// unknown.
  ROOTDK_API double alignment() const;
};

/// The rows with at least `from` and fewer than 2·from visible keys; `from` is a power of two, or 0 for rows that see
/// none.
template <class Count>
struct KeyBucketOf {
  std::int64_t from = 0;
  HeadStatsOf<Count> stats;
};

using Histogram = HistogramOf<std::int64_t>;
using GapHistogram = GapHistogramOf<std::int64_t>;
using Spread = SpreadOf<std::int64_t>;
using SoftmaxStats = SoftmaxStatsOf<std::int64_t>;
using HeadStats = HeadStatsOf<std::int64_t>;
using KeyBucket = KeyBucketOf<std::int64_t>;

/// Of both, as if one pass had seen all their rows.
template <class Count>
ROOTDK_API HeadStatsOf<Count> merge(const HeadStatsOf<Count>& a, const HeadStatsOf<Count>& b);

/// By how much a sample may be off: one standard deviation of each mean, taken between blocks of queries. 0 where every
/// block was seen, NaN where fewer than two were.
struct StandardErrors : SoftmaxMeans {
  double raw_within_row_variance = 0, score_within_row_variance = 0;
};

ROOTDK_API StandardErrors standard_errors(const HeadStats& head);

/// Heads in the order [batch][query head].
template <class Count>
struct StatsOf {
  StatsLevel level = StatsLevel::kNone;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::vector<HeadStatsOf<Count>> per_head = {};

  const HeadStatsOf<Count>& at(std::int64_t batch_index, std::int64_t head) const {
    return per_head[static_cast<std::size_t>(batch_index * heads + head)];
  }
};

using Stats = StatsOf<std::int64_t>;

/// Head by head; both have the same level, batch and heads. An empty Stats is the neutral element.
template <class Count>
ROOTDK_API StatsOf<Count> merge(const StatsOf<Count>& a, const StatsOf<Count>& b);

/// One batch item that stands for all.
template <class Count>
ROOTDK_API StatsOf<Count> over_batch(const StatsOf<Count>& stats);

/// What backward learns at StatsLevel::kFull about one head. Sums of squares, so merging adds.
struct HeadGradients {
#define ROOTDK_GRADIENT(sign, name, doc) double name = 0;
#include "rootdk/statistics.def"
};

/// Heads in the order [batch][query head]; empty below kFull.
struct GradientStats {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::vector<HeadGradients> per_head = {};

  const HeadGradients& at(std::int64_t batch_index, std::int64_t head) const {
    return per_head[static_cast<std::size_t>(batch_index * heads + head)];
  }
};

ROOTDK_API GradientStats merge(const GradientStats& a, const GradientStats& b);

/// Per-row statistics, each an f32 (f64 for f64 problems) tensor [batch, heads_q, len_q, 1]; absent ones are not
/// written.
struct RowTensors {
#define ROOTDK_BASIC_ROW(name, doc) Tensor name = {};
#include "rootdk/statistics.def"

  // kFull only, and NaN in rows that were not sampled:
#define ROOTDK_FULL_ROW(merges, name, value, doc) Tensor name = {};
#include "rootdk/statistics.def"
};

}  // namespace rootdk
