// Attention over ranks against one rank: outputs, gradients and statistics of random problems, by the error rule.
#include <gtest/gtest.h>

#include "distributed/over_ranks.h"
#include "support/close_stats.h"
#include "support/hidden.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

std::string where(int seed, int ranks, Way way) {
  return "seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, " + distributed::name_of(way) + "\n";
}

TEST(OverRanks, EveryWayIsWithinTheErrorRule) {
  int tried = 0;
  const int problems = std::min(problem_count(400), 400);
  for (int seed = 0; seed < problems; ++seed) {
    const auto c = random_shared_case(static_cast<std::uint64_t>(seed) + 7000);
    Rng rng(static_cast<std::uint64_t>(seed));
    const int ranks = static_cast<int>(rng.integer(1, 6));
    const Yardstick yardstick(*c);
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      SCOPED_TRACE(where(seed, ranks, way) + c->describe());
      OverRanks over = run_on_threads(ranks, *c, random_share(rng, *c, ranks, way), {.keep = rng.chance(0.5)});
      over.result.d_bias = yardstick.exact().d_bias;  // attention over ranks has none
      EXPECT_EQ(yardstick.judge(over.result), "");
      EXPECT_TRUE(over.alike);
      EXPECT_EQ(far_statistics(*c, over.result, yardstick.exact(), floors(*c, yardstick.exact())), "");
      ++tried;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(tried, 2 * problems);
}

// Scores that are whole numbers, so that maxima tie on several ranks, in f64: places and counts are those of one rank,
// and sums are but for the last digits.
TEST(OverRanks, StatisticsAreThoseOfOneRank) {
  int tried = 0;
  const int problems = std::min(problem_count(120), 120);
  for (int seed = 0; seed < problems; ++seed) {
    const auto drawn = random_shared_case(static_cast<std::uint64_t>(seed) + 31000, 1 << 13);
    if (drawn->shape.len_q == 0 || drawn->problem.transform.present()) continue;
    drawn->problem.scale = Scale::none(), drawn->gains.clear(), drawn->offsets.clear(), drawn->scale.clear();
    drawn->slopes.clear(), drawn->problem.soft_cap = {}, drawn->bias = Buffer();
    Rng rng(static_cast<std::uint64_t>(seed));
    for (Buffer* buffer : {&drawn->q, &drawn->k}) {
      const Extents e = buffer->tensor().shape;
      for (std::int64_t b = 0; b < e[0]; ++b)
        for (std::int64_t h = 0; h < e[1]; ++h)
          for (std::int64_t i = 0; i < e[2]; ++i)
            for (std::int64_t d = 0; d < e[3]; ++d)
              buffer->set(b, h, i, d, d < 2 ? static_cast<double>(rng.integer(-1, 1)) : 0);
    }
    drawn->link();
    const auto c = drawn->exact();
    c->problem.stats_options.by_keys = true;
    const Result one = run_reference(*c);
    const int ranks = static_cast<int>(rng.integer(2, 6));
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      SCOPED_TRACE(where(seed, ranks, way) + c->describe());
      const OverRanks over = run_on_threads(ranks, *c, random_share(rng, *c, ranks, way));
      const auto near = [](double x, double y) {
        return equal_bits(x, y) || std::fabs(x - y) <= 1e-11 * (1 + std::fabs(y));
      };
      for (std::size_t row = 0; row < one.rows.size(); ++row)
        for (std::size_t i = 0; i < one.rows[row].size(); ++i)
          ASSERT_TRUE(near(over.result.rows[row][i], one.rows[row][i]))
              << base::kFullRowTensors[row].name << "[" << i << "]: " << over.result.rows[row][i] << ", one rank "
              << one.rows[row][i];
      for (std::size_t h = 0; h < one.stats.per_head.size(); ++h) {
        const HeadStats &x = over.result.stats.per_head[h], &y = one.stats.per_head[h];
        EXPECT_EQ(x.raw.max_query, y.raw.max_query);
        EXPECT_EQ(x.raw.max_key, y.raw.max_key);
        EXPECT_EQ(x.score.max_key, y.score.max_key);
        EXPECT_EQ(x.rows_counted, y.rows_counted);
        EXPECT_EQ(x.raw.pairs, y.raw.pairs);
        EXPECT_TRUE(near(x.raw.m2, y.raw.m2)) << x.raw.m2 << " " << y.raw.m2;
        EXPECT_TRUE(near(x.raw.within_m2, y.raw.within_m2));
        EXPECT_TRUE(near(x.mean_p_max, y.mean_p_max));
        EXPECT_TRUE(near(x.softmax.entropy, y.softmax.entropy));
        // A value on the edge of a bin may fall to either side of it: quantiles to within a bin.
        EXPECT_TRUE(equal_bits(x.softmax.relative_entropy.quantile(0.5), y.softmax.relative_entropy.quantile(0.5)) ||
                    std::fabs(x.softmax.relative_entropy.quantile(0.5) - y.softmax.relative_entropy.quantile(0.5)) <=
                        1.0 / Histogram::kBins);
        EXPECT_EQ(x.by_keys.size(), y.by_keys.size());
      }
      ++tried;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(tried, 2 * problems);
}

TEST(OverRanks, TheSameBitsEveryTimeAndAtAnyThreadCount) {
  for (int seed = 0; seed < std::min(problem_count(25), 25); ++seed) {
    const auto c = random_shared_case(static_cast<std::uint64_t>(seed) + 90, 1 << 17);
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      SCOPED_TRACE(where(seed, 4, way) + c->describe());
      Rng rng(static_cast<std::uint64_t>(seed));
      Share share = random_share(rng, *c, 4, way);
      const OverRanks first = run_on_threads(4, *c, share);
      share.threads = 3;
      const OverRanks again = run_on_threads(4, *c, share, {.keep = false});
      ASSERT_EQ(other_bits(first.result, again.result), "");
    }
  }
}

// What masks hide may hold anything: not a bit differs.
TEST(OverRanks, WhatMasksHideChangesNothing) {
  int hidden = 0;
  const int problems = std::min(problem_count(100), 100);
  for (int seed = 0; seed < problems; ++seed) {
    const auto c = random_shared_case(static_cast<std::uint64_t>(seed) + 500, 1 << 13);
    const Sight sight(*c);
    const auto poisoned = c->copy();
    if (!fill_hidden(*c, sight, Filling::kZeros)) continue;
    fill_hidden(*poisoned, sight, Filling::kPoison, static_cast<std::uint64_t>(seed));
    for (const Way way : kWays) {
      if (!takes(*c, way)) continue;
      SCOPED_TRACE(where(seed, 3, way) + c->describe());
      Rng rng(static_cast<std::uint64_t>(seed));
      const Share share = random_share(rng, *c, 3, way);
      const Result clean = run_on_threads(3, *c, share).result, other = run_on_threads(3, *poisoned, share).result;
      ASSERT_EQ(other_bits(clean, other), "");
      ASSERT_EQ(hidden_gradients(*c, sight, clean), "");
      ++hidden;
    }
  }
  EXPECT_GT(hidden, problems / 2);
}

}  // namespace
}  // namespace rootdk::test
