// Statistics multiplied by a weight, which makes an exponential average the same as merging.
#include "rootdk/running_stats.h"

#include <cstddef>

#include "base/refuse.h"

namespace rootdk {

namespace {

template <class Count>
std::vector<double> weighted(const std::vector<Count>& counts, double weight) {
  std::vector<double> out;
  out.reserve(counts.size());
  for (const Count n : counts) out.push_back(weight * static_cast<double>(n));
  return out;
}

template <class Count>
SpreadOf<double> weighted(const SpreadOf<Count>& s, double weight) {
  return {weight * static_cast<double>(s.pairs),
          s.mean,
          weight * s.m2,
          weight * s.within_m2,
          weight * static_cast<double>(s.within_degrees),
          s.min,
          s.max,
          s.max_query,
          s.max_key};
}

BlockSums weighted(const BlockSums& s, double weight) { return {weight * s.xx, weight * s.xn, weight * s.nn}; }

// The same head, seen `weight` times.
template <class Count>
DecayedHeadStats weighted(const HeadStatsOf<Count>& head, double weight) {
  const auto count = [weight](Count n) { return weight * static_cast<double>(n); };
  DecayedHeadStats out;
#define ROOTDK_ROW_COUNT(level, name, when, doc) out.name = count(head.name);
#define ROOTDK_MAXIMUM(name, doc) out.name = head.name;
#define ROOTDK_MEAN(name, value, doc) out.name = head.name;
#include "rootdk/statistics.def"
  out.raw = weighted(head.raw, weight);
  out.score = weighted(head.score, weight);
  static_cast<SoftmaxMeans&>(out.softmax) = head.softmax;
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) out.softmax.rows_##name = count(head.softmax.rows_##name);
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) \
  out.softmax.name.counts = weighted(head.softmax.name.counts, weight);
#include "rootdk/statistics.def"
  out.causes = head.causes;
  out.causes.weight *= weight;
  out.blocks.all = count(head.blocks.all);
  out.blocks.seen = count(head.blocks.seen);
  for (std::size_t i = 0; i < out.blocks.means.size(); ++i)
    out.blocks.means[i] = weighted(head.blocks.means[i], weight);
  out.blocks.raw_within_row_variance = weighted(head.blocks.raw_within_row_variance, weight);
  out.blocks.score_within_row_variance = weighted(head.blocks.score_within_row_variance, weight);
  out.gaps.counts = weighted(head.gaps.counts, weight);
  for (const KeyBucketOf<Count>& bucket : head.by_keys)
    out.by_keys.push_back({bucket.from, weighted(bucket.stats, weight)});
  return out;
}

template <class Count>
DecayedStats weighted(const StatsOf<Count>& stats, double weight) {
  DecayedStats out{stats.level, stats.batch, stats.heads, {}};
  for (const HeadStatsOf<Count>& head : stats.per_head) out.per_head.push_back(weighted(head, weight));
  return out;
}

}  // namespace

RunningStats::RunningStats(double decay) : decay_(decay) {
  if (!(decay >= 0 && decay <= 1)) base::refuse("decay: {}, but a number from 0 to 1 is wanted", decay);
}

void RunningStats::add(const Stats& step) { stats_ = merge(weighted(stats_, decay_), weighted(step, 1)); }

}  // namespace rootdk
