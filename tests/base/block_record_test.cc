// Rows reduced by the block, as a GPU leaves them, against rows reduced one by one.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/block_record.h"

namespace rootdk::base {
namespace {

struct Head {
  std::vector<RowRecord> rows;
  std::vector<FullRecord> full;
};

Head random_head(std::mt19937& random, std::size_t len_q) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> share(0.01, 1);
  std::uniform_int_distribution<int> die(0, 9);
  const std::size_t queries = die(random) < 5 ? len_q : random() % (len_q + 1);  // from there on they are padding
  Head head;
  for (std::size_t i = 0; i < len_q; ++i) {
    const int keys = i >= queries ? -1 : die(random) == 0 ? die(random) % 3 : 100;
    const double largest = keys <= 0 ? -HUGE_VAL : normal(random);
    head.rows.push_back({largest, largest, share(random), normal(random), keys, die(random) > 0});
    const RowMoments moments{normal(random), share(random), normal(random), die(random)};
    head.full.push_back({moments, moments, share(random), share(random), share(random), 0});
  }
  return head;
}

std::vector<BlockRecord> blocks_of(const Head& head, const StatsOptions& options) {
  std::vector<BlockRecord> blocks;
  const auto len_q = static_cast<std::int64_t>(head.rows.size());
  for (std::int64_t i = 0, end = 0; i < len_q; i = end) {
    end = block_end(options, i, len_q);
    blocks.push_back(BlockRecord::none());
    for (std::int64_t row = i; row < end; ++row) blocks.back().add(head.rows[static_cast<std::size_t>(row)]);
  }
  return blocks;
}

// Sums of up to 400 numbers below 10, in another order: each addition rounds by at most half a unit of the sum.
constexpr double kOff = 400 * 0x1p-53 * 4000;

void expect_same(const HeadStats& a, const HeadStats& b) {
  EXPECT_EQ(a.row_count, b.row_count);
  EXPECT_EQ(a.rows_masked, b.rows_masked);
  EXPECT_EQ(a.rows_short, b.rows_short);
  EXPECT_EQ(a.rows_not_finite, b.rows_not_finite);
  EXPECT_EQ(a.rows_counted, b.rows_counted);
  EXPECT_EQ(a.rows_sampled, b.rows_sampled);
  EXPECT_EQ(a.raw_max, b.raw_max);
  EXPECT_EQ(a.score_max, b.score_max);
  EXPECT_EQ(a.score.max_query, b.score.max_query);
  EXPECT_EQ(a.score.max_key, b.score.max_key);
  EXPECT_EQ(a.blocks.all, b.blocks.all);
  EXPECT_EQ(a.blocks.seen, b.blocks.seen);
  EXPECT_EQ(a.score.pairs, b.score.pairs);
  if (a.rows_counted > 0) {
    EXPECT_NEAR(a.mean_p_max, b.mean_p_max, kOff);
  }
  if (a.rows_counted > 0) {
    EXPECT_NEAR(a.mean_lse, b.mean_lse, kOff);
  }
  if (a.rows_sampled > 0) {
    EXPECT_EQ(a.softmax.entropy, b.softmax.entropy);
  }  // the same rows in the same order
  EXPECT_EQ(a.softmax.logit_p_max.counts, b.softmax.logit_p_max.counts);
}

TEST(BlockRecord, IsWhatItsRowsComeTo) {
  std::mt19937 random(11);
  for (int problem = 0; problem < 300; ++problem) {
    StatsOptions options;
    options.sample = 1 + static_cast<std::int64_t>(random() % 5);
    options.sample_offset = static_cast<std::int64_t>(random()) % options.sample;
    options.first_query = static_cast<std::int64_t>(random() % 200);
    const Head head = random_head(random, random() % 400);
    const std::vector<BlockRecord> blocks = blocks_of(head, options);
    ASSERT_EQ(static_cast<std::int64_t>(blocks.size()),
              head.rows.empty() ? 0 : block_count(options, static_cast<std::int64_t>(head.rows.size())));
    SCOPED_TRACE(problem);
    expect_same(reduce_blocks(blocks, head.rows, head.full, options), reduce_rows(head.rows, head.full, options));
    expect_same(reduce_blocks(blocks, head.rows, {}, options), reduce_rows(head.rows, {}, options));
  }
}

}  // namespace
}  // namespace rootdk::base
