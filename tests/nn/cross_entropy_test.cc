// Cross-entropy: known values, what it ignores, and its gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/slope.h"
#include "rootdk/nn/cross_entropy.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

// Equal logits say nothing: the loss is ln of their number, to within the roundings of exp, sum, log and mean.
TEST(CrossEntropy, OfEqualLogitsIsLogOfTheirNumber) {
  const std::vector<float> logits(3 * 7, -4.5f);
  const std::vector<std::int32_t> targets = {0, 6, 3};
  const CrossEntropy result = cross_entropy<float>(7, logits, targets, {});
  EXPECT_NEAR(result.loss, std::log(7.0), 8 * 0x1p-53 * 4.5);
  EXPECT_EQ(result.accuracy, 1.0 / 3);  // the first of equals is taken
  EXPECT_EQ(result.rows, 3);
}

// Adding a constant to a row changes nothing but rounding, and large logits do not overflow.
TEST(CrossEntropy, LargeLogits) {
  const std::vector<double> logits = {1e4, 1e4 - 2, -1e4};
  std::vector<double> d(3);
  const CrossEntropy result = cross_entropy<double>(3, logits, std::vector<std::int32_t>{1}, d);
  EXPECT_NEAR(result.loss, std::log1p(std::exp(-2.0)) + 2, 1e4 * 4 * 0x1p-53);
  EXPECT_EQ(result.accuracy, 0);
  EXPECT_EQ(d[2], 0);
}

TEST(CrossEntropy, Gradient) {
  const std::size_t rows = 150;  // more than a chunk
  std::vector<double> logits = normal_doubles(rows * 5, 1), d(rows * 5, 7);
  std::vector<std::int32_t> targets(rows);
  for (std::size_t r = 0; r < rows; ++r) targets[r] = r % 3 == 0 ? kNoTarget : static_cast<std::int32_t>(r % 5);
  const CrossEntropy all = cross_entropy<double>(5, logits, targets, d);
  EXPECT_EQ(all.rows, 100);
  for (std::size_t r = 0; r < rows; r += 3)
    for (std::size_t c = 0; c < 5; ++c) EXPECT_EQ(d[r * 5 + c], 0);
  expect_slopes(std::vector{named("logits", logits)}, std::vector{named("logits", d)},
                [&] { return cross_entropy<double>(5, logits, targets, {}).loss; });
}

TEST(CrossEntropy, NothingToAnswer) {
  std::vector<float> logits(4), d(4, 9.0f);
  const CrossEntropy result = cross_entropy<float>(2, logits, std::vector<std::int32_t>{kNoTarget, kNoTarget}, d);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.rows, 0);
  EXPECT_EQ(d, std::vector<float>(4, 0.0f));
}

TEST(CrossEntropy, NotANumberIsNotHidden) {
  const std::vector<float> logits = {0, std::numeric_limits<float>::quiet_NaN(), 0, 0};
  EXPECT_TRUE(std::isnan(cross_entropy<float>(2, logits, std::vector<std::int32_t>{0, 1}, {}).loss));
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  std::vector<float> logits(4);
  const std::vector<std::int32_t> far = {0, 2}, one = {0}, fine = {0, 1};
  EXPECT_EQ(message_of([&] { cross_entropy<float>(2, logits, far, {}); }),
            "targets[1]: 2, but 0 to 1 is wanted, or -1 for none");
  EXPECT_EQ(message_of([&] { cross_entropy<float>(2, logits, one, {}); }),
            "targets: 1 values, but 2 rows of 1 are wanted");
  EXPECT_EQ(message_of([&] { cross_entropy<float>(2, logits, fine, std::span(logits).first(2)); }),
            "d_logits: 2 values, but 2 rows of 2 are wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
