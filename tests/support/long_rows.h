// Rows of up to a million keys whose scores are hard on sums in f32, known exactly, and what full statistics may be off
// by there. Every score is c·(q₀k₀ + q₁k₁ + q₂k₂) of numbers that bf16 holds, c = 1/8, and f32 holds every sum of such
// products: only the statistics round.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/row_record.h"
#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

enum class LongRows {
  kSinkFirst,  ///< noise of 0.1, and a first key of score 60
  kSinkLate,   ///< the same key after two thirds
  kSinks,      ///< the first eight keys
  kOutliers,   ///< one key in a thousand at 40, one at −45
  kLarge,      ///< 1e4 + noise
  kNoise,
  kCount
};

inline const char* name_of(LongRows kind) {
  constexpr const char* kNames[] = {"a sink first", "a sink late", "eight sinks", "outliers", "1e4 + noise", "noise"};
  return kNames[static_cast<int>(kind)];
}

/// One head. Two rows in three see what is not noise, the third of each three only noise, so that rows side by side
/// differ.
inline std::unique_ptr<Case> long_rows_case(LongRows kind, const Shape& shape, std::uint64_t seed) {
  auto c = std::make_unique<Case>();
  c->shape = shape;
  Rng rng(seed);
  c->q = Buffer(shape.dtype, {1, 1, shape.len_q, shape.dim_qk}),
  c->k = Buffer(shape.dtype, {1, 1, shape.len_kv, shape.dim_qk}),
  c->v = Buffer(shape.dtype, {1, 1, shape.len_kv, shape.dim_v});
  c->d_o = Buffer(shape.dtype, {1, 1, shape.len_q, shape.dim_v});
  for (Buffer* zero : {&c->q, &c->k, &c->d_o}) zero->fill(0);
  c->v.fill(1);
  for (std::int64_t i = 0; i < shape.len_q; ++i) {
    if (i % 3 != 2) c->q.set(0, 0, i, 0, 8), c->q.set(0, 0, i, 1, 800);
    c->q.set(0, 0, i, 2, i % 2 == 0 ? 1 : -1);
  }
  for (std::int64_t j = 0; j < shape.len_kv; ++j) {
    c->k.set(0, 0, j, 2, std::round(std::clamp(0.8 * rng.normal(), -3.9, 3.9) * 64) / 64);
    double special = 0;
    if (kind == LongRows::kSinkFirst && j == 0) special = 60;
    if (kind == LongRows::kSinkLate && j == shape.len_kv * 2 / 3) special = 60;
    if (kind == LongRows::kSinks && j < 8) special = 60;
    if (kind == LongRows::kOutliers && j % 997 == 5) special = 40;
    if (kind == LongRows::kOutliers && j % 1009 == 700) special = -45;
    if (special != 0) c->k.set(0, 0, j, 0, special);
    if (kind == LongRows::kLarge) c->k.set(0, 0, j, 1, 100);
  }
  c->problem.scale = Scale::constant(0.125);
  c->problem.stats = StatsLevel::kFull;
  c->link();
  return c;
}

/// Rows of which each kind of row and each corner of a tile is one.
inline std::vector<std::int64_t> probed_rows(std::int64_t len_q) {
  std::vector<std::int64_t> rows;
  for (const std::int64_t i : {0, 1, 2, 5, 7, 8, 63, 64, 68, 122, 127, 128, 186})
    if (i < len_q) rows.push_back(i);
  return rows;
}

/// What full statistics of the probed rows should be; `visible(i)` keys from the first on are seen.
class LongRowsYardstick {
 public:
  template <class Visible>
  LongRowsYardstick(const Case& c, const Visible& visible) {
    for (const std::int64_t i : probed_rows(c.shape.len_q)) {
      if (!base::is_sampled(c.problem.stats_options, i)) continue;
      Row row{i, visible(i)};
      std::vector<double> s(static_cast<std::size_t>(row.visible));
      const double n = static_cast<double>(row.visible),
                   q[3] = {c.q.get(0, 0, i, 0), c.q.get(0, 0, i, 1), c.q.get(0, 0, i, 2)};
      double max = -INFINITY, m2 = 0, sum = 0, t = 0, sum2 = 0;
      for (std::int64_t j = 0; j < row.visible; ++j) {
        double& x = s[static_cast<std::size_t>(j)];
        for (int d = 0; d < 3; ++d)
          if (q[d] != 0) x += 0.125 * q[d] * c.k.get(0, 0, j, d);
        row.mean += x, max = std::max(max, x);
      }
      row.mean /= n;
      for (const double x : s) {
        const double e = std::exp(x - max);
        m2 += (x - row.mean) * (x - row.mean), sum += e, t += e * (x - max), sum2 += e * e;
      }
      row.variance = m2 / (n - 1), row.entropy = std::log(sum) - t / sum, row.sum_p2 = sum2 / (sum * sum);
      rows_.push_back(row);
    }
  }

  /// What is further off than 1e-3, in words.
  std::string judge(const Result& result) const {
    std::string wrong;
    for (const Row& row : rows_) {
      const auto at = [&](std::size_t tensor) {
        return result.rows[tensor][static_cast<std::size_t>(row.i)];
      };  // in the order of base::kFullRowTensors
      const auto check = [&](double fast, double exact, double allowed, const char* what) {
        if (std::fabs(fast - exact) <= allowed) return;
        char line[160];
        std::snprintf(line, sizeof line, "row %lld of %lld keys, %s: %.9g, exactly %.9g; ",
                      static_cast<long long>(row.i), static_cast<long long>(row.visible), what, fast, exact);
        wrong += line;
      };
      check(at(0), static_cast<double>(row.visible), 0, "visible keys");
      for (const std::size_t first : {5, 8}) {  // raw, then what softmax sees
        check(at(first), row.mean, 1e-3 * std::max(std::fabs(row.mean), std::sqrt(row.variance)), "mean");
        check(at(first + 1), row.variance, 1e-3 * row.variance, "variance");
      }
      check(at(1), row.entropy, 1e-3 * std::max(1.0, row.entropy), "entropy");
      check(at(2), row.sum_p2, 1e-3 * std::max(1.0, row.sum_p2), "sum of p²");
    }
    for (const double p : result.p_max)
      if (!(p <= 1)) {
        wrong += "a largest probability above 1; ";
        break;
      }
    return wrong;
  }

 private:
  struct Row {
    std::int64_t i, visible;
    double mean = 0, variance = 0, entropy = 0, sum_p2 = 0;
  };
  std::vector<Row> rows_;
};

}  // namespace rootdk::test
