// A block: what it adds up, and its gradients, attention on the reference kernel.
#include <gtest/gtest.h>

#include "nn/slope.h"
#include "rootdk/nn/block.h"

namespace rootdk::nn::testing {
namespace {

BasicBlock<double> random_block() {
  MultiHeadAttentionOptions options;
  options.width = 8, options.heads_q = 2, options.dim_qk = 6, options.dim_v = 3;
  options.rotary = Rotary{};
  BasicBlock<double> block(options, 10, 1e-5);
  std::vector<Parameter<double>> all;
  block.list("", all);
  std::uint64_t stream = 1;
  for (const Parameter<double>& p : all) fill(p.values, Init::normal(0.5), {}, {31, stream++});
  return block;
}

// With branches that write nothing, what comes in goes out.
TEST(Block, IsARailWithBranches) {
  BasicBlock<double> block = random_block();
  block.attention.parameters().o.set_zero();
  block.mlp.down.set_zero();
  const std::vector<double> x = normal_doubles(2 * 3 * 8, 1);
  std::vector<double> y(x.size());
  BasicBlockSaved<double> saved;
  apply(block, {}, BasicSequence<const double>{x.data(), 2, 3, 8}, BasicSequence<double>{y.data(), 2, 3, 8}, saved);
  EXPECT_EQ(x, y);
}

TEST(Block, NamesAreLlamas) {
  BasicBlock<double> block = random_block();
  std::vector<Parameter<double>> all;
  block.list("model.layers.3.", all);
  std::vector<std::string> names;
  for (const Parameter<double>& p : all) {
    names.push_back(p.name.substr(std::string("model.layers.3.").size()));
    std::int64_t count = 1;
    for (const std::int64_t extent : p.shape) count *= extent;
    EXPECT_EQ(static_cast<std::size_t>(count), p.values.size()) << p.name;
    EXPECT_EQ(p.decays(), p.name.find("layernorm") == std::string::npos) << p.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"input_layernorm.weight", "self_attn.q_proj.weight",
                                             "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                             "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                                             "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}));
}

TEST(Block, Gradients) {
  const std::int64_t batch = 2, length = 7, width = 8;
  BasicBlock<double> block = random_block(), gradients = block;
  Problem problem;
  problem.mask.causal = true;
  std::vector<double> x = normal_doubles(static_cast<std::size_t>(batch * length * width), 1), y(x.size()),
                      d_x(x.size(), 7);
  const std::vector<double> d_y = normal_doubles(x.size(), 2);
  BasicBlockSaved<double> saved;
  const auto loss = [&] {
    apply(block, problem, BasicSequence<const double>{x.data(), batch, length, width},
          BasicSequence<double>{y.data(), batch, length, width}, saved);
    return dot(y, d_y);
  };
  loss();
  std::vector<Parameter<double>> arrays = {named("x", x)}, slopes = {named("x", d_x)};
  block.list("", arrays);
  gradients.list("", slopes);
  for (std::size_t n = 1; n < slopes.size(); ++n) std::fill(slopes[n].values.begin(), slopes[n].values.end(), 0.0);
  backward(block, saved, BasicSequence<const double>{d_y.data(), batch, length, width},
           BasicSequence<double>{d_x.data(), batch, length, width}, gradients);
  expect_slopes(arrays, slopes, loss);
}

}  // namespace
}  // namespace rootdk::nn::testing
