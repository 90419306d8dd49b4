// RMSNorm: what it does to a row, and its gradients.
#include <gtest/gtest.h>

#include "nn/slope.h"
#include "rootdk/nn/rms_norm.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

// Whatever goes in, rows of unit mean square come out. With ε = 0 the mean square is off by the roundings only: one
// each of the inverse, its product and the square, twice as far in the square: 2·(1 + 1) + 1 half-ulps, and as many for
// the sum here.
TEST(RmsNorm, RowsGetUnitMeanSquare) {
  const BasicRmsNorm<double> norm(17, 0);
  for (const double size : {1e-100, 1.0, 1e100}) {
    const std::vector<double> x = normal_doubles(5 * 17, 1, size);
    std::vector<double> y(x.size()), inverse(5);
    apply(norm, x, y, inverse);
    for (std::size_t r = 0; r < 5; ++r)
      EXPECT_NEAR(dot(std::span(y).subspan(r * 17, 17), std::span(y).subspan(r * 17, 17)) / 17, 1, (5 + 18) * 0x1p-53);
  }
}

TEST(RmsNorm, ZerosStayZero) {
  const RmsNorm norm(4);
  std::vector<float> x(8, 0.0f), y(8, 9.0f), inverse(2);
  apply(norm, x, y, inverse);
  EXPECT_EQ(y, x);
}

// More rows than a chunk (64), so that gradients of the gain are sums of several.
TEST(RmsNorm, Gradients) {
  const std::size_t rows = 130, width = 6;
  BasicRmsNorm<double> norm(width, 1e-2);  // large enough to be seen
  norm.gain = normal_doubles(width, 1);
  std::vector<double> x = normal_doubles(rows * width, 2), y(x.size()), inverse(rows);
  const std::vector<double> d_y = normal_doubles(x.size(), 3);
  const auto loss = [&] {
    apply(norm, x, y, inverse);
    return dot(y, d_y);
  };
  loss();
  BasicRmsNorm<double> gradients(width);  // gains of one: added to
  std::vector<double> d_x(x.size(), 7), d_x_added(x.size(), 7);
  backward(norm, x, inverse, d_y, d_x, gradients);
  BasicRmsNorm<double> unused(width);
  backward(norm, x, inverse, d_y, d_x_added, unused, Write::kAdd);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(d_x_added[i], 7 + d_x[i]);
  for (double& g : gradients.gain) g -= 1;
  expect_slopes(std::vector{named("x", x), named("gain", norm.gain)},
                std::vector{named("x", d_x), named("gain", gradients.gain)}, loss);
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  RmsNorm norm(4);
  std::vector<float> x(8), y(8), inverse(2), wrong(7);
  EXPECT_EQ(message_of([] { RmsNorm(4, -1); }), "epsilon: -1, but a finite number of at least 0 is wanted");
  EXPECT_EQ(message_of([&] { apply(norm, wrong, y, inverse); }),
            "x: 7 values, which is not a whole number of rows of 4");
  EXPECT_EQ(message_of([&] { apply(norm, x, y, wrong); }), "inverse_rms: 7 values, but 2 rows of 1 are wanted");
  EXPECT_EQ(message_of([&] { backward(norm, x, inverse, y, wrong, norm); }),
            "d_x: 7 values, but 2 rows of 4 are wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
