// Running a checkpoint. That every family computes what transformers computes is tests/python/test_audit_run.py's
// business; here it is what needs no other framework.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "audit/models.h"
#include "rootdk/attention.h"
#include "rootdk/audit.h"
#include "rootdk/nn/transformer.h"
#include "support/files.h"
#include "support/message.h"

namespace rootdk::audit {
namespace {

constexpr std::int64_t kVocabulary = 19, kRunLayers = 3, kRunHeads = 3, kRunLength = 20, kSequences = 2, kRunWidth = 24;

// What `rootdk train` writes, of a model that was never trained.
struct Trained {
  nn::Transformer model;
  test::TemporaryDirectory folder;

  explicit Trained(const std::string& scale)
      : model({.vocabulary = kVocabulary,
               .width = kRunWidth,
               .layers = kRunLayers,
               .heads = kRunHeads,
               .dim_qk = 8,
               .dim_v = 10,
               .mlp_hidden = 40,
               .rotary_base = 100,
               .norm_epsilon = 1e-3}) {
    nn::initialise(model, 7);
    Rng rng(3);
    std::vector<checkpoint::NewTensor> tensors;
    for (const auto& p : model.parameters()) {
      if (!p.decays())
        for (float& gain : p.values) gain = static_cast<float>(1 + 0.3 * rng.normal());
      tensors.push_back(checkpoint::new_tensor(p.name, p.shape, std::span<const float>(p.values)));
    }
    checkpoint::write_safetensors(folder.path() / "model.safetensors", tensors,
                                  {{"rootdk.train", "1"},
                                   {"model_type", "llama"},
                                   {"num_attention_heads", "3"},
                                   {"num_key_value_heads", "3"},
                                   {"head_dim", "8"},
                                   {"rope_theta", "100"},
                                   {"rms_norm_eps", "0.001"},
                                   {"scale", scale}});
  }
  checkpoint::Checkpoint file() const { return checkpoint::Checkpoint::open(folder.path() / "model.safetensors"); }
};

RunInput some_tokens() {
  RunInput input{kSequences, kRunLength, {}, {}, 0};
  Rng rng(11);
  for (std::int64_t i = 0; i < kSequences * kRunLength; ++i)
    input.ids.push_back(
        std::min<std::int64_t>(kVocabulary - 1, static_cast<std::int64_t>(rng.uniform() * kVocabulary)));
  return input;
}

// A scale that grows with the number of keys is one number for the prediction, but not for the run.
TEST(AuditRun, IsWhatTheTrainedModelComputes) {
  for (const char* scale : {"sqrt_dk", "dk(4)", "sqrt_dk*ssmax(0.9, 0.5)"}) {
    SCOPED_TRACE(scale);
    const Trained trained(scale);
    const auto file = trained.file();
    const RunInput input = some_tokens();
    const auto found = run(file, recognise(file), input);

    Problem problem;
    problem.scale = Scale::parse(scale);
    problem.stats = StatsLevel::kFull;
    nn::Transformer::Saved saved;
    const std::vector<std::int32_t> tokens(input.ids.begin(), input.ids.end());
    trained.model.forward(problem, kRunLength, tokens, saved);

    ASSERT_EQ(found.last_hidden_state.size(), saved.normed.size());
    // Both round: five sums of each layer, and a rotary angle by up to the position.
    float largest = 0;
    for (const float x : saved.normed) largest = std::max(largest, std::fabs(x));
    const float tolerance = 0x1p-24f * 2 * (kRunLength + 5 * kRunLayers) * largest;
    for (std::size_t i = 0; i < saved.normed.size(); ++i)
      ASSERT_NEAR(found.last_hidden_state[i], saved.normed[i], tolerance) << i;
    ASSERT_EQ(found.layers.size(), static_cast<std::size_t>(kRunLayers));
    for (std::size_t layer = 0; layer < found.layers.size(); ++layer) {
      const Stats wanted = over_batch(saved.blocks[layer].stats);
      for (std::int64_t h = 0; h < kRunHeads; ++h) {
        const HeadStats &ours = found.layers[layer][static_cast<std::size_t>(h)], &theirs = wanted.at(0, h);
        EXPECT_EQ(ours.rows_counted, kSequences * (kRunLength - 1));
        EXPECT_NEAR(ours.softmax.entropy, theirs.softmax.entropy, 1e-5);
        EXPECT_NEAR(ours.raw.within_row_variance(), theirs.raw.within_row_variance(),
                    1e-4 * theirs.raw.within_row_variance());
      }
    }
  }
}

TEST(AuditRun, StopsAndSaysHowFarItCame) {
  const Trained trained("sqrt_dk");
  const auto file = trained.file();
  const Model model = recognise(file);
  std::vector<double> reported;
  std::vector<std::string> parts;
  const auto note = [&](double done, std::string_view what) { reported.push_back(done), parts.emplace_back(what); };
  const auto whole = run(file, model, some_tokens(), {.progress = note});
  EXPECT_TRUE(whole.complete);
  ASSERT_GE(reported.size(), static_cast<std::size_t>(kRunLayers));
  EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
  EXPECT_EQ(reported.front(), 0);
  EXPECT_EQ(reported.back(), 1);
  EXPECT_EQ(parts.front(), "running, layer 1 of " + std::to_string(kRunLayers));
  EXPECT_EQ(parts[parts.size() - 2], fmt::format("running, layer {} of {}", kRunLayers, kRunLayers));
  EXPECT_EQ(parts.back(), "");

  double last = 0;
  const RunOptions until_the_second = {[&](double done, std::string_view) { last = done; },
                                       [&] { return last >= 1.0 / kRunLayers; }};
  const auto cut = run(file, model, some_tokens(), until_the_second);
  EXPECT_FALSE(cut.complete);
  EXPECT_EQ(cut.layers.size(), 1u);
  EXPECT_TRUE(cut.last_hidden_state.empty());

  // Layers that were not reached keep what their weights say.
  Options options;
  options.run = some_tokens();
  options.progress = [&](double done, std::string_view) { last = done; };
  options.stop = [&] { return last > 0.8; };  // weights take 0.61 of the time, a layer of the run 0.13
  last = 0;
  const Audit found = audit(file, model, options);
  EXPECT_FALSE(found.complete);
  ASSERT_EQ(found.layers.size(), static_cast<std::size_t>(kRunLayers));
  EXPECT_TRUE(found.layers.front().heads.front().measured.has_value());
  EXPECT_FALSE(found.layers.back().heads.front().measured.has_value());
  EXPECT_NE(found.layers.back().heads.front().judgement.verdict, theory::Verdict::kUnknown);
}

// Layers by number; with a run, the share of the weights is the less the more tokens there are.
TEST(AuditRun, AnAuditSaysWhatItIsAt) {
  const Trained trained("sqrt_dk");
  const auto file = trained.file();
  const Model model = recognise(file);
  std::vector<std::pair<double, std::string>> heard;
  Options options;
  options.progress = [&](double done, std::string_view what) { heard.emplace_back(done, what); };
  audit(file, model, options);
  ASSERT_GE(heard.size(), 3u);
  EXPECT_EQ(heard[0], std::pair(0.0, std::string("embeddings")));
  EXPECT_EQ(heard[1].second, fmt::format("layers 1 to {} of {}", kRunLayers, kRunLayers));
  EXPECT_EQ(heard.back(), std::pair(1.0, std::string()));
  const auto share_of_weights = [&](std::int64_t sequences) {
    heard.clear();
    options.run = random_tokens(model, sequences, 8);
    audit(file, model, options);
    EXPECT_TRUE(
        std::is_sorted(heard.begin(), heard.end(), [](const auto& a, const auto& b) { return a.first < b.first; }));
    EXPECT_EQ(heard.back().first, 1);
    const auto running =
        std::find_if(heard.begin(), heard.end(), [](const auto& one) { return one.second.starts_with("running"); });
    return running == heard.end() ? 0.0 : running->first;
  };
  EXPECT_NEAR(share_of_weights(8), 0.5, 1e-12);
  EXPECT_LT(share_of_weights(64), 0.12);
}

TEST(AuditRun, JudgesWhatWasMeasured) {
  const Trained trained("sqrt_dk");
  const auto file = trained.file();
  Options options;
  options.run = some_tokens();
  const Audit found = audit(file, recognise(file), options);
  ASSERT_TRUE(found.ran.has_value());
  for (std::size_t layer = 0; layer < found.layers.size(); ++layer)
    for (const Head& head : found.layers[layer].heads) {
      const HeadStats& stats = found.ran->layers[layer][static_cast<std::size_t>(head.head)];
      EXPECT_EQ(head.ground(), theory::Ground::kMeasured);
      EXPECT_EQ(head.judgement.ground, theory::Ground::kMeasured);
      EXPECT_EQ(head.judgement.entropy, stats.softmax.entropy);
      EXPECT_EQ(head.judgement.keys, std::exp(stats.softmax.log_keys));
      EXPECT_EQ(head.surest_sigma(), std::sqrt(stats.raw.within_row_variance()));
      const theory::Judgement slow = theory::judge(stats, {DType::kF32, 8, 1 / std::sqrt(8.0), head.sigma});
      EXPECT_EQ(head.judgement.verdict, slow.verdict);
      EXPECT_EQ(head.contexts.size(), found.contexts.size());
      EXPECT_EQ(head.contexts.front().sigma_over_critical,
                head.measured->sigma / std::sqrt(2 * std::log(head.contexts.front().keys)));
    }
}

TEST(AuditRun, RefusesWhatDoesNotFit) {
  const Trained trained("sqrt_dk");
  const auto file = trained.file();
  const Model model = recognise(file);
  const auto said = [&](const auto& change) {
    RunInput input = some_tokens();
    change(input);
    return test::message_of([&] { run(file, model, input); });
  };
  EXPECT_EQ(said([](RunInput& i) { i.ids.pop_back(); }), "tokens: 39 ids, but 40 are wanted");
  EXPECT_EQ(said([](RunInput& i) { i.ids[3] = kVocabulary; }), "tokens: the id 19, but the vocabulary has 0 to 18");
  EXPECT_EQ(said([](RunInput& i) { i.sequences = 0; }), "tokens: no sequence");
  EXPECT_EQ(said([](RunInput& i) { i.sequences = std::int64_t{1} << 62; }),
            "tokens: 4611686018427387904 sequences of 20, but at most 1048576 in all are taken");
  EXPECT_EQ(said([](RunInput& i) { i.embeddings.resize(960), i.width = 24; }),
            "embeddings: ids came with them, but one of both is wanted");
  EXPECT_EQ(said([](RunInput& i) { i.ids.clear(), i.embeddings.resize(959), i.width = 24; }),
            "embeddings: 959 numbers, but 40 rows of 24 are wanted");
  Options both;
  both.run = some_tokens();
  both.inputs = "somewhere.npy";
  EXPECT_EQ(test::message_of([&] { audit(file, model, both); }),
            "inputs: came with a run, which measures everything itself");
  Model mute = model;
  mute.name = "mine";
  mute.network.reset();
  mute.why_not_run = "it is mute";
  EXPECT_EQ(test::message_of([&] { run(file, mute, some_tokens()); }), "tokens: \"mine\" cannot be run: it is mute");
}

// Qwen 2 without layer_types, as its files were at first.
TEST(AuditRun, WindowsBeginAtALayer) {
  Rng rng(1);
  const test::TemporaryDirectory folder;
  Made made = make_llama(rng, {.type = "qwen2"});
  made.config["sliding_window"] = 5;
  made.config["use_sliding_window"] = true;
  made.config["max_window_layers"] = 1;
  write(made, folder.path());
  const Model model = recognise(checkpoint::Checkpoint::open(folder.path()));
  EXPECT_FALSE(model.layers[0].window.has_value());
  EXPECT_EQ(model.layers[1].window, 5);
}

}  // namespace
}  // namespace rootdk::audit
