// How statistics combine, and what can be read off them.
#include "rootdk/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/refuse.h"

namespace rootdk {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Of two means over so much weight each.
double merged_mean(double a, double weight_a, double b, double weight_b) {
  if (weight_a == 0 || weight_b == 0) return weight_a == 0 ? b : a;
  return a + (b - a) * weight_b / (weight_a + weight_b);
}

template <class Count>
void add_counts(std::vector<Count>& into, const std::vector<Count>& other) {
  if (into.empty()) into = other;
  else
    for (std::size_t i = 0; i < other.size(); ++i) into[i] += other[i];
}

template <class Count>
double total(const std::vector<Count>& counts) {
  double sum = 0;
  for (const Count n : counts) sum += static_cast<double>(n);
  return sum;
}

template <class Count>
SpreadOf<Count> merged(const SpreadOf<Count>& a, const SpreadOf<Count>& b) {
  // Whose maximum it is: of equal ones the lowest query's that is known, then the lowest key's; NaN is none.
  const auto place = [](const SpreadOf<Count>& s) {
    return std::pair{static_cast<std::uint64_t>(s.max_query), s.max_key};
  };
  const bool of_b = std::isnan(a.max) || b.max > a.max || (b.max == a.max && place(b) < place(a));
  SpreadOf<Count> out = of_b ? b : a;
  const auto n = static_cast<double>(a.pairs), m = static_cast<double>(b.pairs);
  const double between = n > 0 && m > 0 ? (b.mean - a.mean) * (b.mean - a.mean) * n * m / (n + m) : 0;
  out.pairs = a.pairs + b.pairs;
  out.mean = merged_mean(a.mean, n, b.mean, m);
  out.m2 = a.m2 + b.m2 + between;
  out.within_m2 = a.within_m2 + b.within_m2;
  out.within_degrees = a.within_degrees + b.within_degrees;
  out.min = std::fmin(a.min, b.min);
  return out;
}

Causes merged(const Causes& a, const Causes& b) {
  Causes out = a.weight > 0 ? a : b;
  for (double Causes::*mean : {&Causes::q_square, &Causes::k_variance, &Causes::key_mean_square, &Causes::scale_square})
    out.*mean = merged_mean(a.*mean, a.weight, b.*mean, b.weight);
  out.weight = a.weight + b.weight;
  return out;
}

BlockSums merged(const BlockSums& a, const BlockSums& b) { return {a.xx + b.xx, a.xn + b.xn, a.nn + b.nn}; }

template <class Count>
SampledBlocksOf<Count> merged(const SampledBlocksOf<Count>& a, const SampledBlocksOf<Count>& b) {
  SampledBlocksOf<Count> out = {a.all + b.all,
                                a.seen + b.seen,
                                {},
                                merged(a.raw_within_row_variance, b.raw_within_row_variance),
                                merged(a.score_within_row_variance, b.score_within_row_variance)};
  for (std::size_t i = 0; i < out.means.size(); ++i) out.means[i] = merged(a.means[i], b.means[i]);
  return out;
}

template <class Count>
std::vector<KeyBucketOf<Count>> merged(const std::vector<KeyBucketOf<Count>>& a,
                                       const std::vector<KeyBucketOf<Count>>& b) {
  std::vector<KeyBucketOf<Count>> out;
  auto x = a.begin(), y = b.begin();
  while (x != a.end() || y != b.end()) {
    if (y == b.end() || (x != a.end() && x->from < y->from)) out.push_back(*x++);
    else if (x == a.end() || y->from < x->from) out.push_back(*y++);
    else out.push_back({x->from, merge(x->stats, y->stats)}), ++x, ++y;
  }
  return out;
}

}  // namespace

template <class Count>
void HistogramOf<Count>::add(double x) {
  if (counts.empty()) counts.resize(kBins);
  const double place = std::floor((x - low) / (high - low) * kBins);
  counts[place > 0 ? static_cast<std::size_t>(std::min(place, kBins - 1.0)) : 0] += 1;
}

template <class Count>
void HistogramOf<Count>::merge(const HistogramOf& other) {
  add_counts(counts, other.counts);
}

template <class Count>
double HistogramOf<Count>::quantile(double q) const {
  const double all = total(counts), wanted = q * all;
  if (all == 0) return kNan;
  double below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto n = static_cast<double>(counts[i]);
    if (n > 0 && below + n >= wanted)
      return low + (high - low) * (static_cast<double>(i) + (wanted - below) / n) / kBins;
    below += n;
  }
  return high;
}

template <class Count>
double GapHistogramOf<Count>::edge(int i) {
  const int octave = i / kPerOctave, part = i % kPerOctave;
  return std::ldexp(1.0 + static_cast<double>(part) / kPerOctave, kLowest + octave);
}

template <class Count>
double GapHistogramOf<Count>::within(double x) const {
  double keys = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double from = i == 0 ? 0 : edge(static_cast<int>(i)), to = edge(static_cast<int>(i) + 1);
    keys += static_cast<double>(counts[i]) * std::clamp((x - from) / (to - from), 0.0, 1.0);
  }
  return keys;
}

template <class Count>
double HeadStatsOf<Count>::alignment() const {
  const double independent = causes.scale_square * causes.dim * causes.q_square * causes.k_variance;
  return independent > 0 && raw.within_degrees > 0 ? raw.within_row_variance() / independent : kNan;
}

template <class Count>
HeadStatsOf<Count> merge(const HeadStatsOf<Count>& a, const HeadStatsOf<Count>& b) {
  HeadStatsOf<Count> out;
  const auto mean = [](double x, Count n, double y, Count m) {
    return merged_mean(x, static_cast<double>(n), y, static_cast<double>(m));
  };
#define ROOTDK_ROW_COUNT(level, name, when, doc) out.name = a.name + b.name;
#define ROOTDK_MAXIMUM(name, doc) out.name = std::max(a.name, b.name);
#define ROOTDK_MEAN(name, value, doc) out.name = mean(a.name, a.rows_counted, b.name, b.rows_counted);
#include "rootdk/statistics.def"
  out.raw = merged(a.raw, b.raw);
  out.score = merged(a.score, b.score);
  out.softmax = a.softmax;
  for (double SoftmaxMeans::*member : SoftmaxMeans::all())
    out.softmax.*member = mean(a.softmax.*member, a.rows_sampled, b.softmax.*member, b.rows_sampled);
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) out.softmax.rows_##name += b.softmax.rows_##name;
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) out.softmax.name.merge(b.softmax.name);
#include "rootdk/statistics.def"
  out.causes = merged(a.causes, b.causes);
  out.blocks = merged(a.blocks, b.blocks);
  out.gaps = a.gaps;
  add_counts(out.gaps.counts, b.gaps.counts);
  out.by_keys = merged(a.by_keys, b.by_keys);
  return out;
}

template <class Count>
StatsOf<Count> merge(const StatsOf<Count>& a, const StatsOf<Count>& b) {
  if (a.per_head.empty() || b.per_head.empty()) return a.per_head.empty() ? b : a;
  if (a.level != b.level) base::refuse("merge: one has full statistics and the other has not");
  if (a.batch != b.batch || a.heads != b.heads)
    base::refuse(
        "merge: {} batch items of {} heads and {} of {}, but the same are wanted (over_batch() makes one item of all)",
        a.batch, a.heads, b.batch, b.heads);
  StatsOf<Count> out = a;
  for (std::size_t i = 0; i < out.per_head.size(); ++i) out.per_head[i] = merge(a.per_head[i], b.per_head[i]);
  return out;
}

template <class Count>
StatsOf<Count> over_batch(const StatsOf<Count>& stats) {
  StatsOf<Count> out{stats.level, stats.batch > 0 ? 1 : 0, stats.heads, {}};
  for (std::int64_t h = 0; h < stats.heads && !stats.per_head.empty(); ++h) {
    out.per_head.push_back(stats.at(0, h));
    for (std::int64_t b = 1; b < stats.batch; ++b) out.per_head.back() = merge(out.per_head.back(), stats.at(b, h));
  }
  return out;
}

StandardErrors standard_errors(const HeadStats& head) {
  const auto& blocks = head.blocks;
  const auto all = static_cast<double>(blocks.all), seen = static_cast<double>(blocks.seen);
  // Blocks are clusters of unequal weight n, the mean is Σx/Σn: a ratio estimate (Cochran, Sampling Techniques, 6.4) of
  // a finite population.
  const auto error = [&](const BlockSums& sums, double mean, double weight) {
    if (blocks.seen == blocks.all) return 0.0;
    if (blocks.seen < 2 || !(weight > 0)) return kNan;
    const double residuals = std::max(0.0, sums.xx - 2 * mean * sums.xn + mean * mean * sums.nn);
    return std::sqrt((1 - seen / all) * seen / (seen - 1) * residuals) / weight;
  };
  StandardErrors errors;
  for (std::size_t i = 0; i < blocks.means.size(); ++i) {
    double SoftmaxMeans::*member = SoftmaxMeans::all()[i];
    errors.*member = error(blocks.means[i], head.softmax.*member, static_cast<double>(head.rows_sampled));
  }
  errors.raw_within_row_variance = error(blocks.raw_within_row_variance, head.raw.within_row_variance(),
                                         static_cast<double>(head.raw.within_degrees));
  errors.score_within_row_variance = error(blocks.score_within_row_variance, head.score.within_row_variance(),
                                           static_cast<double>(head.score.within_degrees));
  return errors;
}

GradientStats merge(const GradientStats& a, const GradientStats& b) {
  if (a.per_head.empty() || b.per_head.empty()) return a.per_head.empty() ? b : a;
  if (a.batch != b.batch || a.heads != b.heads)
    base::refuse("merge: {} batch items of {} heads and {} of {}, but the same are wanted", a.batch, a.heads, b.batch,
                 b.heads);
  GradientStats out = a;
  for (std::size_t i = 0; i < out.per_head.size(); ++i) {
#define ROOTDK_GRADIENT(sign, name, doc) out.per_head[i].name += b.per_head[i].name;
#include "rootdk/statistics.def"
  }
  return out;
}

#define ROOTDK_INSTANTIATE(Count)                                                                     \
  template struct HistogramOf<Count>;                                                                 \
  template struct GapHistogramOf<Count>;                                                              \
  template struct HeadStatsOf<Count>;                                                                 \
  template ROOTDK_API HeadStatsOf<Count> merge(const HeadStatsOf<Count>&, const HeadStatsOf<Count>&); \
  template ROOTDK_API StatsOf<Count> merge(const StatsOf<Count>&, const StatsOf<Count>&);             \
  template ROOTDK_API StatsOf<Count> over_batch(const StatsOf<Count>&)
ROOTDK_INSTANTIATE(std::int64_t);
ROOTDK_INSTANTIATE(double);
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk
