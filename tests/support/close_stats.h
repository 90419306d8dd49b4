// How far full statistics of a head may be from the reference's: expectations for gtest.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rootdk/stats.h"

namespace rootdk::test {

// What rounding in f32 may do to the statistics of a head. A score is off by at most about e = √d·u·A absolutely, A =
// its sum of magnitudes (tests/support/tolerance.cc); then
//   H: |dH| ≤ Σ p |ds| (|ln p| + H) ≤ 2·e·(ln n + 1), and its own sums n·u relatively
//   Σp^k: relatively 2·k·e; tr J and ‖J‖² are made of them
//   moments: mean by e; m2 by 2·e·√(m2·n) + n·e², and sums of n terms by n·u relatively.
struct Bound {
  double score, relative;
};

inline void expect_close(double fast, double exact, double allowed, const char* what) {
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(fast)) << what;
  } else {
    EXPECT_LE(std::fabs(fast - exact), allowed) << what << ": " << fast << ", exactly " << exact;
  }
}

inline void expect_close(const Spread& fast, const Spread& exact, Bound b, const char* what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(fast.pairs, exact.pairs);
  EXPECT_EQ(fast.within_degrees, exact.within_degrees);
  if (exact.pairs == 0) return;
  const auto n = static_cast<double>(exact.pairs);
  const auto m2_bound = [&](double m2) {
    return 2 * b.score * std::sqrt(m2 * n) + n * b.score * b.score + b.relative * m2;
  };
  const double size = std::max(std::fabs(exact.min), std::fabs(exact.max));
  expect_close(fast.mean, exact.mean, b.score + b.relative * size, "mean");
  expect_close(fast.min, exact.min, b.score, "min");
  expect_close(fast.max, exact.max, b.score, "max");
  expect_close(fast.m2, exact.m2, m2_bound(exact.m2), "m2");
  expect_close(fast.within_m2, exact.within_m2, m2_bound(exact.within_m2), "within_m2");
}

inline void expect_close(const SoftmaxStats& fast, const SoftmaxStats& exact, Bound b, double log_n) {
  const double relative = 2 * b.score + b.relative;
  expect_close(fast.entropy, exact.entropy, relative * (log_n + 1), "entropy");
  expect_close(fast.sum_p2, exact.sum_p2, 3 * relative * exact.sum_p2, "sum_p2");
  expect_close(fast.sum_p3, exact.sum_p3, 4 * relative * exact.sum_p3, "sum_p3");
  expect_close(fast.trace_j, exact.trace_j, 3 * relative, "trace_j");
  expect_close(fast.frobenius_j, exact.frobenius_j, 12 * relative, "frobenius_j");
  expect_close(fast.sink_mass, exact.sink_mass, relative, "sink_mass");
  expect_close(fast.effective_keys, exact.effective_keys, exact.effective_keys * std::expm1(relative * (log_n + 1)),
               "effective_keys");
  expect_close(fast.log_keys, exact.log_keys, 1e-12 * (1 + std::fabs(exact.log_keys)), "log_keys");
}

}  // namespace rootdk::test
