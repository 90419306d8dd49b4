// Random statistics with every field in use, and their comparison bit for bit. The comparison takes structs apart by
// structured bindings, so a new member does not compile until it is compared here, and is then found missing in the
// JSON.
#pragma once

#include <rapidcheck.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "rootdk/running_stats.h"
#include "rootdk/stats.h"

namespace rootdk::report {

// Comparison ----------------------------------------------------------------------------------------------------------

inline bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}
inline bool same(float a, float b) { return same(static_cast<double>(a), static_cast<double>(b)); }
inline bool same(std::int64_t a, std::int64_t b) { return a == b; }

// What vectors are of, declared before the comparison of vectors looks for it.
bool same(const HeadGradients& a, const HeadGradients& b);
template <class Count>
bool same(const KeyBucketOf<Count>& a, const KeyBucketOf<Count>& b);
template <class Count>
bool same(const HeadStatsOf<Count>& a, const HeadStatsOf<Count>& b);

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return false;
  return true;
}

template <class Count>
bool same(const HistogramOf<Count>& a, const HistogramOf<Count>& b) {
  const auto& [low, high, counts] = a;
  return same(low, b.low) && same(high, b.high) && same(counts, b.counts);
}

template <class Count>
bool same(const GapHistogramOf<Count>& a, const GapHistogramOf<Count>& b) {
  const auto& [counts] = a;
  return same(counts, b.counts);
}

template <class Count>
bool same(const SpreadOf<Count>& a, const SpreadOf<Count>& b) {
  const auto& [pairs, mean, m2, within_m2, within_degrees, min, max, max_query, max_key] = a;
  return same(pairs, b.pairs) && same(mean, b.mean) && same(m2, b.m2) && same(within_m2, b.within_m2) &&
         same(within_degrees, b.within_degrees) && same(min, b.min) && same(max, b.max) &&
         same(max_query, b.max_query) && same(max_key, b.max_key);
}

template <class Count>
bool same(const SoftmaxStatsOf<Count>& a, const SoftmaxStatsOf<Count>& b) {
  static_assert(sizeof(SoftmaxMeans) == SoftmaxMeans::kCount * sizeof(double));
  for (double SoftmaxMeans::*mean : SoftmaxMeans::all())
    if (!same(a.*mean, b.*mean)) return false;
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) \
  if (!same(a.rows_##name, b.rows_##name)) return false;
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) \
  if (!same(a.name, b.name)) return false;
#include "rootdk/statistics.def"
  return true;
}

inline bool same(const Causes& a, const Causes& b) {
  const auto& [weight, dim, q_square, k_variance, key_mean_square, scale_square] = a;
  return same(weight, b.weight) && same(dim, b.dim) && same(q_square, b.q_square) && same(k_variance, b.k_variance) &&
         same(key_mean_square, b.key_mean_square) && same(scale_square, b.scale_square);
}

inline bool same(const BlockSums& a, const BlockSums& b) {
  const auto& [xx, xn, nn] = a;
  return same(xx, b.xx) && same(xn, b.xn) && same(nn, b.nn);
}

template <class Count>
bool same(const SampledBlocksOf<Count>& a, const SampledBlocksOf<Count>& b) {
  const auto& [all, seen, means, raw, score] = a;
  for (std::size_t i = 0; i < means.size(); ++i)
    if (!same(means[i], b.means[i])) return false;
  return same(all, b.all) && same(seen, b.seen) && same(raw, b.raw_within_row_variance) &&
         same(score, b.score_within_row_variance);
}

template <class Count>
bool same(const KeyBucketOf<Count>& a, const KeyBucketOf<Count>& b) {
  const auto& [from, stats] = a;
  return same(from, b.from) && same(stats, b.stats);
}

template <class Count>
bool same(const HeadStatsOf<Count>& a, const HeadStatsOf<Count>& b) {
  const auto& [
#define ROOTDK_ROW_COUNT(level, name, when, doc) name,
#define ROOTDK_MAXIMUM(name, doc) name,
#define ROOTDK_MEAN(name, value, doc) name,
#include "rootdk/statistics.def"
      raw, score, softmax, causes, blocks, gaps, by_keys] = a;
#define ROOTDK_ROW_COUNT(level, name, when, doc) \
  if (!same(name, b.name)) return false;
#define ROOTDK_MAXIMUM(name, doc) \
  if (!same(name, b.name)) return false;
#define ROOTDK_MEAN(name, value, doc) \
  if (!same(name, b.name)) return false;
#include "rootdk/statistics.def"
  return same(raw, b.raw) && same(score, b.score) && same(softmax, b.softmax) && same(causes, b.causes) &&
         same(blocks, b.blocks) && same(gaps, b.gaps) && same(by_keys, b.by_keys);
}

template <class Count>
bool same(const StatsOf<Count>& a, const StatsOf<Count>& b) {
  const auto& [level, batch, heads, per_head] = a;
  return level == b.level && batch == b.batch && heads == b.heads && same(per_head, b.per_head);
}

inline bool same(const HeadGradients& a, const HeadGradients& b) {
  const auto& [d_scores, d_log_scale, d_q, d_k, d_v] = a;
  return same(d_scores, b.d_scores) && same(d_log_scale, b.d_log_scale) && same(d_q, b.d_q) && same(d_k, b.d_k) &&
         same(d_v, b.d_v);
}

inline bool same(const GradientStats& a, const GradientStats& b) {
  const auto& [batch, heads, per_head] = a;
  return batch == b.batch && heads == b.heads && same(per_head, b.per_head);
}

// Generation ----------------------------------------------------------------------------------------------------------

/// Over the whole range from the first case on; left alone, RapidCheck starts with the smallest values.
template <class T>
T drawn(const rc::Gen<T>& gen) {
  return *rc::gen::resize(rc::kNominalSize, gen);
}
inline int pick(int end) { return drawn(rc::gen::inRange(0, end)); }

/// Every kind of double: any bits at all, and the special ones often.
inline double any_double() {
  using Limits = std::numeric_limits<double>;
  if (pick(3) != 0) return std::bit_cast<double>(drawn(rc::gen::arbitrary<std::uint64_t>()));
  return *rc::gen::element(0.0, -0.0, 1.0, 1.0 / 3, 0.1, -1e22, Limits::max(), Limits::min(), Limits::denorm_min(),
                           Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity());
}

inline float any_float() {
  return pick(2) == 0 ? std::bit_cast<float>(drawn(rc::gen::arbitrary<std::uint32_t>()))
                      : -std::numeric_limits<float>::infinity();
}

inline double any_size() { return std::fabs(any_double()); }

template <class Count>
Count any_count() {
  if constexpr (std::is_integral_v<Count>) {
    return *rc::gen::element<std::int64_t>(0, 1, pick(1'000'000), std::int64_t{1} << 60);
  } else {
    const double x = any_size();
    return std::isfinite(x) ? x : 0.5;
  }
}

inline std::int64_t any_index() {
  return *rc::gen::element<std::int64_t>(-1, 0, 77, std::numeric_limits<std::int64_t>::max());
}

template <class Count>
std::vector<Count> any_counts(int bins) {
  std::vector<Count> counts;
  if (pick(4) == 0) return counts;
  counts.resize(static_cast<std::size_t>(bins));
  const int filled = pick(6);
  for (int i = 0; i < filled; ++i) counts[static_cast<std::size_t>(pick(bins))] = any_count<Count>();
  return counts;
}

template <class Count>
SpreadOf<Count> any_spread() {
  return {any_count<Count>(), any_double(), any_size(),  any_size(), any_count<Count>(),
          any_double(),       any_double(), any_index(), any_index()};
}

inline BlockSums any_sums() { return {any_size(), any_double(), any_size()}; }

template <class Count>
HeadStatsOf<Count> any_head(bool with_buckets = true) {
  HeadStatsOf<Count> h;
#define ROOTDK_ROW_COUNT(level, name, when, doc) h.name = any_count<Count>();
#define ROOTDK_MAXIMUM(name, doc) h.name = any_float();
#define ROOTDK_MEAN(name, value, doc) h.name = any_double();
#include "rootdk/statistics.def"
  const auto there = [] { return pick(4) != 0; };  // else as it is by default
  if (there()) h.raw = any_spread<Count>();
  if (there()) h.score = any_spread<Count>();
  if (there()) {
    for (double SoftmaxMeans::*mean : SoftmaxMeans::all()) h.softmax.*mean = any_double();
#define ROOTDK_SOFTMAX_COUNT(name, when, doc) h.softmax.rows_##name = any_count<Count>();
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) \
  h.softmax.name.counts = any_counts<Count>(Histogram::kBins);
#include "rootdk/statistics.def"
  }
  if (there()) h.causes = {any_size(), any_size(), any_size(), any_size(), any_size(), any_size()};
  if (there()) {
    h.blocks.all = any_count<Count>(), h.blocks.seen = any_count<Count>();
    for (BlockSums& sums : h.blocks.means) sums = any_sums();
    h.blocks.raw_within_row_variance = any_sums(), h.blocks.score_within_row_variance = any_sums();
  }
  h.gaps.counts = any_counts<Count>(GapHistogram::kBins);
  if (with_buckets)
    for (std::int64_t from : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1024}, std::int64_t{1} << 62})
      if (pick(3) == 0) h.by_keys.push_back({from, any_head<Count>(false)});
  return h;
}

template <class Count>
StatsOf<Count> any_stats() {
  StatsOf<Count> stats;
  stats.level = *rc::gen::element(StatsLevel::kNone, StatsLevel::kBasic, StatsLevel::kFull);
  stats.batch = pick(3), stats.heads = pick(3);
  if (pick(2) == 0)
    for (std::int64_t i = 0; i < stats.batch * stats.heads; ++i) stats.per_head.push_back(any_head<Count>());
  return stats;
}

inline GradientStats any_gradients() {
  GradientStats stats;
  stats.batch = pick(3), stats.heads = pick(3);
  for (std::int64_t i = 0; i < stats.batch * stats.heads; ++i)
    stats.per_head.push_back({any_size(), any_double(), any_size(), any_size(), any_size()});
  return stats;
}

}  // namespace rootdk::report
