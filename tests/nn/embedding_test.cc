// The embedding: rows of the table out, their gradients in.
#include <gtest/gtest.h>

#include "nn/slope.h"
#include "rootdk/nn/embedding.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

TEST(Embedding, GivesRowsOfTheTable) {
  Embedding table(3, 2);
  table.weight = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> tokens = {2, 0, 2};
  std::vector<float> x(6);
  apply(table, tokens, x);
  EXPECT_EQ(x, (std::vector<float>{5, 6, 1, 2, 5, 6}));
}

// Tokens that come twice, one that never comes; gradients are added to what is there.
TEST(Embedding, GradientIsThatOfTheRows) {
  BasicEmbedding<double> table(7, 5);
  table.weight = normal_doubles(35, 1);
  const std::vector<std::int32_t> tokens = {4, 1, 4, 0, 6, 4};
  const std::vector<double> d_x = normal_doubles(30, 2);
  BasicEmbedding<double> gradients(7, 5);
  gradients.weight.assign(35, 0.5);
  backward_parameters(tokens, d_x, gradients);
  for (double& g : gradients.weight) g -= 0.5;
  for (std::size_t c = 0; c < 5; ++c) EXPECT_EQ(gradients.weight[3 * 5 + c], 0);
  const auto loss = [&] {
    std::vector<double> x(30);
    apply(table, tokens, x);
    return dot(x, d_x);
  };
  expect_slopes(std::vector{named("weight", table.weight)}, std::vector{named("weight", gradients.weight)}, loss);
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  Embedding table(3, 2);
  std::vector<float> x(4);
  const std::vector<std::int32_t> tokens = {0, 3}, negative = {-1, 0}, three = {0, 1, 2};
  EXPECT_EQ(message_of([] { Embedding(0, 2); }), "vocabulary: 0, but 1 to 2147483647 is wanted");
  EXPECT_EQ(message_of([&] { apply(table, tokens, x); }), "tokens[1]: 3, but 0 to 2 is wanted");
  EXPECT_EQ(message_of([&] { backward_parameters(negative, x, table); }), "tokens[0]: -1, but 0 to 2 is wanted");
  EXPECT_EQ(message_of([&] { apply(table, three, x); }), "x: 4 values, but 3 rows of 2 are wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
