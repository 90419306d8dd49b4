// Attention over ranks against one rank: outputs, gradients and statistics of random problems, by the error rule.
#include <gtest/gtest.h>

#include "distributed/over_ranks.h"
#include "support/close_stats.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

constexpr double kU = 0x1p-24;

std::string where(int seed, int ranks, Way way) {
  return "seed " + std::to_string(seed) + ", " + std::to_string(ranks) + " ranks, " + distributed::name_of(way) + "\n";
}

void expect_stats(const Case& c, const Result& fast, const Result& exact) {
  const Floors floor = floors(c, exact);
  ASSERT_EQ(fast.stats.per_head.size(), exact.stats.per_head.size());
  const auto n = static_cast<double>(c.shape.len_kv), rows = static_cast<double>(c.shape.len_q);
  for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h) {
    const HeadStats &x = fast.stats.per_head[h], &y = exact.stats.per_head[h];
    EXPECT_EQ(x.rows, y.rows);
    EXPECT_EQ(x.rows_masked, y.rows_masked);
    EXPECT_EQ(x.rows_short, y.rows_short);
    EXPECT_EQ(x.rows_counted, y.rows_counted);
    expect_close(x.raw, y.raw, {2 * floor.raw_max, 8 * (n + rows) * kU}, "raw");
    expect_close(x.score, y.score, {2 * floor.score_max, 8 * (n + rows) * kU}, "score");
    expect_close(x.softmax, y.softmax, {2 * floor.score_max, 8 * n * kU}, std::log(std::max(2.0, n)));
  }
}

TEST(OverRanks, EveryWayIsWithinTheErrorRule) {
  int tried = 0;
  const int problems = std::min(problem_count(120), 120);
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
      expect_stats(*c, over.result, yardstick.exact());
      ++tried;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(tried, 2 * problems);
}

}  // namespace
}  // namespace rootdk::test
