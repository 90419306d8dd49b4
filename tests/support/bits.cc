// Every number of a result listed under its name, and compared as 64 bits.
#include "support/bits.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "base/head_columns.h"
#include "base/row_tensors.h"

namespace rootdk::test {

namespace {

using Numbers = std::vector<double>;

template <class Count>
void add(Numbers& out, const std::vector<Count>& counts) {
  for (const Count count : counts) out.push_back(static_cast<double>(count));
}

void add(Numbers& out, const Spread& s) {
  for (const double x : {static_cast<double>(s.pairs), s.mean, s.m2, s.within_m2, static_cast<double>(s.within_degrees),
                         s.min, s.max, static_cast<double>(s.max_query), static_cast<double>(s.max_key)})
    out.push_back(x);
}

void add(Numbers& out, const BlockSums& s) { out.insert(out.end(), {s.xx, s.xn, s.nn}); }

void add(Numbers& out, const HeadStats& h) {
  for (const auto& column : base::kHeadColumns<std::int64_t>) out.push_back(column.value(h));
  add(out, h.raw), add(out, h.score);
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) add(out, h.softmax.name.counts);
#include "rootdk/statistics.def"
  const Causes& causes = h.causes;
  out.insert(out.end(), {causes.weight, causes.dim, causes.q_square, causes.k_variance, causes.key_mean_square,
                         causes.scale_square});
  out.insert(out.end(), {static_cast<double>(h.blocks.all), static_cast<double>(h.blocks.seen)});
  for (const BlockSums& sums : h.blocks.means) add(out, sums);
  add(out, h.blocks.raw_within_row_variance), add(out, h.blocks.score_within_row_variance);
  add(out, h.gaps.counts);
  for (const KeyBucket& bucket : h.by_keys) {
    out.push_back(static_cast<double>(bucket.from));
    add(out, bucket.stats);
  }
}

void compare(std::string& out, const std::string& name, const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) {
    out += fmt::format("{}: {} numbers and {}\n", name, a.size(), b.size());
    return;
  }
  std::size_t first = a.size(), count = 0;
  for (std::size_t x = 0; x < a.size(); ++x)
    if (!equal_bits(a[x], b[x])) {
      if (count++ == 0) first = x;
    }
  if (count > 0)
    out += fmt::format("{}: {} of {} differ, first [{}]: {:.9g} and {:.9g}\n", name, count, a.size(), first, a[first],
                       b[first]);
}

}  // namespace

bool equal_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

std::vector<double> numbers(const HeadStats& head) {
  Numbers out;
  add(out, head);
  return out;
}

std::vector<double> numbers(const HeadGradients& head) {
  return {head.d_scores, head.d_log_scale, head.d_q, head.d_k, head.d_v};
}

std::string other_bits(const Result& a, const Result& b) {
  std::string out;
  compare(out, "o", a.o, b.o);
  for (const Part& part : kRowParts) compare(out, part.name, a.*part.values, b.*part.values);
  compare(out, "d_q", a.d_q, b.d_q), compare(out, "d_k", a.d_k, b.d_k), compare(out, "d_v", a.d_v, b.d_v),
      compare(out, "d_bias", a.d_bias, b.d_bias);
  for (const Part& part : kHeadParts) compare(out, part.name, a.*part.values, b.*part.values);
  if (a.rows.size() != b.rows.size() || a.stats.per_head.size() != b.stats.per_head.size() ||
      a.gradient_stats.per_head.size() != b.gradient_stats.per_head.size())
    return out + "other statistics\n";
  for (std::size_t t = 0; t < a.rows.size(); ++t) compare(out, base::kFullRowTensors[t].name, a.rows[t], b.rows[t]);
  compare(out, "key_mass", a.key_mass, b.key_mass);
  for (std::size_t h = 0; h < a.stats.per_head.size(); ++h)
    compare(out, fmt::format("statistics of head {}", h), numbers(a.stats.per_head[h]), numbers(b.stats.per_head[h]));
  for (std::size_t h = 0; h < a.gradient_stats.per_head.size(); ++h)
    compare(out, fmt::format("gradient statistics of head {}", h), numbers(a.gradient_stats.per_head[h]),
            numbers(b.gradient_stats.per_head[h]));
  return out;
}

}  // namespace rootdk::test
