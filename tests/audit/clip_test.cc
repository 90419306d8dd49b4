// QK-clip on a file: the copy's scores are smaller by the factor that was asked for, nothing else has changed, and the
// original is what it was. And activations: what they measure, and that maxima come from them.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "audit/gguf.h"
#include "audit/models.h"
#include "rootdk/audit.h"
#include "rootdk/checkpoint/npy.h"
#include "support/message.h"

namespace rootdk::audit {
namespace {

using test::message_of;

struct Opened {
  checkpoint::Checkpoint file;
  Model model;

  explicit Opened(const std::filesystem::path& path, const Hints& hints = {})
      : file(checkpoint::Checkpoint::open(path)), model(recognise(file, hints)) {}
};

struct Case {
  const char* name;
  std::function<Made(Rng&)> make;
};

const Case kCases[] = {
    {"bert", [](Rng& r) { return make_bert(r); }},
    {"gpt2", make_gpt2},
    {"gpt_neox", make_gpt_neox},
    {"qwen2", [](Rng& r) { return make_llama(r, {.type = "qwen2", .biases = true}); }},
    {"phi3", make_phi3},
    {"deepseek", [](Rng& r) { return make_deepseek(r, true); }},
};

// Weights and biases of q and k scale the whole score, so its mean and variance follow γ exactly, but for rounding to
// f32.
TEST(Clip, ShrinksTheScoresOfThoseHeadsByGamma) {
  for (const Case& one : kCases) {
    Rng rng(3);
    const Made made = one.make(rng);
    const test::TemporaryDirectory folder;
    write(made, folder.path());
    const std::string original = test::read_file(folder / "model.safetensors");
    const Opened before(folder.path());
    const std::string kind = before.model.layers[0].kind;
    const Observed observed[] = {{kind, 0, 1, 250}, {kind, 1, 0, 120}, {kind, 1, 2, 99}};
    const std::filesystem::path out = folder / "fixed.safetensors";
    const Clipped clipped = clip_checkpoint(before.file, before.model, observed, {}, out);
    ASSERT_EQ(clipped.heads.size(), 2u) << one.name;
    EXPECT_DOUBLE_EQ(clipped.heads[0].gamma, 0.4);
    EXPECT_EQ(test::read_file(folder / "model.safetensors"), original);

    const Opened after(out);
    const Audit a = audit(before.file, before.model), b = audit(after.file, after.model);
    for (std::size_t layer = 0; layer < a.layers.size(); ++layer)
      for (std::size_t h = 0; h < a.layers[layer].heads.size(); ++h) {
        const double gamma = layer == 0 && h == 1 ? 100.0 / 250 : layer == 1 && h == 0 ? 100.0 / 120 : 1;
        const Head &x = a.layers[layer].heads[h], &y = b.layers[layer].heads[h];
        EXPECT_NEAR(y.sigma, gamma * x.sigma, 1e-6 * x.sigma) << one.name << " " << layer << "." << h;
        EXPECT_NEAR(y.mean, gamma * x.mean, 1e-6 * x.unit_divisor) << one.name << " " << layer << "." << h;
        EXPECT_NEAR(y.bound, gamma * x.bound, 1e-6 * x.bound) << one.name << " " << layer << "." << h;
      }
    // Tensors that are not named are the same bytes.
    const std::set<std::string> changed(clipped.tensors.begin(), clipped.tensors.end());
    EXPECT_FALSE(changed.empty());
    for (const checkpoint::TensorInfo& tensor : before.file.tensors()) {
      const auto x = before.file.bytes(tensor.name), y = after.file.bytes(tensor.name);
      EXPECT_EQ(std::equal(x.begin(), x.end(), y.begin(), y.end()), !changed.contains(tensor.name)) << tensor.name;
    }
  }
}

TEST(Clip, ShrinksTheGainOfQkNorm) {
  for (const double offset : {0.0, 1.0}) {
    Rng rng(4);
    const Made made = make_llama(
        rng,
        {.type = offset == 0 ? "qwen3" : "gemma3_text", .qk_norm = true, .gain_offset = offset, .divisor_square = 8});
    const test::TemporaryDirectory folder;
    write(made, folder.path());
    const Opened before(folder.path());
    const Observed observed[] = {{"self", 1, 0, 200}, {"self", 1, 3, 125}};
    const Clipped clipped = clip_checkpoint(before.file, before.model, observed, {}, folder / "fixed.safetensors");
    ASSERT_EQ(clipped.heads.size(), 2u);
    EXPECT_EQ(clipped.tensors, std::vector<std::string>{"model.layers.1.self_attn.q_norm.weight"});
    EXPECT_EQ(clipped.heads[1].on_queries, 0.5);  // one gain for all heads: the smallest γ decides
    const Opened after(folder / "fixed.safetensors");
    const Audit a = audit(before.file, before.model), b = audit(after.file, after.model);
    for (std::size_t h = 0; h < 4; ++h) {
      EXPECT_EQ(b.layers[0].heads[h].sigma, a.layers[0].heads[h].sigma);
      EXPECT_NEAR(b.layers[1].heads[h].sigma, 0.5 * a.layers[1].heads[h].sigma, 1e-6 * a.layers[1].heads[h].sigma);
    }
  }
}

TEST(Clip, ADryRunWritesNothing) {
  Rng rng(5);
  const test::TemporaryDirectory folder;
  write(make_bert(rng), folder.path());
  const Opened before(folder.path());
  const Observed observed[] = {{"self", 0, 0, 1000}};
  const Clipped clipped =
      clip_checkpoint(before.file, before.model, observed, {100, true}, folder / "fixed.safetensors");
  EXPECT_EQ(clipped.heads.size(), 1u);
  EXPECT_EQ(clipped.tensors.size(), 4u);  // two weights, two biases
  EXPECT_FALSE(std::filesystem::exists(folder / "fixed.safetensors"));
}

TEST(Clip, RefusesWhatDoesNotFit) {
  Rng rng(6);
  const Made made = make_llama(rng);
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  const Opened opened(folder.path());
  const auto refusal = [&](const Observed& o, const Clip& clip, const std::filesystem::path& out) {
    return message_of([&] { static_cast<void>(clip_checkpoint(opened.file, opened.model, {&o, 1}, clip, out)); });
  };
  const std::filesystem::path out = folder / "x.safetensors";
  EXPECT_EQ(refusal({"self", 2, 0, 1}, {}, out), "max scores: self layer 2, which the model does not have");
  EXPECT_EQ(refusal({"self", 0, 4, 1}, {}, out), "max scores: head 4 of layer 0, which has 4");
  EXPECT_EQ(refusal({"self", 0, 0, NAN}, {}, out),
            "max scores: head 0 of layer 0 has nan, but a finite number is wanted");
  EXPECT_EQ(refusal({"self", 0, 0, 1}, {0, false}, out), "QK-clip: a threshold of 0, but a number above 0 is wanted");
  EXPECT_TRUE(refusal({"self", 0, 0, 1000}, {}, folder / "model.safetensors")
                  .ends_with("is the original, which is never changed"));
  EXPECT_FALSE(std::filesystem::exists(out));
  const Observed twice[] = {{"self", 0, 0, 1}, {"self", 0, 0, 2}};
  EXPECT_EQ(message_of([&] { static_cast<void>(clip_checkpoint(opened.file, opened.model, twice, {}, out)); }),
            "max scores: head 0 of layer 0 comes twice");

  const auto parsed = [&](const char* text) {
    return message_of([&] { static_cast<void>(observed_from_json(text, opened.model)); });
  };
  EXPECT_EQ(parsed("{}"),
            "max scores: an object, but an array for each layer, or an object with \"layers\", is wanted");
  EXPECT_EQ(parsed("[[1, 2, 3]]"), "max scores: layer 0 has 3 elements, but 4 numbers, one for each head, are wanted");
  EXPECT_EQ(parsed("[[1, 2, 3, \"x\"]]"), "max scores: head 3 of layer 0 is \"x\", but a number or null is wanted");
  EXPECT_EQ(parsed("[[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]"),
            "max scores: self layer 2, which the model does not have");
  const std::vector<Observed> read =
      observed_from_json(R"({"layers": [{"layer": 1, "max_raw": [1, null, 3, 150]}]})", opened.model);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[2].layer, 1);
  EXPECT_EQ(read[2].head, 3);
  EXPECT_EQ(read[2].largest_raw, 150);

  write_gguf({.tensors = {{"blk.0.attn_q.weight", made.tensors[0].second}}, .config = {}, .layers = {}}, "llama",
             folder / "m.gguf");
  EXPECT_TRUE(message_of([&] {
                static_cast<void>(
                    clip_checkpoint(checkpoint::Checkpoint::open(folder / "m.gguf"), opened.model, {}, {}, out));
              }).ends_with("only safetensors can be corrected"));
}

// Activations --------------------------------------------------------------------------------------------------------

// Tokens on a few directions, not isotropic at all: scores computed one by one, in double.
struct Simple {
  double variance = 0, largest = -HUGE_VAL;
};

Simple one_by_one(const Projections& p, const std::vector<Vector>& tokens, std::int64_t head, bool causal) {
  std::vector<Vector> q, k;
  const std::int64_t share = p.heads / p.kv_heads;
  for (const Vector& x : tokens) {
    q.push_back(rows_of(times(p.q, x, p.q_bias), head * p.dim, p.dim));
    k.push_back(rows_of(times(p.k, x, p.k_bias), head / share * p.dim, p.dim));
  }
  Simple out;
  const auto n = static_cast<double>(tokens.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    double sum = 0, squares = 0;
    for (std::size_t j = 0; j < k.size(); ++j) {
      double score = 0;
      for (std::size_t c = 0; c < q[i].size(); ++c) score += q[i][c] * k[j][c];
      sum += score;
      squares += score * score;
      if (!causal || j <= i) out.largest = std::max(out.largest, score / std::sqrt(static_cast<double>(p.dim)));
    }
    out.variance += (squares / n - sum / n * (sum / n)) / n;
  }
  return out;
}

TEST(Inputs, MeasureInPlaceOfTheAssumption) {
  Rng rng(8);
  Projections p = random_projections(rng, {.heads = 3, .kv_heads = 3}, true);
  p.norm = p.keys_norm = random_norm(rng, Kind::kLayer, p.width, true);
  Made made;
  made.add("encoder.layer.0.attention.self.query.weight", p.q);
  made.add("encoder.layer.0.attention.self.query.bias", p.q_bias);
  made.add("encoder.layer.0.attention.self.key.weight", p.k);
  made.add("encoder.layer.0.attention.self.key.bias", p.k_bias);
  made.add_norm("embeddings.LayerNorm", p.norm);
  made.config = {{"model_type", "bert"}, {"num_attention_heads", 3}};
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  constexpr std::int64_t kTokens = 50;
  std::vector<Vector> tokens;
  std::vector<float> flat;
  const Matrix directions = random_matrix(rng, p.width, 3);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    Vector x = times(directions, normal_vector(rng, 3), random_vector(rng, p.width, 0.5, 0));
    for (double& v : x) v = rounded(3 * v);
    flat.insert(flat.end(), x.begin(), x.end());
    tokens.push_back(std::move(x));
  }
  const Opened opened(folder.path());
  const auto check = [&](const std::filesystem::path& inputs) {
    Options options;
    options.inputs = inputs;
    options.clip_threshold = 2;
    const Audit found = audit(opened.file, opened.model, options), plain = audit(opened.file, opened.model);
    for (const Head& head : found.layers[0].heads) {
      const Simple exact = one_by_one(p, tokens, head.head, false);
      EXPECT_TRUE(head.measured);
      if (!head.measured) break;
      // q and k are f32; products of those round by 2⁻²⁴, and cancel by no more than the mean over the spread.
      EXPECT_NEAR(head.measured->variance, exact.variance, 1e-4 * exact.variance);
      EXPECT_NEAR(head.measured->largest_raw, exact.largest, 1e-4 * std::fabs(exact.largest));
      EXPECT_NEAR(head.measured->sigma_over_isotropic, head.measured->sigma / head.sigma, 1e-12);
      EXPECT_DOUBLE_EQ(head.measured->clip_factor, std::min(1.0, 2 / head.measured->largest_raw));
      EXPECT_EQ(head.variance, plain.layers[0].heads[static_cast<std::size_t>(head.head)].variance);
      EXPECT_NE(head.contexts[0].entropy,
                plain.layers[0].heads[static_cast<std::size_t>(head.head)].contexts[0].entropy);
    }
    return found;
  };
  const std::int64_t shape[] = {kTokens, p.width}, layers[] = {1, kTokens, p.width};
  checkpoint::write_npy(folder / "acts.npy", shape, std::span<const float>(flat));
  const Audit found = check(folder / "acts.npy");
  checkpoint::write_npy(folder / "layers.npy", layers, std::span<const float>(flat));
  check(folder / "layers.npy");
  std::filesystem::create_directory(folder / "acts");
  checkpoint::write_npy(folder / "acts/0.npy", shape, std::span<const float>(flat));
  check(folder / "acts");

  // Clipped by what was measured, the same tokens give τ at most.
  const std::vector<Observed> observed = observed_in(found);
  EXPECT_EQ(observed.size(), 3u);
  const Clipped clipped =
      clip_checkpoint(opened.file, opened.model, observed, {2, false}, folder / "fixed.safetensors");
  EXPECT_FALSE(clipped.heads.empty());
  const auto fixed = checkpoint::Checkpoint::open(folder / "fixed.safetensors");
  Options options;
  options.inputs = folder / "acts.npy";
  const Audit after = audit(fixed, recognise(fixed), options);
  for (const Head& head : after.layers[0].heads) EXPECT_LE(head.measured->largest_raw, 2 * (1 + 1e-5));
  EXPECT_EQ(message_of([&] { static_cast<void>(observed_in(audit(opened.file, opened.model))); }),
            "max scores: none were observed; the audit had no inputs");

  const auto refusal = [&](const std::filesystem::path& inputs) {
    Options bad;
    bad.inputs = inputs;
    return message_of([&] { static_cast<void>(audit(opened.file, opened.model, bad)); });
  };
  const std::int64_t narrow[] = {kTokens * 2, p.width / 2}, many[] = {2, kTokens / 2, p.width};
  checkpoint::write_npy(folder / "narrow.npy", narrow, std::span<const float>(flat));
  checkpoint::write_npy(folder / "many.npy", many, std::span<const float>(flat));
  EXPECT_TRUE(refusal(folder / "narrow.npy").ends_with("has 12 numbers a token, but the projections take 24"));
  EXPECT_TRUE(refusal(folder / "many.npy").ends_with("is [2, 25, 24], but the model has 1 layers"));
  EXPECT_NE(refusal(folder / "nowhere.npy").find("nowhere.npy"), std::string::npos);
}

}  // namespace
}  // namespace rootdk::audit
