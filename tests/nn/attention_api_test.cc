// What the layer's header promises beside the numbers: the same bits at any thread count, empty sizes, gradients on
// request, and refusals that say what was wrong before anything is written.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "nn/layer_case.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

TEST(MultiHeadAttention, SameBitsAtAnyThreadCount) {
  NaiveConfig c = typical();
  c.batch = 3, c.len_q = 110, c.len_kv = 130;
  c.width = 300, c.width_kv = 260;
  c.heads_q = 6, c.heads_kv = 3, c.dim_qk = 48, c.dim_v = 50;
  const int before = omp_get_max_threads();
  std::map<std::string, std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    Case layer(c);
    layer.forward();
    layer.backward(0);
    const auto all = layer.results();
    if (threads == 1) first = all;
    for (const auto& [name, values] : all)
      EXPECT_EQ(std::memcmp(values.data(), first[name].data(), values.size() * sizeof(float)), 0)
          << name << " at " << threads;
  }
  omp_set_num_threads(before);
}

TEST(MultiHeadAttention, WithoutSavedTheOutputIsTheSame) {
  Case layer(typical());
  layer.forward();
  std::vector<float> out(layer.out.size());
  layer.layer.forward(layer.problem, layer.q(), layer.kv(), {out.data(), 2, 9, 12});
  EXPECT_EQ(out, layer.out);
}

// Asking for one gradient alone gives what asking for all gives.
TEST(MultiHeadAttention, PartsCanBeAskedForAlone) {
  Case layer(typical());
  layer.forward();
  layer.backward(0);
  const ConstSequence d_out = {layer.d_out.data(), 2, 9, 12};
  std::vector<float> d_x_q(layer.d_x_q.size()), d_x_kv(layer.d_x_kv.size()), d_scale(4), d_sink(4);
  AttentionParameters gradients = zeros_like(layer.layer.parameters());
  layer.layer.backward(layer.saved, d_out, {.d_x_q = {d_x_q.data(), 2, 9, 12}});
  layer.layer.backward(layer.saved, d_out, {.d_x_kv = {d_x_kv.data(), 2, 13, 10}});
  layer.layer.backward(layer.saved, d_out, {.d_scale = d_scale});
  layer.layer.backward(layer.saved, d_out, {.d_sink = d_sink});
  layer.layer.backward(layer.saved, d_out, {.parameters = &gradients});
  EXPECT_EQ(d_x_q, layer.d_x_q);
  EXPECT_EQ(d_x_kv, layer.d_x_kv);
  EXPECT_EQ(d_scale, layer.d_scale);
  EXPECT_EQ(d_sink, layer.d_sink);
  for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(gradients.each()[n]->weight, layer.gradients.each()[n]->weight);

  Case self(self_attention(typical()));
  self.forward();
  self.backward(0);
  self.layer.backward(self.saved, {self.d_out.data(), 2, 9, 12}, {.d_x_q = {d_x_q.data(), 2, 9, 12}});
  EXPECT_EQ(d_x_q, self.d_x_q);
}

// Where every query sees all n keys, c = c_h·(a·ln n + b), so the gradients of c_h, a and b are multiples of each
// other; and what is learned is added to.
TEST(MultiHeadAttention, GradientsOfSsmax) {
  NaiveConfig c = typical();
  c.causal = false;
  Case layer(c);
  const std::vector<float> gains = {0.5f, -0.25f, 1, 0.75f}, offsets = {0.5f, 1, 0, -2};
  const std::vector<float> scale(layer.problem.scale.head_values.begin(), layer.problem.scale.head_values.end());
  layer.problem.scale = layer.problem.scale.with_ssmax(gains, offsets);
  layer.forward();
  std::vector<float> d_scale(4), d_gain(4, 1), d_offset(4, 1);
  layer.layer.backward(layer.saved, {layer.d_out.data(), 2, 9, 12},
                       {.d_scale = d_scale, .d_log_n_gain = d_gain, .d_log_n_offset = d_offset});
  const double log_n = std::log(static_cast<double>(c.len_kv));
  for (std::size_t h = 0; h < 4; ++h) {
    const double by_offset = static_cast<double>(d_offset[h]) - 1,
                 size = std::fabs(by_offset) + 1;  // rounded with the 1 in it
    EXPECT_NE(by_offset, 0);
    EXPECT_NEAR(static_cast<double>(d_gain[h]) - 1, log_n * by_offset, 4 * log_n * 0x1p-24 * size);
    const double by_rule =
        (static_cast<double>(gains[h]) * log_n + static_cast<double>(offsets[h])) / static_cast<double>(scale[h]);
    EXPECT_NEAR(static_cast<double>(d_scale[h]), by_rule * by_offset, 4 * (1 + std::fabs(by_rule)) * 0x1p-24 * size);
  }
  std::vector<float> three(3), four(4);
  const auto run = [&](const AttentionGradients& g) {
    return message_of([&] { layer.layer.backward(layer.saved, {layer.d_out.data(), 2, 9, 12}, g); });
  };
  EXPECT_EQ(run({.d_log_n_gain = three}), "gradients.d_log_n_gain: 3 values, but there are 4 query heads");
  layer.saved.problem.scale = Scale::none();
  EXPECT_EQ(run({.d_log_n_offset = four}),
            "gradients.d_log_n_gain, d_log_n_offset: wanted, but the scale has no log-n part (ssmax)");
}

TEST(MultiHeadAttention, NoKeys) {
  NaiveConfig c = typical();
  c.len_kv = 0;
  c.sink = false;
  Case layer(c);
  layer.forward();
  layer.backward(0);
  const std::vector<float>& bias = layer.layer.parameters().o.bias;
  for (std::size_t i = 0; i < layer.out.size(); ++i) ASSERT_EQ(layer.out[i], bias[i % bias.size()]);
  for (const float x : layer.d_x_q) ASSERT_EQ(x, 0);
  for (const float x : layer.gradients.q.weight) ASSERT_EQ(x, 0);
  EXPECT_NE(layer.gradients.o.bias[0], 0);
}

TEST(MultiHeadAttention, NoQueriesAndNoBatch) {
  for (const bool no_batch : {false, true}) {
    NaiveConfig c = typical();
    (no_batch ? c.batch : c.len_q) = 0;
    Case layer(c);
    layer.forward();
    layer.backward(0.5f);
    for (const float x : layer.d_x_kv) ASSERT_EQ(x, 0);
    for (const Linear* p : layer.gradients.each())
      for (const float x : p->weight) ASSERT_EQ(x, 0.5f);
  }
}

TEST(MultiHeadAttention, DefaultsAreFilledIn) {
  const MultiHeadAttentionOptions o = MultiHeadAttention({.width = 96, .heads_q = 8}).options();
  EXPECT_EQ(o.heads_kv, 8);
  EXPECT_EQ(o.dim_qk, 12);
  EXPECT_EQ(o.dim_v, 12);
  EXPECT_EQ(o.width_kv, 96);
}

TEST(MultiHeadAttention, RefusesOptionsThatDoNotFit) {
  using Options = MultiHeadAttentionOptions;
  const auto message = [](const Options& options) { return message_of([&] { MultiHeadAttention layer(options); }); };
  EXPECT_EQ(message({}), "width: 0, but 1 to 2147483647 is wanted");
  EXPECT_EQ(message({.width = 10, .heads_q = 3}),
            "heads_q: 3, which does not divide the width 10; give dim_qk and dim_v, or another number");
  EXPECT_EQ(message({.width = 12, .heads_q = 4, .heads_kv = 3}), "heads_kv: 3, which does not divide heads_q = 4");
  EXPECT_EQ(message({.width = 12, .dim_qk = -1}), "dim_qk: -1, but 1 to 2147483647 is wanted");
  EXPECT_EQ(message({.width = 12, .heads_q = 4, .rotary = Rotary{}}),
            "rotary.dims: 3, but an even number of at most dim_qk = 3 is wanted");
}

TEST(MultiHeadAttention, RefusesArraysThatDoNotFit) {
  Case layer(typical());
  layer.forward();
  const auto before = layer.saved.q;
  const auto run = [&](ConstSequence q, ConstSequence kv, Sequence out) {
    return message_of([&] { layer.layer.forward(layer.problem, q, kv, out, &layer.saved); });
  };
  float* const to = layer.out.data();
  const Sequence out = {to, 2, 9, 12};
  EXPECT_EQ(run({layer.x_q.data(), 2, 9, 11}, layer.kv(), out), "x_q: width is 11, but 12 is wanted");
  EXPECT_EQ(run(layer.q(), {layer.x_kv.data(), 1, 26, 10}, out), "x_kv: batch is 1, but x_q has 2");
  EXPECT_EQ(run({nullptr, 2, 9, 12}, layer.kv(), out), "x_q: data is null, but it has 18 rows");
  EXPECT_EQ(run({layer.x_q.data(), 2, -9, 12}, layer.kv(), out),
            "x_q: batch is 2 and length -9, but neither can be negative");
  EXPECT_EQ(run(layer.q(), layer.kv(), {to, 2, 8, 12}), "out: [batch, length] is [2, 8], but [2, 9] is wanted");
  EXPECT_EQ(run({to, 2, 9, 12}, layer.kv(), out), "out: overlaps x_q");
  EXPECT_EQ(message_of([&] { layer.layer.forward(layer.problem, layer.q(), out); }),
            "width_kv: 10, but self-attention needs the width of x, 12");
  layer.problem.dropout.p = 2;
  EXPECT_EQ(run(layer.q(), layer.kv(), out), "dropout: 2, but 0 <= p < 1 is wanted");
  layer.problem.dropout.p = 0;
  layer.problem.paged = PagedKv{};
  EXPECT_NE(run(layer.q(), layer.kv(), out).find("problem.paged: given"), std::string::npos);
  layer.problem.paged.reset();
  layer.layer.parameters().v.weight.pop_back();
  EXPECT_EQ(run(layer.q(), layer.kv(), out), "parameters.v.weight: 99 values, but 10 × 10 are wanted");
  EXPECT_EQ(layer.saved.q, before);
}

TEST(MultiHeadAttention, RefusesGradientsThatDoNotFit) {
  Case cross(typical()), self(self_attention(typical()));
  cross.forward(), self.forward();
  std::vector<float> d_x(1000), three(3), four(4);
  AttentionParameters other = MultiHeadAttention({.width = 12}).parameters();
  const auto run = [&](Case& layer, const AttentionGradients& g) {
    return message_of([&] { layer.layer.backward(layer.saved, {layer.d_out.data(), 2, 9, 12}, g); });
  };
  EXPECT_EQ(run(cross, {.d_x_q = {d_x.data(), 2, 13, 12}}),
            "gradients.d_x_q: [batch, length] is [2, 13], but [2, 9] is wanted");
  EXPECT_EQ(run(cross, {.d_x_q = {d_x.data(), 2, 9, 12}, .d_x_kv = {d_x.data(), 2, 13, 10}}),
            "gradients.d_x_q: overlaps gradients.d_x_kv");
  EXPECT_EQ(run(self, {.d_x_kv = {d_x.data(), 2, 9, 12}}),
            "gradients.d_x_kv: given, but after self-attention d_x_q holds the whole gradient of x");
  EXPECT_EQ(run(cross, {.d_scale = three}), "gradients.d_scale: 3 values, but there are 4 query heads");
  EXPECT_EQ(run(cross, {.parameters = &other}), "gradients.parameters.q: maps 12 to 12, but 12 to 24 is wanted");
  AttentionParameters unbiased = cross.layer.parameters();
  unbiased.v.bias.clear();
  EXPECT_EQ(run(cross, {.parameters = &unbiased}),
            "gradients.parameters: has other biases than the layer; make it with zeros_like");
  cross.saved.problem.sink = {};
  EXPECT_EQ(run(cross, {.d_sink = four}), "gradients.d_sink: wanted, but the problem has no sink");
  self.saved.lse.pop_back();
  EXPECT_EQ(run(self, {}), "saved: not made by the forward pass of a layer with these options");
  EXPECT_EQ(message_of([&] {
              cross.layer.backward(AttentionSaved{}, {nullptr, 0, 0, 12}, {});
            }),
            "saved: not made by the forward pass of a layer with these options");
}

}  // namespace
}  // namespace rootdk::nn::testing
