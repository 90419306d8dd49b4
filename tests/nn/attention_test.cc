// The layer against the naive one: values within the tolerance that running error analysis gives, and the gradients of
// every weight and input; the naive one's gradients against differences of its own outputs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "nn/layer_case.h"

namespace rootdk::nn::testing {
namespace {

/// What is wrong with the layer's results, or nothing. `loosest` becomes the largest tolerance beside the size of its
/// array.
std::string compare(const NaiveConfig& config, double* loosest = nullptr) {
  const float gathered = 0.5f;
  Case layer(config);
  layer.forward();
  layer.backward(gathered);

  NaiveConfig naive_config = config;
  naive_config.gathered = static_cast<double>(gathered);
  const auto in = layer.arrays<Bounded>();
  const NaiveLayer<Bounded> naive(naive_config, in);
  Arrays<Bounded> expected = naive.backward({layer.d_out.begin(), layer.d_out.end()});
  expected["out"] = naive.out();

  for (const auto& [name, got] : layer.results()) {
    const auto found = expected.find(name);
    const std::vector<Bounded> want = found == expected.end() ? std::vector<Bounded>() : found->second;
    if (got.size() != want.size())
      return fmt::format("{}: {} values, but {} are wanted", name, got.size(), want.size());
    double squares = 0, widest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = std::fabs(static_cast<double>(got[i]) - want[i].value);
      if (!(error <= want[i].tolerance()))
        return fmt::format("{}[{}] is {}, but {} ± {} is wanted", name, i, got[i], want[i].value, want[i].tolerance());
      squares += want[i].value * want[i].value / static_cast<double>(got.size());
      widest = std::max(widest, want[i].tolerance());
    }
    if (loosest && squares > 0) *loosest = std::max(*loosest, widest / std::sqrt(squares));
  }
  return "";
}

// D(h), the central difference of step h along a random direction, is off by Ch² + O(h⁴), and D(2h) − D(h) = 3Ch² +
// O(h⁴): so |D(2h) − D(h)| bounds the error of D(h) with a factor 3 in hand. Rounding adds at most e/h, where e bounds
// the error of the loss in double: that of the f32 analysis times u64/u32.
TEST(NaiveLayer, GradientsAreThoseOfItsOutputs) {
  for (const NaiveConfig& config : {typical(), self_attention(typical())}) {
    const Case layer(config);
    const auto in = layer.arrays<double>();
    const std::vector<double> d_out(layer.d_out.begin(), layer.d_out.end());
    const auto gradients = NaiveLayer<double>(config, in).backward(d_out);

    Sum<Bounded> bounded_loss;
    const auto bounded_in = layer.arrays<Bounded>();
    const NaiveLayer<Bounded> bounded(config, bounded_in);
    for (std::size_t i = 0; i < d_out.size(); ++i) bounded_loss.add(d_out[i], bounded.out()[i]);
    const double rounding = bounded_loss.total().tolerance() * kU64 / kU;

    std::uint64_t stream = 100;
    for (const auto& entry : gradients) {
      const std::string& name = entry.first;
      const std::vector<double>& gradient = entry.second;
      const std::vector<float> direction = normal_values(static_cast<std::int64_t>(gradient.size()), stream++);
      const auto loss = [&](double step) {
        auto moved = in;
        for (std::size_t i = 0; i < direction.size(); ++i) moved[name][i] += step * static_cast<double>(direction[i]);
        const NaiveLayer<double> there(config, moved);
        return std::inner_product(d_out.begin(), d_out.end(), there.out().begin(), 0.0);
      };
      const double h = 1e-4;
      const double near = (loss(h) - loss(-h)) / (2 * h), far = (loss(2 * h) - loss(-2 * h)) / (4 * h);
      const double slope = std::inner_product(gradient.begin(), gradient.end(), direction.begin(), 0.0);
      EXPECT_NEAR(slope, near, std::fabs(far - near) + rounding / h) << name;
      EXPECT_GT(std::fabs(slope), 1000 * rounding / h) << name << ": too flat to tell";
    }
  }
}

TEST(MultiHeadAttention, SelfAttention) { EXPECT_EQ(compare(self_attention(typical())), ""); }

TEST(MultiHeadAttention, CrossAttention) { EXPECT_EQ(compare(typical()), ""); }

// A tolerance that is not small beside the values would let anything through.
TEST(MultiHeadAttention, TolerancesAreTight) {
  double loosest = 0;
  EXPECT_EQ(compare(typical(), &loosest), "");
  EXPECT_GT(loosest, 0);
  EXPECT_LT(loosest, 1e-3);
}

TEST(MultiHeadAttention, OneKeyValueHead) {
  NaiveConfig c = typical();
  c.heads_kv = 1;
  EXPECT_EQ(compare(c), "");
}

TEST(MultiHeadAttention, WithoutBiases) {
  NaiveConfig c = typical();
  c.bias_qkv = c.bias_out = false;
  EXPECT_EQ(compare(c), "");
}

// Several tiles in every product, the last ones ragged, and several blocks of keys.
TEST(MultiHeadAttention, LargerThanATile) {
  NaiveConfig c = typical();
  c.batch = 2, c.len_q = 70, c.len_kv = 90;
  c.width = 270, c.width_kv = 33;
  c.heads_q = 6, c.heads_kv = 3, c.dim_qk = 24, c.dim_v = 25;
  EXPECT_EQ(compare(c), "");
}

TEST(MultiHeadAttention, AnyLayer) {
  EXPECT_TRUE(rc::check("layer and naive layer agree", [] {
    const auto draw = [](int low, int high) { return std::int64_t{*rc::gen::inRange(low, high + 1)}; };
    NaiveConfig c;
    c.batch = draw(1, 3), c.len_q = draw(1, 20), c.len_kv = draw(1, 20);
    c.width = draw(1, 20), c.width_kv = draw(1, 20);
    c.heads_kv = draw(1, 3), c.heads_q = c.heads_kv * draw(1, 3);
    c.dim_qk = draw(1, 12), c.dim_v = draw(1, 12);
    c.bias_qkv = draw(0, 1), c.bias_out = draw(0, 1), c.causal = draw(0, 1), c.sink = draw(0, 1);
    if (draw(0, 1)) {
      const std::int64_t pairs = draw(1, 4);
      c.dim_qk = std::max(c.dim_qk, 2 * pairs);
      c.rotary = Rotary{.pairing = draw(0, 1) ? Rotary::Pairing::kHalfSplit : Rotary::Pairing::kInterleaved,
                        .base = 100,
                        .dims = 2 * pairs,
                        .first_position = draw(-50, 50)};
    }
    if (draw(0, 1)) c = self_attention(c);
    const std::string wrong = compare(c);
    RC_LOG() << wrong;
    RC_ASSERT(wrong.empty());
  }));
}

struct Halve {
  template <class T>
  T operator()(T s) const {
    return s / 2;
  }
  template <class T>
  T derivative(T) const {
    return T(0.5);
  }
};

// Whatever the problem says reaches the kernel: the attention inside is rootdk::forward on what was saved, bit for bit.
TEST(MultiHeadAttention, HandsTheProblemOn) {
  const std::vector<std::int64_t> key_lengths = {13, 4}, q_starts = {0, 4, 9}, kv_starts = {0, 7, 12};
  const std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 1};
  const Halve halve;
  std::vector<Problem> problems(7);
  problems[1].soft_cap = 0.5f;
  problems[2].dropout = {0.25f, 99};
  problems[3].mask.window = Window{2, 1};
  problems[4].mask.key_lengths = key_lengths, problems[4].mask.diagonal = Diagonal::last_key();
  problems[5].mask.documents = Documents{q_starts, kv_starts}, problems[5].mask.alibi_slopes = slopes;
  problems[6].transform = ScoreTransform::of(halve);

  std::vector<std::vector<float>> seen;
  for (const Problem& problem : problems) {
    Case layer(typical());
    layer.problem = problem;
    const Stats stats = layer.forward();
    EXPECT_EQ(stats.batch, 2);
    EXPECT_EQ(stats.heads, 4);
    const AttentionSaved& s = layer.saved;
    std::vector<float> o(s.o.size());
    Tensor to = {o.data(), DType::kF32, Device::kCpu, s.o_view().shape, s.o_view().strides};
    rootdk::forward(problem, {s.q_view(), s.k_view(), s.v_view()}, {.o = to});
    EXPECT_EQ(std::memcmp(o.data(), s.o.data(), o.size() * sizeof(float)), 0);
    for (const auto& other : seen) EXPECT_NE(other, layer.out);
    seen.push_back(layer.out);
  }
}

}  // namespace
}  // namespace rootdk::nn::testing
