// The statistics of a head as columns: each by its name, as a number, with all that the table (statistics.def) says of
// it. JSON, the C struct and the Python module are filled from these.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rootdk/stats.h"

namespace rootdk::base {

/// How a column merges: the words of the table.
enum class Merges : std::uint8_t {
  sum,
  maximum,
  minimum,
  mean_by_rows_counted,
  mean_by_rows_sampled,
  mean_by_pairs,
  mean_square_by_queries,
  of_the_maximum,
  again,
  error,
};

template <class Count>
struct HeadColumn {
  const char* name;
  StatsLevel level;
  bool whole;  ///< a whole number
  Merges merges;
  double (*value)(const HeadStatsOf<Count>& head);  ///< NaN where it is not known
  const char* doc;
};

/// A function for each column.
namespace head_values {

// What the formulas are written with
// -----------------------------------------------------------------------------------

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

template <class Count>
double share(Count part, const HeadStatsOf<Count>& head) {
  return head.rows_sampled > 0 ? static_cast<double>(part) / static_cast<double>(head.rows_sampled) : kUnknown;
}

template <class Count>
double total_variance(const SpreadOf<Count>& spread) {
  return spread.pairs > 1 ? spread.total_variance() : kUnknown;
}

template <class Count>
double within_row_variance(const SpreadOf<Count>& spread) {
  return spread.within_degrees > 0 ? spread.within_row_variance() : kUnknown;
}

template <class Count>
double keys_of(const HeadStatsOf<Count>& head) {
  return std::exp(head.softmax.log_keys);
}

/// σ_c of theory::critical_sigma.
template <class Count>
double critical(const HeadStatsOf<Count>& head) {
  const double n = keys_of(head);
  return n >= 2 ? std::sqrt(2 * std::log(n)) : kUnknown;
}

/// Of the causes.
template <class Count>
double if_measured(const HeadStatsOf<Count>& head, double cause) {
  return head.causes.weight > 0 ? cause : kUnknown;
}

/// Decayed statistics have none: their blocks are not whole.
template <class Count>
StandardErrors errors(const HeadStatsOf<Count>& head) {
  if constexpr (std::is_integral_v<Count>) {
    return standard_errors(head);
  } else {
    StandardErrors none;
    for (double SoftmaxMeans::*mean : SoftmaxMeans::all()) none.*mean = kUnknown;
    none.raw_within_row_variance = none.score_within_row_variance = kUnknown;
    return none;
  }
}

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

#define ROOTDK_STATISTIC(level, type, name, formula, merges, doc) \
  template <class Count>                                          \
  double name(const HeadStatsOf<Count>& head) {                   \
    return static_cast<double>(formula);                          \
  }
#include "rootdk/statistics.def"

}  // namespace head_values

/// Of the table, as columns have them.
namespace words {
inline constexpr StatsLevel basic = StatsLevel::kBasic, full = StatsLevel::kFull;
inline constexpr bool whole = true, real = false;
}  // namespace words

template <class Count>
inline constexpr HeadColumn<Count> kHeadColumns[] = {
#define ROOTDK_STATISTIC(level, type, name, formula, merges, doc) \
  {#name, words::level, words::type, Merges::merges, &head_values::name<Count>, doc},
#include "rootdk/statistics.def"
};

struct GradientColumn {
  const char* name;
  double HeadGradients::*value;
  const char* doc;
};

inline constexpr GradientColumn kGradientColumns[] = {
#define ROOTDK_GRADIENT(sign, name, doc) {#name, &HeadGradients::name, doc},
#include "rootdk/statistics.def"
};

}  // namespace rootdk::base
