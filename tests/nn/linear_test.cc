// The linear layer against sums in double, within the tolerance that Sum<Bounded> works out along with each value.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cmath>
#include <vector>

#include "nn/matmul_tile.h"
#include "nn/naive_layer.h"
#include "rootdk/nn/init.h"
#include "rootdk/nn/linear.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

std::vector<float> normal_values(std::int64_t count, std::uint64_t stream) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill(values, Init::normal(1), {}, {7, stream});
  return values;
}

std::size_t at(std::int64_t row, std::int64_t width, std::int64_t col) {
  return static_cast<std::size_t>(row * width + col);
}

void check_near(const char* what, float got, const Sum<Bounded>& want) {
  const Bounded expected = want.total();
  if (!(std::fabs(static_cast<double>(got) - expected.value) <= expected.tolerance()))
    ADD_FAILURE() << what << " is " << got << ", but " << expected.value << " ± " << expected.tolerance()
                  << " is wanted";
}

void check_layer(std::int64_t rows, std::int64_t in, std::int64_t out, bool has_bias) {
  Linear layer(in, out, has_bias);
  layer.weight = normal_values(in * out, 1);
  if (has_bias) layer.bias = normal_values(out, 2);
  const std::vector<float> x = normal_values(rows * in, 3), d_y = normal_values(rows * out, 4);

  std::vector<float> y(d_y.size(), 99);
  apply(layer, x, y);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < out; ++o) {
      Sum<Bounded> sum;
      for (std::int64_t i = 0; i < in; ++i) sum.add(x[at(r, in, i)], layer.weight[at(o, in, i)]);
      if (has_bias) sum.add(layer.bias[at(0, 0, o)]);
      check_near("y", y[at(r, out, o)], sum);
    }

  std::vector<float> d_x(x.size(), 99), d_x_added = normal_values(rows * in, 5);
  const std::vector<float> d_x_before = d_x_added;
  backward_input(layer, d_y, d_x);
  backward_input(layer, d_y, d_x_added, Write::kAdd);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < in; ++i) {
      Sum<Bounded> sum;
      for (std::int64_t o = 0; o < out; ++o) sum.add(d_y[at(r, out, o)], layer.weight[at(o, in, i)]);
      check_near("d_x", d_x[at(r, in, i)], sum);
      sum.add(d_x_before[at(r, in, i)]);
      check_near("d_x added", d_x_added[at(r, in, i)], sum);
    }

  Linear gradients = zeros_like(layer);
  gradients.weight = normal_values(in * out, 6);
  if (has_bias) gradients.bias = normal_values(out, 7);
  const Linear before = gradients;
  backward_parameters(x, d_y, gradients);
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      Sum<Bounded> sum;
      sum.add(before.weight[at(o, in, i)]);
      for (std::int64_t r = 0; r < rows; ++r) sum.add(d_y[at(r, out, o)], x[at(r, in, i)]);
      check_near("d_weight", gradients.weight[at(o, in, i)], sum);
    }
    if (!has_bias) continue;
    Sum<Bounded> sum;
    sum.add(before.bias[at(0, 0, o)]);
    for (std::int64_t r = 0; r < rows; ++r) sum.add(d_y[at(r, out, o)]);
    check_near("d_bias", gradients.bias[at(0, 0, o)], sum);
  }
}

TEST(Linear, SmallSizes) {
  EXPECT_TRUE(rc::check([] {
    check_layer(*rc::gen::inRange(0, 30), *rc::gen::inRange(1, 30), *rc::gen::inRange(1, 30),
                *rc::gen::arbitrary<bool>());
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Around the edges of tiles (128 × 256) and of the chunks of bias sums (64).
TEST(Linear, SizesAroundTiles) {
  for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{127, 256, 65},
                                      {128, 257, 64},
                                      {129, 255, 128},
                                      {1, 300, 300},
                                      {257, 1, 513},
                                      {130, 513, 1}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << in << " to " << out);
    check_layer(rows, in, out, true);
  }
}

// A sum of ones in f32 stops at 2²⁴; gradients of biases are sums over all rows of a batch.
TEST(Linear, BiasGradientOfManyRows) {
  const std::size_t rows = (std::size_t{1} << 24) + 2;
  const std::vector<float> ones(rows, 1.0f);
  Linear gradients(1, 1, true);
  backward_parameters(ones, ones, gradients);
  EXPECT_EQ(gradients.bias[0], static_cast<float>(rows));
}

TEST(Linear, NotANumberStaysInItsRow) {
  Linear layer(5, 4, false);
  layer.weight = normal_values(20, 1);
  std::vector<float> x = normal_values(15, 2), y(12);
  x[7] = std::nanf("");
  apply(layer, x, y);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 4 == 1) << i;
}

TEST(Linear, RefusesWhatDoesNotFit) {
  Linear layer(3, 2, true);
  std::vector<float> x(6), y(4), wrong(5);
  EXPECT_EQ(message_of([] { Linear(0, 2, false); }), "in: 0, but 1 to 2147483647 is wanted");
  EXPECT_EQ(message_of([&] { apply(layer, wrong, y); }), "x: 5 values, which is not a whole number of rows of 3");
  EXPECT_EQ(message_of([&] { apply(layer, x, wrong); }), "y: 5 values, but 2 rows of 2 are wanted");
  EXPECT_EQ(message_of([&] { backward_input(layer, y, wrong); }), "d_x: 5 values, but 2 rows of 3 are wanted");
  EXPECT_EQ(message_of([&] { backward_parameters(x, wrong, layer); }), "d_y: 5 values, but 2 rows of 2 are wanted");
  layer.bias.push_back(0);
  EXPECT_EQ(message_of([&] { apply(layer, x, y); }), "layer.bias: 3 values, but 2 or none are wanted");
  EXPECT_EQ(message_of([&] { apply(Linear(), x, y); }), "layer: maps 0 to 0, but 1 to 2147483647 is wanted of each");
}

// Each instruction set by itself: whole numbers small enough that f32 is exact in any order.
TEST(Linear, EveryInstructionSet) {
  const TileSize size = {37, 29, 67};
  const auto whole = [](std::int64_t i, std::int64_t j, std::int64_t salt) {
    return static_cast<float>((i * 31 + j * 17 + salt) % 13 - 6);
  };
  const auto matrix = [&](std::int64_t rows, std::int64_t cols, std::int64_t stride, std::int64_t salt,
                          bool transposed) {
    std::vector<float> m(static_cast<std::size_t>(rows * stride), 1000);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) m[at(i, stride, j)] = transposed ? whole(j, i, salt) : whole(i, j, salt);
    return m;
  };
  const std::int64_t stride = 80;
  const auto a = matrix(size.rows, size.inner, stride, 1, false), a_t = matrix(size.inner, size.rows, stride, 1, true);
  const auto b = matrix(size.inner, size.cols, stride, 2, false), b_t = matrix(size.cols, size.inner, stride, 2, true);
  const auto all = tile_products_here();
  ASSERT_FALSE(all.empty());
  for (const TileProducts* products : all) {
    SCOPED_TRACE(products->isa);
    auto nt = matrix(size.rows, size.cols, stride, 3, false), nn = nt, tn = nt, want = nt;
    products->add_nt(size, {a.data(), stride}, {b_t.data(), stride}, {nt.data(), stride});
    products->add_nn(size, {a.data(), stride}, {b.data(), stride}, {nn.data(), stride});
    products->add_tn(size, {a_t.data(), stride}, {b.data(), stride}, {tn.data(), stride});
    for (std::int64_t i = 0; i < size.rows; ++i)
      for (std::int64_t j = 0; j < size.cols; ++j)
        for (std::int64_t k = 0; k < size.inner; ++k) want[at(i, stride, j)] += whole(i, k, 1) * whole(k, j, 2);
    EXPECT_EQ(nt, want);
    EXPECT_EQ(nn, want);
    EXPECT_EQ(tn, want);
  }
}

}  // namespace
}  // namespace rootdk::nn::testing
