// Every family, in its real layout: what the audit reads off the weights is what the scores do when the same model
// runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "audit/gguf.h"
#include "audit/models.h"
#include "rootdk/attention.h"
#include "rootdk/audit.h"

namespace rootdk::audit {
namespace {

// A mean over independent batches.
struct Batches {
  double sum = 0, squares = 0;
  int count = 0;

  void add(double x) { sum += x, squares += x * x, ++count; }
  double mean() const { return sum / count; }
  double standard_error() const { return std::sqrt((squares / count - mean() * mean()) / (count - 1)); }
};

constexpr int kBatches = 120;
constexpr std::int64_t kQueries = 24, kKeys = 32;

void turn(const Naive& n, double position, double* head) {
  for (std::size_t p = 0; p < n.pairs.size(); ++p) {
    const double c = std::cos(position * n.frequencies[p]), s = std::sin(position * n.frequencies[p]);
    double &x = head[n.pairs[p].first], &y = head[n.pairs[p].second];
    const double a = x, b = y;
    x = c * a - s * b;
    y = s * a + c * b;
  }
}

// The variance of q·k within rows, for every head, by the engine: queries stand at the end of the context, keys
// anywhere in it, each drawn by itself.
std::vector<Batches> measured(const Naive& n, double context, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Batches> out(static_cast<std::size_t>(n.heads));
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto draw = [&](std::int64_t heads, std::int64_t length, const auto& make, const auto& position) {
      std::vector<float> all(static_cast<std::size_t>(heads * length * n.dim));
      for (std::int64_t t = 0; t < length; ++t) {
        Vector x = make(rng);
        const double at = position();
        for (std::int64_t h = 0; h < heads; ++h) {
          turn(n, at, x.data() + h * n.dim);
          for (std::int64_t i = 0; i < n.dim; ++i)
            all[static_cast<std::size_t>((h * length + t) * n.dim + i)] =
                static_cast<float>(x[static_cast<std::size_t>(h * n.dim + i)]);
        }
      }
      return all;
    };
    const auto q = draw(n.heads, kQueries, n.queries, [&] { return context - 1; });
    const auto k = draw(n.kv_heads, kKeys, n.keys, [&] { return std::floor(rng.uniform() * context); });
    std::vector<float> v(static_cast<std::size_t>(n.kv_heads * kKeys)), o(static_cast<std::size_t>(n.heads * kQueries));
    Problem problem;
    problem.scale = Scale::constant(n.scale);
    problem.stats = StatsLevel::kFull;
    const Stats stats = forward(problem,
                                {.q = tensor(q.data(), {1, n.heads, kQueries, n.dim}),
                                 .k = tensor(k.data(), {1, n.kv_heads, kKeys, n.dim}),
                                 .v = tensor(v.data(), {1, n.kv_heads, kKeys, 1})},
                                {.o = tensor(o.data(), {1, n.heads, kQueries, 1})});
    for (std::int64_t h = 0; h < n.heads; ++h)
      out[static_cast<std::size_t>(h)].add(stats.at(0, h).raw.within_row_variance() / (n.scale * n.scale));
  }
  return out;
}

Audit audit_of(const std::filesystem::path& path, const Hints& hints = {}) {
  const auto file = checkpoint::Checkpoint::open(path);
  return audit(file, recognise(file, hints));
}

// Four standard errors: with 120 batches one head in some 9,000 would miss by chance, and seeds are fixed. Batches
// leave standard errors of about 2 %, so layouts, orders or factors that are mistaken do not pass.
void expect_agrees(const Made& made, const Audit& found, std::uint64_t seed) {
  ASSERT_EQ(found.layers.size(), made.layers.size());
  for (std::size_t layer = 0; layer < made.layers.size(); ++layer) {
    const Naive& n = made.layers[layer];
    const Attention& a = found.layers[layer].attention;
    EXPECT_EQ(a.kind, n.kind);
    EXPECT_EQ(a.heads_kv, n.kv_heads);
    EXPECT_DOUBLE_EQ(a.scale, n.scale);
    ASSERT_EQ(a.heads_q, n.heads);
    const std::vector<Batches> all = measured(n, static_cast<double>(a.context), seed + layer);
    for (std::int64_t h = 0; h < n.heads; ++h) {
      const Head& head = found.layers[layer].heads[static_cast<std::size_t>(h)];
      const Batches& batches = all[static_cast<std::size_t>(h)];
      const std::string where = n.kind + " layer " + std::to_string(layer) + " head " + std::to_string(h);
      EXPECT_EQ(head.d_k, n.dim) << where;
      EXPECT_LT(batches.standard_error(), 0.08 * batches.mean()) << where;
      EXPECT_NEAR(head.variance_in_context, batches.mean(), 4 * batches.standard_error()) << where;
      EXPECT_DOUBLE_EQ(head.sigma, std::sqrt(head.variance) * n.scale) << where;
      if (n.pairs.empty()) {
        EXPECT_EQ(head.variance, head.variance_in_context) << where;
      }
    }
    if (n.pairs.empty()) continue;
    // With distances up to 2⁴⁰ every phase is met equally often.
    const std::vector<Batches> everywhere = measured(n, 0x1p40, seed + 100 + layer);
    for (std::int64_t h = 0; h < n.heads; ++h)
      EXPECT_NEAR(found.layers[layer].heads[static_cast<std::size_t>(h)].variance,
                  everywhere[static_cast<std::size_t>(h)].mean(),
                  4 * everywhere[static_cast<std::size_t>(h)].standard_error())
          << "layer " << layer << " head " << h;
  }
}

struct Case {
  const char* name;
  std::function<Made(Rng&)> make;
  const char* family;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Families : public testing::TestWithParam<Case> {};

TEST_P(Families, PredictTheVarianceThatTheEngineMeasures) {
  Rng rng(20260101);
  const Made made = GetParam().make(rng);
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  const Audit found = audit_of(folder.path());
  EXPECT_EQ(found.model.family, GetParam().family);
  EXPECT_TRUE(found.model.notes.empty()) << found.model.notes.front();
  expect_agrees(made, found, 7);
}

INSTANTIATE_TEST_SUITE_P(
    Real, Families,
    testing::Values(
        Case{"bert", [](Rng& r) { return make_bert(r); }, "bert"},
        Case{"roberta",
             [](Rng& r) {
               Made made = make_bert(r, "roberta.");
               made.config["model_type"] = "roberta";
               return made;
             },
             "bert"},
        Case{"gpt2", make_gpt2, "gpt2"}, Case{"gpt_neox", make_gpt_neox, "gpt_neox"},
        Case{"llama", [](Rng& r) { return make_llama(r); }, "llama"},
        Case{"mistral", [](Rng& r) { return make_llama(r, {.type = "mistral"}); }, "llama"},
        Case{"qwen2", [](Rng& r) { return make_llama(r, {.type = "qwen2", .biases = true}); }, "llama"},
        Case{"qwen3", [](Rng& r) { return make_llama(r, {.type = "qwen3", .qk_norm = true}); }, "qwen3"},
        Case{"gemma", [](Rng& r) { return make_llama(r, {.type = "gemma", .gain_offset = 1}); }, "gemma"},
        Case{"gemma2", [](Rng& r) { return make_llama(r, {.type = "gemma2", .gain_offset = 1, .divisor_square = 24}); },
             "gemma2"},
        Case{"gemma3",
             [](Rng& r) {
               return make_llama(r, {.type = "gemma3_text", .qk_norm = true, .gain_offset = 1, .divisor_square = 24});
             },
             "gemma3"},
        Case{"phi3", make_phi3, "phi3"}, Case{"vit", make_vit, "vit"}, Case{"whisper", make_whisper, "whisper"},
        Case{"t5", make_t5, "t5"}, Case{"deepseek", [](Rng& r) { return make_deepseek(r, true); }, "deepseek"},
        Case{"deepseek_lite", [](Rng& r) { return make_deepseek(r, false); }, "deepseek"}),
    [](const testing::TestParamInfo<Case>& one) { return std::string(one.param.name); });

// The comparison above notices what it is there for: each of these takes a model for something that it is not, and
// heads disagree.
struct Mistake {
  const char* name;
  std::function<Made(Rng&)> make;
  Hints hints;
};

TEST(Families, NoticeWhatIsMistaken) {
  const auto family = [](const char* text) {
    Hints hints;
    hints.family_json = text;
    return hints;
  };
  const auto no_norm = [] {
    Hints hints;
    hints.norm = theory::Norm::Kind::kNone;
    return hints;
  };
  const Mistake mistakes[] = {
      {"Gemma without its 1",
       [](Rng& r) { return make_llama(r, {.type = "gemma", .gain_offset = 1}); },
       {.family = "llama"}},
      {"no norm", [](Rng& r) { return make_llama(r); }, no_norm()},
      {"packed in blocks, not by heads", make_gpt_neox,
       family(R"({"name": "x", "prefixes": "gpt_neox.", "qkv": "layers.{layer}.attention.query_key_value",
                  "norm": "layers.{layer}.input_layernorm", "norm_kind": "layer",
                  "heads": 3, "context": 64, "rotary": true, "rotary_share": 0.25})")},
      {"all of a head turns", make_gpt_neox,
       family(R"({"name": "x", "prefixes": "gpt_neox.", "qkv": "layers.{layer}.attention.query_key_value",
                  "order": "heads", "norm": "layers.{layer}.input_layernorm",
                  "norm_kind": "layer", "heads": 3, "context": 64, "rotary": true})")},
      {"interleaved, not halves", [](Rng& r) { return make_llama(r, {.biases = true}); },
       family(R"({"name": "x", "prefixes": "model.", "q": "layers.{layer}.self_attn.q_proj",
                  "k": "layers.{layer}.self_attn.k_proj", "norm": "layers.{layer}.input_layernorm",
                  "norm_kind": "rms", "heads": 4, "kv_heads": 2, "context": 64, "rotary": true,
                  "pairing": "interleaved"})")},
      {"no LayerNorm", make_vit,
       family(R"({"name": "x", "prefixes": "vit.", "q": "encoder.layer.{layer}.attention.attention.query",
                  "k": "encoder.layer.{layer}.attention.attention.key",
                  "norm": "encoder.layer.{layer}.layernorm_after", "norm_kind": "none", "heads": 3,
                  "context": 64})")},
      {"the layer's own norm, not that before it", [](Rng& r) { return make_bert(r); },
       family(R"({"name": "x", "q": "encoder.layer.{layer}.attention.self.query",
                  "k": "encoder.layer.{layer}.attention.self.key",
                  "norm": "encoder.layer.{layer}.output.LayerNorm", "norm_kind": "layer", "heads": 3,
                  "context": 64})")},
  };
  for (const Mistake& mistake : mistakes) {
    Rng rng(20260101);
    const Made made = mistake.make(rng);
    const test::TemporaryDirectory folder;
    write(made, folder.path());
    const Audit found = audit_of(folder.path(), mistake.hints);
    ASSERT_EQ(found.layers.size(), made.layers.size()) << mistake.name;
    double worst = 0;
    for (std::size_t layer = 0; layer < made.layers.size(); ++layer) {
      const std::vector<Batches> all = measured(made.layers[layer], 64, 7 + layer);
      for (std::size_t h = 0; h < all.size(); ++h)
        worst = std::max(worst, std::fabs(found.layers[layer].heads[h].variance_in_context - all[h].mean()) /
                                    all[h].standard_error());
    }
    EXPECT_GT(worst, 6) << mistake.name;
  }
}

// GGUF ---------------------------------------------------------------------------------------------------------------

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

using Names = std::vector<std::pair<std::string, std::string>>;

Made renamed(const Made& made, const Names& names, const Json& config) {
  Made out;
  out.config = config;
  for (auto [name, m] : made.tensors) {
    for (const auto& [from, to] : names) replace_all(name, from, to);
    out.tensors.emplace_back(std::move(name), std::move(m));
  }
  return out;
}

// As converters do for LLaMA: what is i and i + d/2 in a head becomes 2i and 2i + 1.
Matrix interleaved(const Matrix& m, std::int64_t dim) {
  Matrix out = m;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::int64_t head = r / dim, half = r % dim / (dim / 2), i = r % dim % (dim / 2);
    for (std::int64_t c = 0; c < m.width; ++c) out.at(head * dim + 2 * i + half, c) = m.at(r, c);
  }
  return out;
}

// Both read the same f32 numbers and add them up in another order at most, but for config values that GGUF rounds to
// f32.
void expect_same(const Audit& a, const Audit& b, const std::string& name) {
  ASSERT_EQ(a.layers.size(), b.layers.size()) << name;
  for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
    ASSERT_EQ(a.layers[layer].heads.size(), b.layers[layer].heads.size()) << name;
    for (std::size_t h = 0; h < a.layers[layer].heads.size(); ++h) {
      const Head &x = a.layers[layer].heads[h], &y = b.layers[layer].heads[h];
      EXPECT_NEAR(x.variance, y.variance, 1e-5 * x.variance) << name << " " << layer << "." << h;
      EXPECT_NEAR(x.variance_in_context, y.variance_in_context, 1e-5 * x.variance_in_context)
          << name << " " << layer << "." << h;
      EXPECT_NEAR(x.sigma, y.sigma, 1e-5 * x.sigma) << name << " " << layer << "." << h;
    }
  }
}

const Names kLlamaNames = {{"model.layers.", "blk."},           {"self_attn.q_proj", "attn_q"},
                           {"self_attn.k_proj", "attn_k"},      {"self_attn.q_norm", "attn_q_norm"},
                           {"self_attn.k_norm", "attn_k_norm"}, {"input_layernorm", "attn_norm"},
                           {"self_attn.qkv_proj", "attn_qkv"}};

Json gguf_config(const Json& more) {
  Json config = {{"block_count", 2}, {"context_length", 64}};
  config.update(more);
  return config;
}

const Json kGrouped = {{"attention.head_count", 4},
                       {"attention.head_count_kv", 2},
                       {"attention.key_length", 8},
                       {"rope.freq_base", 10000.0},
                       {"rope.dimension_count", 8}};

TEST(Gguf, SaysTheSameOfTheSameModel) {
  struct Pair {
    const char* architecture;
    std::function<Made(Rng&)> make;
    std::function<Made(const Made&)> convert;
  };
  const auto named = [](const Names& names, const Json& config) {
    return [=](const Made& made) { return renamed(made, names, gguf_config(config)); };
  };
  const auto with = [](Json base, const Json& more) {
    base.update(more);
    return base;
  };
  const Pair pairs[] = {
      {"llama", [](Rng& r) { return make_llama(r); },
       [&](const Made& made) {
         Made out = renamed(made, kLlamaNames, gguf_config(kGrouped));
         for (auto& [name, m] : out.tensors)
           if (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight")) m = interleaved(m, 8);
         return out;
       }},
      {"qwen2", [](Rng& r) { return make_llama(r, {.type = "qwen2", .biases = true}); }, named(kLlamaNames, kGrouped)},
      {"qwen3", [](Rng& r) { return make_llama(r, {.type = "qwen3", .qk_norm = true}); }, named(kLlamaNames, kGrouped)},
      {"gemma", [](Rng& r) { return make_llama(r, {.type = "gemma", .gain_offset = 1}); },
       [&](const Made& made) {  // converters fold the 1
         Made out = renamed(made, kLlamaNames, gguf_config(kGrouped));
         for (auto& [name, m] : out.tensors)
           if (name.ends_with("attn_norm.weight"))
             for (double& g : m.values) g += 1;
         return out;
       }},
      {"phi3", make_phi3, named(kLlamaNames, with(kGrouped, {{"rope.dimension_count", 6}}))},
      {"gpt2",
       [](Rng& r) {
         Made made = make_gpt2(r);
         made.config.erase("scale_attn_by_inverse_layer_idx");
         return made;
       },
       [&](const Made& made) {
         Made out = renamed(made, {{"transformer.h.", "blk."}, {"attn.c_attn", "attn_qkv"}, {"ln_1", "attn_norm"}},
                            gguf_config({{"attention.head_count", 3}}));
         for (auto& [name, m] : out.tensors)
           if (name.ends_with("attn_qkv.weight")) m = transposed(m);
         return out;
       }},
      {"bert", [](Rng& r) { return make_bert(r); },
       named({{"embeddings.LayerNorm", "token_embd_norm"},
              {"encoder.layer.", "blk."},
              {"attention.self.query", "attn_q"},
              {"attention.self.key", "attn_k"},
              {"output.LayerNorm", "layer_output_norm"}},
             {{"attention.head_count", 3}})},
      {"t5", make_t5,
       named({{"encoder.final_layer_norm", "enc.output_norm"},
              {"encoder.block.", "enc.blk."},
              {"decoder.block.", "dec.blk."},
              {"layer.0.SelfAttention.q", "attn_q"},
              {"layer.0.SelfAttention.k", "attn_k"},
              {"layer.0.layer_norm", "attn_norm"},
              {"layer.1.EncDecAttention.q", "cross_attn_q"},
              {"layer.1.EncDecAttention.k", "cross_attn_k"},
              {"layer.1.layer_norm", "cross_attn_norm"}},
             {{"attention.head_count", 3}, {"attention.key_length", 8}})},
      {"deepseek2", [](Rng& r) { return make_deepseek(r, true); },
       named({{"model.layers.", "blk."},
              {"input_layernorm", "attn_norm"},
              {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
              {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
              {"self_attn.kv_b_proj", "attn_kv_b"},
              {"self_attn.q_b_proj", "attn_q_b"},
              {"self_attn.q_a_layernorm", "attn_q_a_norm"},
              {"self_attn.q_a_proj", "attn_q_a"}},
             {{"attention.head_count", 3}, {"attention.value_length", 5}, {"rope.dimension_count", 4}})},
  };
  for (const Pair& pair : pairs) {
    Rng rng(11);
    const Made made = pair.make(rng);
    const test::TemporaryDirectory folder;
    write(made, folder.path());
    write_gguf(pair.convert(made), pair.architecture, folder / "model.gguf");
    const Audit theirs = audit_of(folder / "model.gguf");
    EXPECT_TRUE(theirs.model.notes.empty()) << pair.architecture << ": " << theirs.model.notes.front();
    expect_same(audit_of(folder / "model.safetensors"), theirs, pair.architecture);
  }
}

// What rootdk's own training writes: the configuration is in the file's metadata, as text, and the scale is a rule.
TEST(Trained, NeedsNoConfig) {
  Rng rng(5);
  Made made = make_llama(rng);
  const std::map<std::string, std::string> metadata = {
      {"rootdk.train", "1"},      {"model_type", "llama"},      {"hidden_size", "24"},
      {"num_hidden_layers", "2"}, {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
      {"head_dim", "8"},          {"rope_theta", "10000"},      {"scale", "dk(8)"}};
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  const Audit with_config = audit_of(folder.path());
  made.config.clear();
  const test::TemporaryDirectory other;
  write(made, other.path(), metadata);
  const Audit trained = audit_of(other / "model.safetensors");
  EXPECT_EQ(trained.model.scale_rule, "dk(8)");
  EXPECT_DOUBLE_EQ(trained.layers[0].attention.scale, 1);
  EXPECT_DOUBLE_EQ(trained.layers[0].heads[0].variance, with_config.layers[0].heads[0].variance);
  EXPECT_DOUBLE_EQ(trained.layers[1].heads[3].sigma, trained.layers[1].heads[3].unit_divisor);
}

}  // namespace
}  // namespace rootdk::audit
