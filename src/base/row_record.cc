#include "base/row_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rootdk {

namespace {

constexpr double SoftmaxStats::*kMeans[] = {
    &SoftmaxStats::entropy, &SoftmaxStats::sum_p2, &SoftmaxStats::sum_p3, &SoftmaxStats::effective_keys, &SoftmaxStats::participation,
    &SoftmaxStats::trace_j, &SoftmaxStats::frobenius_j, &SoftmaxStats::sink_mass, &SoftmaxStats::log_keys};

}  // namespace

namespace base {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Means are sums until finish().
void observe(Spread& spread, const RowRecord& row, const RowMoments& moments, double max, std::int64_t query) {
  const auto n = static_cast<double>(row.visible), before = static_cast<double>(spread.pairs), total = before + n;
  const double delta = moments.mean - spread.mean;  // Chan's update
  spread.mean += delta * n / total;
  spread.m2 += moments.m2 + delta * delta * before * n / total;
  spread.within_m2 += moments.m2;
  spread.within_degrees += row.visible - 1;
  spread.min = spread.pairs == 0 ? moments.min : std::min(spread.min, moments.min);
  if (spread.pairs == 0 || max > spread.max) spread.max = max, spread.max_query = query, spread.max_key = moments.argmax;
  spread.pairs += row.visible;
}

void observe(SoftmaxStats& stats, const RowRecord& row, const FullRecord& full) {
  const double trace = 1 - full.sum_p2;
  stats.entropy += full.entropy;
  stats.sum_p2 += full.sum_p2;
  stats.sum_p3 += full.sum_p3;
  stats.effective_keys += std::exp(full.entropy);
  stats.participation += 1 / full.sum_p2;
  stats.trace_j += trace;
  stats.frobenius_j += full.sum_p2 - 2 * full.sum_p3 + full.sum_p2 * full.sum_p2;
  stats.sink_mass += full.sink_mass;
  stats.log_keys += std::log(static_cast<double>(row.visible));
  const double thresholds[] = {0.5, 0.9, 0.99};
  for (int i = 0; i < 3; ++i) stats.p_max_over[i] += row.p_max > thresholds[i];
  stats.trace_j_under_001 += trace < 0.01;
  stats.relative_entropy.add(full.entropy / std::log(static_cast<double>(row.visible)));
  stats.logit_p_max.add(std::log(row.p_max / (1 - row.p_max)));
  stats.log_trace_j.add(std::log(trace));
}

}  // namespace

HeadStats reduce_rows(std::span<const RowRecord> rows, std::span<const FullRecord> full) {
  HeadStats head;
  head.rows = static_cast<std::int64_t>(rows.size());
  double raw_max = -std::numeric_limits<double>::infinity();
  double score_max = raw_max, p_max = 0, lse = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowRecord& row = rows[i];
    head.rows_masked += row.visible == 0;
    head.rows_short += row.visible < 2;
    head.rows_not_finite += !row.finite;
    if (!row.finite) continue;
    raw_max = std::max(raw_max, row.raw_max);
    score_max = std::max(score_max, row.score_max);
    if (!full.empty() && row.visible > 0) {
      observe(head.raw, row, full[i].raw, row.raw_max, static_cast<std::int64_t>(i));
      observe(head.score, row, full[i].score, row.score_max, static_cast<std::int64_t>(i));
    }
    if (row.visible < 2) continue;
    p_max += row.p_max;
    lse += row.lse;
    ++head.rows_counted;
    if (!full.empty()) observe(head.softmax, row, full[i]);
  }
  head.raw_max = static_cast<float>(raw_max);
  head.score_max = static_cast<float>(score_max);
  head.mean_p_max = head.rows_counted ? p_max / static_cast<double>(head.rows_counted) : kNan;
  head.mean_lse = head.rows_counted ? lse / static_cast<double>(head.rows_counted) : kNan;
  for (double SoftmaxStats::*member : kMeans) {
    double& x = head.softmax.*member;
    x = head.rows_counted ? x / static_cast<double>(head.rows_counted) : kNan;
  }
  for (Spread* spread : {&head.raw, &head.score})
    if (spread->pairs == 0) spread->mean = spread->min = spread->max = kNan;
  return head;
}

}  // namespace base

namespace {

Spread merged(const Spread& a, const Spread& b, std::int64_t rows_before) {
  Spread later = b;
  if (later.max_query >= 0) later.max_query += rows_before;
  if (a.pairs == 0 || b.pairs == 0) return a.pairs == 0 ? later : a;
  Spread out = b.max > a.max ? later : a;
  const auto n = static_cast<double>(a.pairs), m = static_cast<double>(b.pairs), delta = b.mean - a.mean;
  out.pairs = a.pairs + b.pairs;
  out.mean = a.mean + delta * m / (n + m);
  out.m2 = a.m2 + b.m2 + delta * delta * n * m / (n + m);
  out.within_m2 = a.within_m2 + b.within_m2;
  out.within_degrees = a.within_degrees + b.within_degrees;
  out.min = std::min(a.min, b.min);
  return out;
}

}  // namespace

void Histogram::add(double x) {
  if (counts.empty()) counts.resize(kBins);
  const double place = std::floor((x - low) / (high - low) * kBins);
  counts[static_cast<std::size_t>(std::clamp(place, 0.0, kBins - 1.0))] += 1;
}

void Histogram::merge(const Histogram& other) {
  if (counts.empty()) counts = other.counts;
  else
    for (std::size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
}

double Histogram::quantile(double q) const {
  std::uint64_t all = 0;
  for (const std::uint64_t n : counts) all += n;
  if (all == 0) return std::numeric_limits<double>::quiet_NaN();
  const double wanted = q * static_cast<double>(all);
  double below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto n = static_cast<double>(counts[i]);
    if (n > 0 && below + n >= wanted) return low + (high - low) * (static_cast<double>(i) + (wanted - below) / n) / kBins;
    below += n;
  }
  return high;
}

HeadStats merge(const HeadStats& a, const HeadStats& b) {
  HeadStats out;
  out.rows = a.rows + b.rows;
  out.rows_masked = a.rows_masked + b.rows_masked;
  out.rows_short = a.rows_short + b.rows_short;
  out.rows_not_finite = a.rows_not_finite + b.rows_not_finite;
  out.rows_counted = a.rows_counted + b.rows_counted;
  out.raw_max = std::max(a.raw_max, b.raw_max);
  out.score_max = std::max(a.score_max, b.score_max);
  const auto mean = [&](double x, double y) {
    if (a.rows_counted == 0 || b.rows_counted == 0) return a.rows_counted == 0 ? y : x;
    return x + (y - x) * static_cast<double>(b.rows_counted) / static_cast<double>(out.rows_counted);
  };
  out.mean_p_max = mean(a.mean_p_max, b.mean_p_max);
  out.mean_lse = mean(a.mean_lse, b.mean_lse);
  out.raw = merged(a.raw, b.raw, a.rows);
  out.score = merged(a.score, b.score, a.rows);
  out.softmax = a.softmax;
  for (double SoftmaxStats::*member : kMeans) out.softmax.*member = mean(a.softmax.*member, b.softmax.*member);
  for (int i = 0; i < 3; ++i) out.softmax.p_max_over[i] += b.softmax.p_max_over[i];
  out.softmax.trace_j_under_001 += b.softmax.trace_j_under_001;
  out.softmax.relative_entropy.merge(b.softmax.relative_entropy);
  out.softmax.logit_p_max.merge(b.softmax.logit_p_max);
  out.softmax.log_trace_j.merge(b.softmax.log_trace_j);
  return out;
}

}  // namespace rootdk
