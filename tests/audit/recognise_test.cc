// Configurations that are wrong, missing or hostile; models nobody knows; what may be told by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "audit/models.h"
#include "rootdk/audit.h"
#include "support/files.h"
#include "support/message.h"

namespace rootdk::audit {
namespace {

using test::message_of;

struct Folder {
  test::TemporaryDirectory directory;

  explicit Folder(const Made& made) { write(made, directory.path()); }
  checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(directory.path()); }
  Model model(const Hints& hints = {}) const { return recognise(open(), hints); }
  std::string refusal(const Hints& hints = {}) const {
    return message_of([&] { static_cast<void>(model(hints)); });
  }
};

Made llama(const Json& more = {}) {
  Rng rng(1);
  Made made = make_llama(rng);
  if (!more.empty()) made.config.update(more);
  return made;
}

std::string refusal_of(const Json& config) { return Folder(llama(config)).refusal(); }

void drop(Made& made, const std::string& name) {
  std::erase_if(made.tensors, [&](const auto& tensor) { return tensor.first == name; });
}

TEST(Hostile, ConfigurationsAreRefusedByName) {
  EXPECT_EQ(refusal_of({{"num_attention_heads", 0}}),
            "config.json: num_attention_heads is 0, but a whole number from 1 to 2^31 is wanted");
  EXPECT_EQ(refusal_of({{"num_attention_heads", -4}}),
            "config.json: num_attention_heads is -4, but a whole number from 1 to 2^31 is wanted");
  EXPECT_EQ(refusal_of({{"num_attention_heads", 4.5}}),
            "config.json: num_attention_heads is 4.5, but a whole number from 1 to 2^31 is wanted");
  EXPECT_EQ(refusal_of({{"num_attention_heads", "four"}}),
            "config.json: num_attention_heads is \"four\", but a whole number from 1 to 2^31 is wanted");
  EXPECT_EQ(refusal_of({{"num_attention_heads", 18446744073709551615u}}),
            "config.json: num_attention_heads is 18446744073709551615, but a whole number from 1 to 2^31 is wanted");
  EXPECT_EQ(refusal_of({{"num_attention_heads", 2000000000}}), "heads: 2000000000, but at most 1048576 are taken");
  EXPECT_EQ(refusal_of({{"num_attention_heads", 5}}),
            "\"model.layers.0.self_attn.q_proj.weight\": 32 rows, but 5 heads of 8 would have 40");
  EXPECT_EQ(refusal_of({{"num_attention_heads", 5}, {"head_dim", nullptr}}),
            "\"model.layers.0.self_attn.q_proj.weight\": 32 rows, which 5 heads do not divide");
  EXPECT_EQ(refusal_of({{"num_key_value_heads", 3}}), "kv_heads: 3, which does not divide 4 heads");
  EXPECT_EQ(refusal_of({{"num_key_value_heads", 4}}),
            "\"model.layers.0.self_attn.k_proj.weight\": 16 rows, but 4 key heads of 8 would have 32");
  EXPECT_EQ(refusal_of({{"num_hidden_layers", 3}}), "\"model.layers.2.self_attn.k_proj.weight\": the checkpoint has no "
                                                    "such tensor, though config.json says there are 3 layers");
  EXPECT_EQ(refusal_of({{"rope_theta", -1}}), "rotary base: -1, but a number above 0 is wanted");
  EXPECT_EQ(refusal_of({{"partial_rotary_factor", 2}}),
            "config.json: a rotary share of 2, but a number above 0 and up to 1 is wanted");
  EXPECT_EQ(refusal_of({{"max_position_embeddings", 1}}), "context: 1, but a number from 2 to 2^40 is wanted");
  EXPECT_EQ(refusal_of({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}}}),
            "config.json: rope_scaling.factor is 0, but a number above 0 is wanted");
  EXPECT_EQ(refusal_of({{"rope_scaling", {{"rope_type", "linear"}}}}), "config.json: rope_scaling has no factor");
}

TEST(Hostile, JsonIsRefused) {
  const Folder folder(llama());
  const auto refusal = [&](const std::string& text) {
    test::write_file(folder.directory / "config.json", text);
    return folder.refusal();
  };
  EXPECT_EQ(refusal("[]"), "config.json: an array, but an object is wanted");
  EXPECT_TRUE(refusal("{\"a\":").starts_with("config.json: parse error")) << refusal("{\"a\":");
  EXPECT_EQ(refusal(R"({"a": 1, "a": 2})"), "config.json: the key \"a\" comes twice");
  EXPECT_EQ(refusal(std::string(100, '[') + std::string(100, ']')), "config.json: nested beyond 32 levels");
  EXPECT_TRUE(refusal(std::string("{\"model_type\": \"\xff\"}")).starts_with("config.json: "));
}

TEST(Hostile, TensorsAreRefusedByName) {
  Made made = llama();
  drop(made, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(Folder(made).refusal(),
            "\"model.layers.1.self_attn.q_proj.weight\": the checkpoint has no such tensor, which a llama model has");
  made = llama();
  drop(made, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(Folder(made).refusal(), "\"model.layers.1.input_layernorm.weight\": the checkpoint has no such tensor, "
                                    "which a llama model has; norm = none leaves it out");
  made = llama();
  for (auto& [name, m] : made.tensors)
    if (name == "model.layers.0.input_layernorm.weight") m = {0, 23, Vector(23, 1.0)};
  EXPECT_EQ(Folder(made).refusal(), "\"model.layers.0.input_layernorm.weight\": its shape is [23], but [24] is wanted");
  made = llama();
  for (auto& [name, m] : made.tensors)
    if (name == "model.layers.0.self_attn.k_proj.weight") m = {16, 25, Vector(16 * 25, 1.0)};
  EXPECT_EQ(Folder(made).refusal(), "\"model.layers.0.self_attn.k_proj.weight\": its rows have 25 numbers, but those "
                                    "of \"model.layers.0.self_attn.q_proj.weight\" have 24");
  made = llama();
  for (auto& [name, m] : made.tensors)
    if (name == "model.layers.0.self_attn.q_proj.weight") m = {0, 24 * 32, m.values};
  EXPECT_EQ(Folder(made).refusal(),
            "\"model.layers.0.self_attn.q_proj.weight\": its shape is [768], but [out, in] is wanted");
  made = llama();
  made.add("model.layers.0.self_attn.q_proj.bias", Vector(31, 0.0));
  EXPECT_EQ(Folder(made).refusal(), "\"model.layers.0.self_attn.q_proj.bias\": its shape is [31], but [32] is wanted");
}

TEST(Unknown, SaysWhatLooksLikeAttentionAndHowToTellIt) {
  Rng rng(2);
  Made made;
  for (int layer = 0; layer < 3; ++layer)
    for (const char* name : {"wq", "wk"})
      made.add("trunk." + std::to_string(layer) + ".mixer." + name, random_matrix(rng, 24, 24));
  made.add("trunk.0.mlp.up", random_matrix(rng, 24, 24));
  made.config = {{"model_type", "novelty"}};
  const Folder folder(made);
  EXPECT_EQ(folder.refusal(), "\"novelty\": not a model that is known; what looks like attention in it: "
                              "\"trunk.{layer}.mixer.wk\" [24, 24], \"trunk.{layer}.mixer.wq\" [24, 24]; a family file "
                              "(--family-file, family_file=) tells which of these are q and k; heads, kv_heads and "
                              "norm what no config.json says");
  Hints hints;
  hints.family_json =
      R"({"name": "novelty", "q": "trunk.{layer}.mixer.wq", "k": "trunk.{layer}.mixer.wk", "scale": "dk"})";
  EXPECT_EQ(folder.refusal(hints),
            "heads: config.json does not say how many there are; give their number (--heads, heads=)");
  hints.heads = 3;
  const Model model = folder.model(hints);
  ASSERT_EQ(model.layers.size(), 3u);
  EXPECT_EQ(model.family, "novelty");
  EXPECT_EQ(model.layers[2].dim_qk, 8);
  EXPECT_DOUBLE_EQ(model.layers[2].scale, 1.0 / 8);
  Made nothing;
  nothing.add("a.b", random_matrix(rng, 2, 2));
  EXPECT_EQ(Folder(nothing).refusal(),
            "no configuration: not a model that is known; none of its 1 tensors looks like attention");
}

TEST(Unknown, TypesAreTakenByTheirNamesAndThatIsSaid) {
  const Model model = Folder(llama({{"model_type", "newcomer"}})).model();
  EXPECT_EQ(model.family, "llama");
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_EQ(model.notes[0], "\"newcomer\" is not a model type that is known; its tensors are called as those of llama, "
                            "so it was taken for one");
}

TEST(Hints, WinOverTheConfiguration) {
  Made made = llama();
  made.config = Json::object();
  const Folder folder(made);
  EXPECT_EQ(folder.refusal(),
            "heads: there is no config.json to say how many there are; give their number (--heads, heads=)");
  Hints hints;
  hints.heads = 2;
  hints.kv_heads = 1;
  hints.norm = theory::Norm::Kind::kLayer;
  hints.scale = 0.5;
  hints.rotary_base = 0;
  hints.context = 99;
  const Attention a = folder.model(hints).layers[0];
  EXPECT_EQ(a.heads_q, 2);
  EXPECT_EQ(a.heads_kv, 1);
  EXPECT_EQ(a.dim_qk, 16);
  EXPECT_EQ(a.q[0].norm.kind, theory::Norm::Kind::kLayer);
  EXPECT_EQ(a.scale, 0.5);
  EXPECT_TRUE(a.rotary.frequencies.empty());
  EXPECT_EQ(a.context, 99);
  for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{-1}}) {
    Hints bad;
    bad.heads = wrong;
    EXPECT_EQ(folder.refusal(bad), "heads: " + std::to_string(wrong) + ", but at least 1 is wanted");
  }
  hints.family = "nobody";
  EXPECT_TRUE(folder.refusal(hints).starts_with("family: \"nobody\" is not known; known are bert, gpt2, "));
}

TEST(FamilyFile, IsRefusedByField) {
  const Folder folder(llama());
  const auto refusal = [&](const std::string& text) {
    Hints hints;
    hints.family_json = text;
    return folder.refusal(hints);
  };
  EXPECT_EQ(refusal("[]"), "family file: an array, but an object is wanted");
  EXPECT_EQ(refusal("{}"), "family file: it has no name");
  EXPECT_EQ(refusal(R"({"name": "x", "qq": 1})"), "family file: the field \"qq\" is not known");
  EXPECT_EQ(refusal(R"({"name": "x", "q": "a"})"),
            "family file \"x\": q and k, or qkv, or q, kv_latent and kv are wanted");
  EXPECT_EQ(refusal(R"({"name": "x", "q": 3})"), "family file.q: 3, but text is wanted");
  EXPECT_EQ(refusal(R"({"name": "x", "order": "odd"})"),
            "family file.order: \"odd\", but blocks, heads or groups is wanted");
  EXPECT_EQ(refusal(R"({"name": "x", "norm_kind": "batch"})"),
            "family file.norm_kind: \"batch\", but rms, layer or none is wanted");
  EXPECT_TRUE(refusal(R"({"name": "x", "q": "a.{layer}", "k": "b.{layer}"})")
                  .starts_with("family file: the checkpoint has no \"b.0.weight\"; what looks like attention"));
}

// The table that is printed is one that can be read again.
TEST(FamilyFile, SpeaksTheLanguageOfTheBuiltInTable) {
  Hints hints;
  hints.family_json = families_json();
  const Folder folder(llama());
  EXPECT_EQ(folder.model(hints).layers.size(), 2u);
  EXPECT_GE(families().size(), 20u);
}

TEST(Packed, GroupsOfQueriesWithTheirKeys) {
  // q₀ q₁ k₀ v₀ | q₂ q₃ k₁ v₁, as some keep them.
  Rng rng(9);
  const Projections p = random_projections(rng, {.heads = 4, .kv_heads = 2, .dim = 8, .width = 24}, false);
  const Matrix v = random_matrix(rng, 8, 24);
  Matrix packed{0, 24, {}};
  for (std::int64_t g = 0; g < 2; ++g) {
    const Matrix q = rows_of(p.q, g * 16, 16), k = rows_of(p.k, g * 8, 8);
    packed = stacked({&packed, &q, &k, &v});
  }
  Made grouped, apart;
  grouped.add("l.0.wqkv", packed);
  apart.add("l.0.q", p.q);
  apart.add("l.0.k", p.k);
  Hints together, each;
  together.family_json = R"({"name": "x", "qkv": "l.{layer}.wqkv", "order": "groups", "heads": 4, "kv_heads": 2})";
  each.family_json = R"({"name": "x", "q": "l.{layer}.q", "k": "l.{layer}.k", "heads": 4, "kv_heads": 2})";
  const Folder a(grouped), b(apart);
  const Audit x = audit(a.open(), a.model(together)), y = audit(b.open(), b.model(each));
  for (std::size_t h = 0; h < 4; ++h) EXPECT_EQ(x.layers[0].heads[h].variance, y.layers[0].heads[h].variance);
}

// Settings that change how q and k meet ------------------------------------------------------------------------------

TEST(Rotary, StretchesAsTheConfigurationSays) {
  const std::vector<double> plain = Folder(llama()).model().layers[0].rotary.frequencies;
  ASSERT_EQ(plain.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(plain[i], std::pow(10'000, -0.25 * static_cast<double>(i)));
  const auto stretched = [](const Json& scaling) {
    return Folder(llama({{"rope_scaling", scaling}})).model().layers[0].rotary;
  };
  const Rotary linear = stretched({{"type", "linear"}, {"factor", 4.0}});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(linear.frequencies[i], plain[i] / 4);

  // Waves that turn more than 4 times in 64 positions stay, those that turn less than once are slowed by 8, between
  // them a mixture.
  const Rotary llama3 = stretched({{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 64}});
  const double turns = 64 * plain[1] / (2 * std::numbers::pi), keep = (turns - 1) / 3;
  ASSERT_GT(keep, 0);
  EXPECT_DOUBLE_EQ(llama3.frequencies[0], plain[0]);
  EXPECT_DOUBLE_EQ(llama3.frequencies[1], plain[1] * (keep + (1 - keep) / 8));
  EXPECT_DOUBLE_EQ(llama3.frequencies[2], plain[2] / 8);
  EXPECT_DOUBLE_EQ(llama3.frequencies[3], plain[3] / 8);
  EXPECT_EQ(llama3.magnitude, 1);

  const Rotary yarn = stretched({{"rope_type", "yarn"}, {"factor", 16.0}, {"original_max_position_embeddings", 64}});
  EXPECT_DOUBLE_EQ(yarn.magnitude, 0.1 * std::log(16) + 1);
  EXPECT_LE(yarn.frequencies[0], plain[0]);
  EXPECT_DOUBLE_EQ(yarn.frequencies[3], plain[3] / 16);

  const Rotary longrope = stretched({{"type", "longrope"},
                                     {"short_factor", {1, 1, 1, 1}},
                                     {"long_factor", {1, 2, 4, 8}},
                                     {"original_max_position_embeddings", 16}});
  EXPECT_DOUBLE_EQ(longrope.frequencies[2], plain[2] / 4);
  EXPECT_DOUBLE_EQ(longrope.magnitude, std::sqrt(1 + std::log(4.0) / std::log(16.0)));
  EXPECT_EQ(Folder(llama({{"rope_scaling", {{"type", "mystery"}}}})).model().notes.size(), 1u);
}

// YaRN multiplies q and k, so the scores have its square, and the variance the fourth power.
TEST(Rotary, MagnitudesReachTheScores) {
  const Folder plain(llama()), yarn(llama({{"rope_scaling",
                                            {{"rope_type", "yarn"},
                                             {"factor", 1.0},
                                             {"attention_factor", 1.5},
                                             {"original_max_position_embeddings", 64}}}}));
  const Audit a = audit(plain.open(), plain.model()), b = audit(yarn.open(), yarn.model());
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_NEAR(b.layers[0].heads[h].variance, std::pow(1.5, 4) * a.layers[0].heads[h].variance,
                1e-9 * b.layers[0].heads[h].variance);
}

TEST(Windows, BoundTheKeysThatARowSees) {
  Rng rng(12);
  Made made = make_llama(rng, {.type = "gemma2", .gain_offset = 1});
  made.config.update({{"sliding_window", 16}, {"query_pre_attn_scalar", 8}});
  const Folder folder(made);
  const Audit found = audit(folder.open(), folder.model());
  EXPECT_EQ(found.layers[0].attention.window, 16);
  EXPECT_FALSE(found.layers[1].attention.window);
  EXPECT_EQ(found.layers[0].heads[0].contexts.back().keys, 16);
  EXPECT_EQ(found.layers[1].heads[0].contexts.back().keys, 64);
  // Layers can also be listed, and a switch turns windows off.
  made = make_llama(rng);
  made.config.update({{"sliding_window", 16}, {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_FALSE(Folder(made).model().layers[0].window);
  EXPECT_EQ(Folder(made).model().layers[1].window, 16);
  made.config["use_sliding_window"] = false;
  EXPECT_FALSE(Folder(made).model().layers[1].window);
}

TEST(Nested, ConfigurationsOfTheTextPartAreFound) {
  Made made = llama();
  const Json inner = made.config;
  made.config = {{"model_type", "llava"}, {"text_config", inner}};
  const Model model = Folder(made).model();
  EXPECT_EQ(model.layers[0].heads_kv, 2);
  EXPECT_EQ(model.layers[0].context, 64);
}

}  // namespace
}  // namespace rootdk::audit
