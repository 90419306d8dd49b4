// The MLP: by hand where it is linear, and its gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/slope.h"
#include "rootdk/nn/mlp.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

// One unit: y = down·silu(gate·x)·(up·x). Five roundings in double, each at most half an ulp of the result.
TEST(Mlp, OneUnit) {
  BasicMlp<double> mlp(1, 1);
  mlp.gate.weight = {2}, mlp.up.weight = {3}, mlp.down.weight = {5};
  for (const double x : {-1.5, 0.0, 0.25, 40.0, -800.0}) {
    std::vector<double> in = {x}, y(1);
    BasicMlpSaved<double> saved;
    apply(mlp, in, y, saved);
    const double want = 5 * (2 * x / (1 + std::exp(-2 * x))) * (3 * x);
    EXPECT_NEAR(y[0], want, 5 * 0x1p-53 * std::fabs(want)) << x;
  }
}

TEST(Mlp, Gradients) {
  const std::size_t rows = 70, width = 5, hidden = 9;
  BasicMlp<double> mlp(width, hidden);
  mlp.gate.weight = normal_doubles(width * hidden, 1);
  mlp.up.weight = normal_doubles(width * hidden, 2);
  mlp.down.weight = normal_doubles(width * hidden, 3);
  std::vector<double> x = normal_doubles(rows * width, 4), y(x.size()), d_x(x.size(), 7);
  const std::vector<double> d_y = normal_doubles(x.size(), 5);
  BasicMlpSaved<double> saved;
  const auto loss = [&] {
    apply(mlp, x, y, saved);
    return dot(y, d_y);
  };
  loss();
  BasicMlp<double> gradients(width, hidden);
  backward(mlp, x, saved, d_y, d_x, gradients);
  expect_slopes(std::vector{named("x", x), named("gate", mlp.gate.weight), named("up", mlp.up.weight),
                            named("down", mlp.down.weight)},
                std::vector{named("x", d_x), named("gate", gradients.gate.weight), named("up", gradients.up.weight),
                            named("down", gradients.down.weight)},
                loss);
}

TEST(Mlp, RefusesWhatDoesNotFit) {
  Mlp mlp(4, 6);
  std::vector<float> x(8), y(8), wrong(7);
  BasicMlpSaved<float> saved;
  EXPECT_EQ(message_of([&] { apply(mlp, wrong, y, saved); }), "x: 7 values, which is not a whole number of rows of 4");
  EXPECT_EQ(message_of([&] { backward(mlp, x, saved, y, x, mlp); }), "saved: 0 values, but 2 rows of 6 are wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
