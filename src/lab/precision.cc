// Products in double, rounded where a dtype would store them; errors, and rows lost to overflow.
#include "rootdk/lab/precision.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "lab/need.h"
#include "lab/normals.h"
#include "rootdk/plan.h"

namespace rootdk::lab {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double stored(DType dtype, double x) {
  switch (dtype) {
    case DType::kF32: return static_cast<double>(static_cast<float>(x));
    case DType::kF16: return static_cast<double>(to_float(to_float16(x)));
    case DType::kBF16: return static_cast<double>(to_float(to_bfloat16(x)));
    case DType::kF64:
    case DType::kBool: break;
  }
  return x;
}

void softmax(const std::vector<double>& s, std::vector<double>& p) {
  const double largest = *std::max_element(s.begin(), s.end());
  double sum = 0;
  for (std::size_t j = 0; j < s.size(); ++j) sum += p[j] = std::exp(s[j] - largest);
  for (double& x : p) x /= sum;
}

/// Of one row; sums over keys.
struct Row {
  double p_max = 0, raw_overflows = 0, score_square_error = 0, scores_kept = 0, p_distance = 0, p_square_error = 0,
         p_spread = 0;
  bool lost = false;  ///< a score beyond the largest number
};

Row measure_row(const std::vector<double>& raw, double factor, DType dtype) {
  const std::size_t n = raw.size();
  std::vector<double> exact(n), kept(n), p(n), p_kept(n);
  Row row;
  for (std::size_t j = 0; j < n; ++j) {
    row.raw_overflows += std::isinf(stored(dtype, raw[j]));
    exact[j] = factor * raw[j];
    kept[j] = stored(dtype, exact[j]);
    row.lost |= kept[j] == std::numeric_limits<double>::infinity();
    if (std::isinf(kept[j])) continue;
    row.score_square_error += (kept[j] - exact[j]) * (kept[j] - exact[j]);
    row.scores_kept += 1;
  }
  if (row.lost) return row;
  softmax(exact, p);
  softmax(kept, p_kept);
  for (std::size_t j = 0; j < n; ++j) {
    p_kept[j] = stored(dtype, p_kept[j]);
    row.p_max = std::max(row.p_max, p_kept[j]);
    const double error = p_kept[j] - p[j], from_mean = p[j] - 1 / static_cast<double>(n);
    row.p_distance += std::fabs(error) / 2;
    row.p_square_error += error * error;
    row.p_spread += from_mean * from_mean;
  }
  return row;
}

PrecisionPoint summary(const std::vector<Row>& rows, std::int64_t keys) {
  PrecisionPoint out;
  Row all;
  double lost = 0;
  for (const Row& row : rows) {
    all.raw_overflows += row.raw_overflows;
    all.score_square_error += row.score_square_error;
    all.scores_kept += row.scores_kept;
    lost += row.lost;
    if (row.lost) continue;
    out.p_max += row.p_max;
    out.share_p_max_over_99pct += row.p_max > 0.99;
    all.p_distance += row.p_distance;
    all.p_square_error += row.p_square_error;
    all.p_spread += row.p_spread;
  }
  const auto count = static_cast<double>(rows.size());
  const double kept = count - lost;
  out.overflow_raw = all.raw_overflows / (count * static_cast<double>(keys));
  out.overflow_rows = lost / count;
  out.score_error = all.scores_kept > 0 ? std::sqrt(all.score_square_error / all.scores_kept) : kNan;
  out.p_max = kept > 0 ? out.p_max / kept : kNan;
  out.share_p_max_over_99pct = kept > 0 ? out.share_p_max_over_99pct / kept : kNan;
  out.p_error = kept > 0 ? all.p_distance / kept : kNan;
  out.signal_bits = kept > 0 && all.p_square_error > 0 ? std::log2(all.p_spread / all.p_square_error) / 2 : kNan;
  return out;
}

/// q·k, [queries][keys], exact.
std::vector<std::vector<double>> products(const PrecisionOptions& o, std::int64_t dk, std::uint32_t index) {
  const Stream stream{o.seed, kPrecisionStream, index, 0};
  const std::vector<float> q = normals(o.queries * dk, stream.array(0)), k = normals(o.keys * dk, stream.array(1));
  std::vector<std::vector<double>> out(static_cast<std::size_t>(o.queries),
                                       std::vector<double>(static_cast<std::size_t>(o.keys)));
  const auto d = static_cast<std::size_t>(dk);
  base::parallel_tasks(o.queries, Machine::here().threads, [&](std::int64_t task, int) {
    const auto i = static_cast<std::size_t>(task);
    for (std::size_t j = 0; j < out[i].size(); ++j) {
      double dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += static_cast<double>(q[i * d + c]) * static_cast<double>(k[j * d + c]);
      out[i][j] = dot;
    }
  });
  return out;
}

PrecisionPoint measure_point(const std::vector<std::vector<double>>& scores, const Scale& rule, DType dtype,
                             std::int64_t dk, double gain) {
  const auto keys = static_cast<std::int64_t>(scores.front().size());
  const double factor = fixed_factor(rule, dk, keys);
  std::vector<Row> rows(scores.size());
  base::parallel_tasks(static_cast<std::int64_t>(scores.size()), Machine::here().threads, [&](std::int64_t i, int) {
    std::vector<double> raw = scores[static_cast<std::size_t>(i)];
    for (double& x : raw) x *= gain;
    rows[static_cast<std::size_t>(i)] = measure_row(raw, factor, dtype);
  });
  PrecisionPoint point = summary(rows, keys);
  point.rule = rule.name();
  point.dtype = dtype;
  point.dk = dk;
  point.gain = gain;
  return point;
}

// The scores, and beside them either what they are made of or the rows that threads are at, five times over.
double bytes_of(const PrecisionOptions& o) {
  const double queries = real(o.queries), keys = real(o.keys);
  const double made_of = sizeof(float) * (queries + keys) * largest(o.dk);
  const double at_once = std::min(queries, static_cast<double>(Machine::here().threads));
  const double rows = sizeof(double) * 5 * keys * at_once + sizeof(Row) * queries;
  const double points = real(o.dk.size()) * real(o.gains.size()) * real(o.rules.size()) * real(o.dtypes.size());
  return queries * (sizeof(double) * keys + sizeof(std::vector<double>)) + std::max(made_of, rows) +
         points * sizeof(PrecisionPoint);
}

}  // namespace

MemoryNeed memory_of(const PrecisionOptions& o) {
  want_all_between("dk", o.dk, 1, kMostDims);
  want_some("rules", o.rules);
  want_some("dtypes", o.dtypes);
  for (const DType dtype : o.dtypes)
    if (dtype == DType::kBool) refuse("dtypes: {} does not hold scores", name_of(dtype));
  want_some("gains", o.gains);
  for (const double gain : o.gains)
    if (!(gain > 0 && gain <= 1e12)) refuse("gains: {}, but a number above 0, at most 1e12, is wanted", gain);
  want_between("keys", o.keys, 2, kMostKeys);
  want_between("queries", o.queries, 1, kMostQueries);
  return need_of(
      o, [](const PrecisionOptions& options) { return bytes_of(options); }, Size{"keys", &PrecisionOptions::keys},
      Size{"queries", &PrecisionOptions::queries}, Size{"dk", &PrecisionOptions::dk},
      Size{"gains", &PrecisionOptions::gains}, Size{"rules", &PrecisionOptions::rules});
}

Precision measure_precision(const PrecisionOptions& o, const Watch& watch) {
  want_memory(memory_of(o));
  Precision out;
  out.options = o;
  const auto parts = static_cast<double>(o.dk.size() * o.gains.size() * o.rules.size() * o.dtypes.size());
  for (std::size_t n = 0; n < o.dk.size(); ++n) {
    const std::vector<std::vector<double>> scores = products(o, o.dk[n], static_cast<std::uint32_t>(n));
    for (const double gain : o.gains)
      for (const Scale& rule : o.rules)
        for (const DType dtype : o.dtypes) {
          if (watch.stopped()) {
            out.complete = false;
            return out;
          }
          watch.report(static_cast<double>(out.points.size()) / parts,
                       fmt::format("{} in {}, d_k {}", rule.name(), name_of(dtype), o.dk[n]));
          out.points.push_back(measure_point(scores, rule, dtype, o.dk[n], gain));
        }
  }
  watch.report(1);
  return out;
}

}  // namespace rootdk::lab
