// How far full statistics of a head may be from the reference's; what is further is said in words.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "rootdk/stats.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {

// What rounding in f32 may do to the statistics of a head. A score is off by at most about e = √d·u·A absolutely, A =
// its sum of magnitudes (tests/support/tolerance.cc); then
//   H: |dH| ≤ Σ p |ds| (|ln p| + H) ≤ 2·e·(ln n + 1), and its own sums n·u relatively
//   Σp^k: relatively 2·k·e; tr J and ‖J‖² are made of them
//   moments: mean by e; m2 by 2·e·√(m2·n) + n·e², and sums of n terms by n·u relatively.
struct Bound {
  double score, relative;
};

struct Compare {
  std::string out;

  void same(std::int64_t fast, std::int64_t exact, const char* what) {
    if (fast != exact) out += what + (": " + std::to_string(fast)) + ", but " + std::to_string(exact) + "; ";
  }
  void close(double fast, double exact, double allowed, const char* what) {
    if (std::isnan(exact) ? std::isnan(fast) : std::fabs(fast - exact) <= allowed) return;
    char line[160];
    std::snprintf(line, sizeof line, "%s: %.9g, exactly %.9g, allowed %.3g; ", what, fast, exact, allowed);
    out += line;
  }
  void spread(const Spread& fast, const Spread& exact, Bound b, const char* what) {
    same(fast.pairs, exact.pairs, what);
    same(fast.within_degrees, exact.within_degrees, what);
    if (exact.pairs == 0) return;
    const auto n = static_cast<double>(exact.pairs);
    const auto m2_bound = [&](double m2) {
      return 2 * b.score * std::sqrt(m2 * n) + n * b.score * b.score + b.relative * m2;
    };
    close(fast.mean, exact.mean, b.score + b.relative * std::max(std::fabs(exact.min), std::fabs(exact.max)), what);
    close(fast.min, exact.min, b.score, what);
    close(fast.max, exact.max, b.score, what);
    close(fast.m2, exact.m2, m2_bound(exact.m2), what);
    close(fast.within_m2, exact.within_m2, m2_bound(exact.within_m2), what);
  }
  void softmax(const SoftmaxStats& fast, const SoftmaxStats& exact, Bound b, double log_n) {
    const double relative = 2 * b.score + b.relative;
    close(fast.entropy, exact.entropy, relative * (log_n + 1), "entropy");
    close(fast.sum_p2, exact.sum_p2, 3 * relative * exact.sum_p2, "sum_p2");
    close(fast.sum_p3, exact.sum_p3, 4 * relative * exact.sum_p3, "sum_p3");
    close(fast.trace_j, exact.trace_j, 3 * relative, "trace_j");
    close(fast.frobenius_j, exact.frobenius_j, 12 * relative, "frobenius_j");
    close(fast.sink_mass, exact.sink_mass, relative, "sink_mass");
    close(fast.effective_keys, exact.effective_keys, exact.effective_keys * std::expm1(relative * (log_n + 1)),
          "effective_keys");
    close(fast.log_keys, exact.log_keys, 1e-12 * (1 + std::fabs(exact.log_keys)), "log_keys");
  }
  /// What a kernel's scores decide of a head of this case. Heads with rows that are not finite are left out.
  void head(const HeadStats& fast, const HeadStats& exact, const Case& c, const Floors& floor) {
    if (fast.rows_not_finite || exact.rows_not_finite) return;
    constexpr double kU = 0x1p-24;
    const auto n = static_cast<double>(c.shape.len_kv), rows = static_cast<double>(c.shape.len_q);
    same(fast.row_count, exact.row_count, "rows");
    same(fast.rows_masked, exact.rows_masked, "masked rows");
    same(fast.rows_short, exact.rows_short, "short rows");
    same(fast.rows_counted, exact.rows_counted, "rows counted");
    same(fast.rows_sampled, exact.rows_sampled, "sampled rows");
    spread(fast.raw, exact.raw, {2 * floor.raw_max, 8 * (n + rows) * kU}, "raw");
    spread(fast.score, exact.score, {2 * floor.score_max, 8 * (n + rows) * kU}, "score");
    softmax(fast.softmax, exact.softmax, {2 * floor.score_max, 8 * n * kU}, std::log(std::max(2.0, n)));
  }
};

/// Of all heads; nothing where all are close.
inline std::string far_statistics(const Case& c, const Result& fast, const Result& exact, const Floors& floor) {
  Compare compare;
  compare.same(static_cast<std::int64_t>(fast.stats.per_head.size()),
               static_cast<std::int64_t>(exact.stats.per_head.size()), "heads");
  if (!compare.out.empty()) return compare.out;
  for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h)
    compare.head(fast.stats.per_head[h], exact.stats.per_head[h], c, floor);
  return compare.out;
}

}  // namespace rootdk::test
