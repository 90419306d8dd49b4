// Statistics to JSON and back: bit for bit for all that the format holds, and a clear refusal for everything else.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "report/stats_cases.h"
#include "rootdk/attention.h"
#include "rootdk/report/stats_json.h"
#include "support/buffer.h"
#include "support/message.h"
#include "support/rng.h"

namespace rootdk::report {
namespace {

using nlohmann::json;
using test::message_of;

// Round trips ---------------------------------------------------------------------------------------------------------

TEST(StatsJson, StatsComeBackBitForBit) {
  std::size_t heads = 0, buckets = 0;
  EXPECT_TRUE(rc::check([&] {
    const Stats stats = any_stats<std::int64_t>();
    const std::string text = to_json(stats);
    RC_ASSERT(same(stats_from_json(text), stats));
    RC_ASSERT(to_json(stats_from_json(text)) == text);
    heads += stats.per_head.size();
    for (const HeadStats& head : stats.per_head) buckets += head.by_keys.size();
  }));
  EXPECT_GT(heads, 0u);  // the sanitizers' runs try few
  EXPECT_GT(buckets, 0u);
}

TEST(StatsJson, DecayedStatsComeBackBitForBit) {
  EXPECT_TRUE(rc::check([] {
    const DecayedStats stats = any_stats<double>();
    const std::string text = to_json(stats);
    RC_ASSERT(same(decayed_stats_from_json(text), stats));
    RC_ASSERT(to_json(decayed_stats_from_json(text)) == text);
  }));
}

TEST(StatsJson, GradientsComeBackBitForBit) {
  EXPECT_TRUE(rc::check([] {
    const GradientStats stats = any_gradients();
    RC_ASSERT(same(gradient_stats_from_json(to_json(stats)), stats));
  }));
}

TEST(StatsJson, TheComparisonSeesOneBit) {
  Stats a{StatsLevel::kFull, 1, 1, {HeadStats{}}}, b = a;
  EXPECT_TRUE(same(a, b));
  b.per_head[0].blocks.means[3].xn = -0.0;
  EXPECT_FALSE(same(a, b));
}

/// A head in which every part is present.
HeadStats full_head(bool with_buckets = true) {
  HeadStats h;
  h.row_count = 64, h.rows_counted = 63, h.rows_short = 1, h.rows_sampled = 40;
  h.raw_max = h.score_max = 4.5F;
  h.mean_p_max = 0.25, h.mean_lse = 3;
  h.raw = h.score = {2080, 0.5, 2000, 1900, 2016, -4, 4.5, 7, 3};
  for (double SoftmaxMeans::*mean : SoftmaxMeans::all()) h.softmax.*mean = 0.5;
  for (int i = 0; i < 40; ++i) {
    h.softmax.relative_entropy.add(i % 3 / 3.0);
    h.softmax.logit_p_max.add(i % 3 - 2);
    h.softmax.log_trace_j.add(-i % 3);
  }
  h.softmax.rows_p_max_over_50pct = 20, h.softmax.rows_p_max_over_90pct = 4, h.softmax.rows_p_max_over_99pct = 1;
  h.causes = {64, 16, 4, 9, 2, 1 / 16.0};
  h.blocks.all = 10, h.blocks.seen = 5;
  for (BlockSums& sums : h.blocks.means) sums = {30, 20, 40};
  h.blocks.raw_within_row_variance = h.blocks.score_within_row_variance = {30, 20, 40};
  h.gaps.counts.resize(GapHistogram::kBins);
  h.gaps.counts[5] = 7;
  if (with_buckets) h.by_keys = {{0, full_head(false)}, {32, full_head(false)}};
  return h;
}

Stats full_stats() { return {StatsLevel::kFull, 1, 2, {full_head(), full_head()}}; }

/// The same without repetition, for tests that try every field.
Stats one_head() {
  Stats stats{StatsLevel::kFull, 1, 1, {full_head()}};
  stats.per_head[0].by_keys.resize(1);
  return stats;
}

GradientStats gradients() { return {1, 2, {{1, 2, 3, 4, 5}, {6, -7, 8, std::nan(""), 10}}}; }

DecayedStats decayed_stats() {
  RunningStats running(0.9);
  for (int i = 0; i < 3; ++i) running.add(one_head());
  return running.stats();
}

TEST(StatsJson, RunningStatisticsComeBack) {
  const DecayedStats stats = decayed_stats();
  EXPECT_NE(stats.per_head[0].row_count, std::floor(stats.per_head[0].row_count));  // fractions were tested
  EXPECT_TRUE(same(decayed_stats_from_json(to_json(stats)), stats));
}

// What the engine measures, with all that can be asked for; and what a run of several steps makes of it.
TEST(StatsJson, MeasuredStatisticsComeBack) {
  test::Buffer q(DType::kF32, {2, 2, 300, 16}), k(DType::kF32, {2, 1, 300, 16}), v(DType::kF32, {2, 1, 300, 8}),
      o(DType::kF32, {2, 2, 300, 8});
  test::Buffer lse(DType::kF32, {2, 2, 300, 1}), d_o(DType::kF32, {2, 2, 300, 8}), d_q(DType::kF32, {2, 2, 300, 16});
  test::Rng rng(7);
  for (test::Buffer* x : {&q, &k, &v, &d_o}) x->fill_normal(rng, 1);
  const auto read = [](const test::Buffer& x) { return x.tensor(); };
  RunningStats running(0.75);
  for (const std::int64_t sample : {1, 2}) {
    for (const StatsLevel level : {StatsLevel::kNone, StatsLevel::kBasic, StatsLevel::kFull}) {
      Problem problem{.stats = level, .stats_options = {.sample = sample, .by_keys = true, .gaps = true}};
      if (level != StatsLevel::kFull) problem.stats_options = {};
      problem.mask.causal = true;
      const Stats stats = forward(problem, {read(q), read(k), read(v)}, {.o = o.tensor(), .lse = lse.tensor()});
      EXPECT_TRUE(same(stats_from_json(to_json(stats)), stats));
      const GradientStats gradients = backward(
          problem, {.q = read(q), .k = read(k), .v = read(v), .o = read(o), .lse = read(lse), .d_o = read(d_o)},
          {.d_q = d_q.tensor()});
      EXPECT_TRUE(same(gradient_stats_from_json(to_json(gradients)), gradients));
      if (level != StatsLevel::kFull) continue;
      EXPECT_FALSE(stats.per_head.empty() || stats.at(0, 0).by_keys.empty() || stats.at(0, 0).gaps.counts.empty() ||
                   gradients.per_head.empty());
      running.add(stats);
    }
  }
  EXPECT_TRUE(same(decayed_stats_from_json(to_json(running.stats())), running.stats()));
}

// What is in the text -------------------------------------------------------------------------------------------------

TEST(StatsJson, HistogramsAreSparse) {
  const json document = json::parse(to_json(full_stats()));
  EXPECT_EQ(document["per_head"][0]["gaps"]["counts"], json::parse("[[5, 7]]"));
  EXPECT_LT(to_json(full_stats()).size(), 40'000u);
}

TEST(StatsJson, WhatSawNothingIsLeftOut) {
  HeadStats head;
  for (double SoftmaxMeans::*mean : SoftmaxMeans::all())
    head.softmax.*mean = std::nan("");  // as the engine leaves it below kFull
  const json document = json::parse(to_json(Stats{StatsLevel::kBasic, 1, 1, {head}}));
  for (const char* part : {"raw", "score", "softmax", "causes", "blocks", "gaps", "by_keys", "derived"})
    EXPECT_FALSE(document["per_head"][0].contains(part)) << part;
  EXPECT_EQ(document["per_head"][0]["raw_max"], "-inf");
}

TEST(StatsJson, DerivedValuesAreThoseOfTheLibrary) {
  const HeadStats head = full_head();
  const json derived = json::parse(to_json(Stats{StatsLevel::kFull, 1, 1, {head}}))["per_head"][0]["derived"];
  EXPECT_EQ(derived["raw_total_variance"], head.raw.total_variance());
  EXPECT_EQ(derived["score_within_row_variance"], head.score.within_row_variance());
  EXPECT_EQ(derived["score_sigma"], std::sqrt(head.score.within_row_variance()));
  EXPECT_EQ(derived["keys"], std::exp(0.5));
  EXPECT_EQ(derived["relative_entropy_q05"], head.softmax.relative_entropy.quantile(0.05));
  EXPECT_EQ(derived["median_p_max"], 1 / (1 + std::exp(-head.softmax.logit_p_max.quantile(0.5))));
  EXPECT_EQ(derived["trace_j_q95"], std::exp(head.softmax.log_trace_j.quantile(0.95)));
  EXPECT_EQ(derived["share_p_max_over_99pct"], 1 / 40.0);
  EXPECT_EQ(derived["sigma_q"], 2.0);
  EXPECT_EQ(derived["sigma_k"], 3.0);
  EXPECT_EQ(derived["alignment"], head.alignment());
  EXPECT_EQ(derived["entropy_error"], standard_errors(head).entropy);
  EXPECT_EQ(derived["score_within_row_variance_error"], standard_errors(head).score_within_row_variance);
  EXPECT_GT(standard_errors(head).entropy, 0);
}

// Reading looks at the fields only.
TEST(StatsJson, DerivedAndUnknownFieldsArePassedOver) {
  json document = json::parse(to_json(full_stats()));
  document["made_by"] = {{"someone", {"else", 1, nullptr}}};
  for (json& head : document["per_head"]) {
    head["derived"] = "anything";
    head["colour"] = "red";
    head["softmax"]["new_statistic"] = {1, 2, 3};
    for (json& bucket : head["by_keys"]) bucket.erase("derived");
  }
  EXPECT_TRUE(same(stats_from_json(document.dump(2)), full_stats()));
}

// Other programs may write 3.0 as 3; they may not write a count as 3.0.
TEST(StatsJson, WholeNumbersAreNumbers) {
  json document = json::parse(to_json(full_stats()));
  document["per_head"][0]["raw"]["mean"] = 3;
  EXPECT_EQ(stats_from_json(document.dump()).per_head[0].raw.mean, 3);
  document["per_head"][0]["raw"]["pairs"] = 3.0;
  EXPECT_EQ(message_of([&] { stats_from_json(document.dump()); }),
            "per_head[0].raw.pairs: 3.0, but a whole number from 0 to 2^60 is wanted");
}

// Every example on the page is what it says.
TEST(StatsJson, TheDocumentedExamplesAreRead) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "docs" /
                     "stats-json.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  int examples = 0;
  for (std::size_t at = 0; (at = page.find("```json\n", at)) != std::string::npos; ++at) {
    const std::size_t begin = at + 8, end = page.find("```", begin);
    ASSERT_NE(end, std::string::npos);
    const std::string text = page.substr(begin, end - begin);
    const json document = json::parse(text);
    if (document["kind"] == "stats") ++examples, stats_from_json(text);
    if (document["kind"] == "gradients") ++examples, gradient_stats_from_json(text);
  }
  EXPECT_EQ(examples, 2);
}

// Refusals ------------------------------------------------------------------------------------------------------------

/// Calls visit(pointer, path as messages have it) for every value that is read.
void for_each_value(const json& node, const json::json_pointer& pointer, const std::string& path,
                    const std::function<void(const json::json_pointer&, const std::string&)>& visit) {
  if (!path.empty()) visit(pointer, path);
  if (node.is_object()) {
    for (const auto& [key, value] : node.items())
      if (key != "derived") for_each_value(value, pointer / key, path.empty() ? key : path + "." + key, visit);
  } else if (node.is_array()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      for_each_value(node[i], pointer / i, path + "[" + std::to_string(i) + "]", visit);
  }
}

void expect_refused_at(const json& document, const std::string& path,
                       const std::function<void(const std::string&)>& read) {
  const std::string message = message_of([&] { read(document.dump()); });
  EXPECT_TRUE(message.starts_with(path + ":")) << path << " → " << message;
}

void expect_every_field_checked(const std::string& text, const std::function<void(const std::string&)>& read) {
  const json document = json::parse(text);
  read(text);
  int values = 0;
  for_each_value(document, json::json_pointer(), "", [&](const json::json_pointer& pointer, const std::string& path) {
    ++values;
    const json& old = document.at(pointer);
    std::vector<json> wrong = {true, "nonsense", "NaN", "Infinity", 1.5e300};
    wrong.push_back(old.is_object() ? json::array() : json::object());
    wrong.push_back(old.is_array() ? json::object() : json::array({1, 2, 3, 4}));
    const bool is_text = old.is_string() && old != "inf" && old != "-inf";
    const bool takes_any_number = old.is_number_float() || old.is_null() || (old.is_string() && !is_text);
    for (const json& value : wrong) {
      if (takes_any_number && value.is_number()) continue;
      json changed = document;
      changed[pointer] = value;
      // Where an element of the wrong type is refused with its pair, or one of several for its number, the path is that
      // of the array.
      const std::string message = message_of([&] { read(changed.dump()); });
      EXPECT_TRUE(message.starts_with(path + ":") || message.starts_with(path + "["))
          << path << " = " << value << " → " << message;
    }
    if (!old.is_number_float() && !old.is_null()) {
      json changed = document;
      changed[pointer] = nullptr;
      if (!takes_any_number) expect_refused_at(changed, path, read);
    }
  });
  EXPECT_GT(values, 10);
}

TEST(StatsJsonRefuses, AWrongTypeAnywhere) {
  expect_every_field_checked(to_json(one_head()), [](const std::string& text) { stats_from_json(text); });
  expect_every_field_checked(to_json(gradients()), [](const std::string& text) { gradient_stats_from_json(text); });
}

TEST(StatsJsonRefuses, AWrongTypeAnywhereInDecayedStats) {
  const auto read = [](const std::string& text) { decayed_stats_from_json(text); };
  const json document = json::parse(to_json(decayed_stats()));
  int values = 0;
  for_each_value(document, json::json_pointer(), "", [&](const json::json_pointer& pointer, const std::string& path) {
    for (const json& value :
         {json(true), json("nonsense"), document.at(pointer).is_object() ? json::array() : json::object()}) {
      json changed = document;
      changed[pointer] = value;
      expect_refused_at(changed, path, read), ++values;
    }
  });
  EXPECT_GT(values, 100);
}

// Every member is needed, but for the parts that may be absent as a whole.
TEST(StatsJsonRefuses, WhatIsMissing) {
  const json document = json::parse(to_json(one_head()));
  int needed = 0;
  for_each_value(document, json::json_pointer(), "", [&](const json::json_pointer& pointer, const std::string& path) {
    if (document.at(pointer.parent_pointer()).is_array()) return;
    json changed = document;
    changed.at(pointer.parent_pointer()).erase(pointer.back());
    const std::vector<std::string> optional = {"raw",  "score",   "softmax",          "causes",      "blocks",
                                               "gaps", "by_keys", "relative_entropy", "logit_p_max", "log_trace_j"};
    const bool is_optional = document.at(pointer).is_structured() &&
                             std::find(optional.begin(), optional.end(), pointer.back()) != optional.end();
    if (is_optional) return static_cast<void>(stats_from_json(changed.dump()));
    EXPECT_EQ(message_of([&] { stats_from_json(changed.dump()); }), path + ": missing");
    ++needed;
  });
  EXPECT_GT(needed, 100);
}

std::string changed(const std::function<void(json&)>& change) {
  json document = json::parse(to_json(full_stats()));
  change(document);
  return message_of([&] { stats_from_json(document.dump()); });
}

TEST(StatsJsonRefuses, AnotherFormatKindOrVersion) {
  EXPECT_EQ(changed([](json& d) { d["format"] = "other"; }), "format: \"other\", but \"rootdk-stats\" is wanted");
  EXPECT_EQ(changed([](json& d) { d["version"] = 1; }), "version: 1, but 2 is wanted");
  EXPECT_EQ(changed([](json& d) { d["kind"] = "gradients"; }), "kind: \"gradients\", but \"stats\" is wanted");
  EXPECT_EQ(changed([](json& d) { d["level"] = "most"; }),
            "level: \"most\", but one of \"none\", \"basic\", \"full\" is wanted");
  EXPECT_EQ(message_of([] { decayed_stats_from_json(to_json(full_stats())); }),
            "kind: \"stats\", but \"decayed\" is wanted");
}

TEST(StatsJsonRefuses, CountsThatCannotBe) {
  const auto pairs = [](const json& value) {
    return changed([&](json& d) { d["per_head"][1]["score"]["pairs"] = value; });
  };
  const std::string wanted = ", but a whole number from 0 to 2^60 is wanted";
  EXPECT_EQ(pairs(-1), "per_head[1].score.pairs: -1" + wanted);
  EXPECT_EQ(pairs((std::int64_t{1} << 60) + 1), "per_head[1].score.pairs: 1152921504606846977" + wanted);
  EXPECT_EQ(pairs(std::uint64_t{0xFFFFFFFFFFFFFFFF}), "per_head[1].score.pairs: 18446744073709551615" + wanted);
  EXPECT_EQ(pairs(1e30), "per_head[1].score.pairs: 1e+30" + wanted);
  // 2^64 − 1 is not −1.
  EXPECT_EQ(
      changed([](json& d) { d["per_head"][0]["raw"]["max_key"] = std::uint64_t{0xFFFFFFFFFFFFFFFF}; }),
      "per_head[0].raw.max_key: 18446744073709551615, but a whole number from -1 to 9223372036854775807 is wanted");
  EXPECT_EQ(changed([](json& d) { d["per_head"][0]["raw"]["m2"] = -0.5; }),
            "per_head[0].raw.m2: -0.5, but at least 0 is wanted");
  EXPECT_EQ(changed([](json& d) { d["per_head"][0]["raw_max"] = 1e39; }),
            "per_head[0].raw_max: 1e+39, but a number of at most 3.4028234663852886e+38 is wanted");
  json document = json::parse(to_json(decayed_stats()));
  document["per_head"][0]["row_count"] = -0.5;
  EXPECT_EQ(message_of([&] { decayed_stats_from_json(document.dump()); }),
            "per_head[0].row_count: -0.5, but a finite number of at least 0 is wanted");
}

TEST(StatsJsonRefuses, BinsThatCannotBe) {
  const auto counts = [](const json& value) {
    return changed([&](json& d) { d["per_head"][0]["softmax"]["logit_p_max"]["counts"] = value; });
  };
  const std::string path = "per_head[0].softmax.logit_p_max.counts";
  EXPECT_EQ(counts({{512, 1}}), path + "[0][0]: 512, but a whole number from 0 to 511 is wanted");
  EXPECT_EQ(counts({{-1, 1}}), path + "[0][0]: -1, but a whole number from 0 to 511 is wanted");
  EXPECT_EQ(counts({{3, 1}, {3, 1}}), path + "[1][0]: 3, but a whole number from 4 to 511 is wanted");
  EXPECT_EQ(counts({{3, -1}}), path + "[0][1]: -1, but a whole number from 0 to 2^60 is wanted");
  EXPECT_EQ(counts({{3, 1, 2}}), path + "[0]: an array, but [bin, count] is wanted");
  EXPECT_EQ(counts(json(std::vector<int>(513, 0))), path + ": 513 elements, but at most 512 are wanted");
  EXPECT_EQ(changed([](json& d) { d["per_head"][0]["softmax"]["logit_p_max"]["low"] = 0; }),
            "per_head[0].softmax.logit_p_max.low: 0, but -16.0 is wanted");
}

TEST(StatsJsonRefuses, BucketsThatCannotBe) {
  const auto from = [](int i, std::int64_t value) {
    return changed([=](json& d) { d["per_head"][0]["by_keys"][i]["from"] = value; });
  };
  EXPECT_EQ(from(1, 33), "per_head[0].by_keys[1].from: 33, but 0 or a power of two is wanted");
  EXPECT_EQ(from(1, 0), "per_head[0].by_keys[1].from: 0, but a whole number from 1 to 4611686018427387904 is wanted");
}

TEST(StatsJsonRefuses, HeadsThatDoNotAddUp) {
  EXPECT_EQ(changed([](json& d) { d["heads"] = 3; }), "per_head: 2 elements, but 3 (batch 1, heads 3) are wanted");
  EXPECT_EQ(changed([](json& d) { d["heads"] = -1; }), "heads: -1, but a whole number from 0 to 2147483647 is wanted");
  EXPECT_EQ(changed([](json& d) { d["batch"] = d["heads"] = 2147483647; }),
            "per_head: 2 elements, but 4611686014132420609 (batch 2147483647, heads 2147483647) are wanted");
}

TEST(StatsJsonRefuses, WhatIsNotJson) {
  const auto read = [](const std::string& text) { return message_of([&] { stats_from_json(text); }); };
  EXPECT_EQ(read(""), "the document: what is at byte 1 is not JSON");
  EXPECT_EQ(read("[]"), "the document: an array, but an object is wanted");
  EXPECT_EQ(read("17"), "the document: 17, but an object is wanted");
  EXPECT_EQ(read("{\"format\": NaN}"), "format: what is at byte 12 is not JSON");
  EXPECT_EQ(read("{\"a\": 1, \"a\": 2}"), "a: there twice");
  EXPECT_EQ(read("{\"x\": [0, {\"y\": 1e999}]}"), "x[1].y: a number at byte 21 is larger than a double holds");
  EXPECT_EQ(read("{} {}"), "the document: what is at byte 4 is not JSON");
  EXPECT_EQ(read("{\"\xff\": 1}").substr(0, 30), "the document: what is at byte ");
}

TEST(StatsJsonRefuses, DeepNesting) {
  for (const std::size_t depth : {15u, 16u, 1'000'000u}) {
    const std::string text = "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}";
    const std::string message = message_of([&] { stats_from_json(text); });
    if (depth == 15) EXPECT_EQ(message, "format: missing");  // unknown fields are passed over, as deep as the limit
    else EXPECT_EQ(message, "a[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: nested more than 16 deep");
  }
}

TEST(StatsJsonRefuses, HugeArraysAndObjects) {
  std::string text = "{\"per_head\": [0";
  for (int i = 0; i < 1 << 20; ++i) text += ",0";
  EXPECT_EQ(message_of([&] { stats_from_json(text + "]}"); }), "per_head: more than 1048576 elements");
  // Time stays in proportion: this took hours if each element looked at all others.
  std::string objects = "{\"x\": [{}";
  for (int i = 1; i < 1 << 20; ++i) objects += ",{}";
  EXPECT_EQ(message_of([&] { stats_from_json(objects + "]}"); }), "format: missing");
}

TEST(StatsJsonRefuses, NamesThatWouldSpoilAMessage) {
  const std::string name(1000, 'x');
  EXPECT_EQ(message_of([&] { stats_from_json("{\"" + name + "\": nonsense}"); }),
            std::string(40, 'x') + "...: what is at byte 1007 is not JSON");
  EXPECT_EQ(message_of([&] { stats_from_json("{\"format\": \"\\u0007\\n\"}"); }),
            "format: \"??\", but \"rootdk-stats\" is wanted");
}

// Damage of any kind ends in an Error or in statistics, never in anything else.
TEST(StatsJsonRefuses, DamagedText) {
  const std::string text = to_json(full_stats());
  test::Rng rng(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    const std::size_t at = rng.next() % text.size();
    if (i % 3 == 0) damaged.resize(at);
    else if (i % 3 == 1) damaged[at] = static_cast<char>(rng.next());
    else damaged.erase(at, 1 + rng.next() % 20);
    try {
      to_json(stats_from_json(damaged));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1500);
}

// Writing refuses what reading would.
TEST(StatsJsonRefuses, ToWriteWhatCannotBeRead) {
  const auto written = [](const std::function<void(HeadStats&)>& spoil) {
    return message_of([&] {
      Stats stats = full_stats();
      spoil(stats.per_head[1]);
      to_json(stats);
    });
  };
  EXPECT_EQ(written([](HeadStats& h) { h.row_count = -1; }),
            "per_head[1].row_count: -1, but a whole number from 0 to 2^60 is wanted");
  EXPECT_EQ(written([](HeadStats& h) { h.by_keys[1].stats.score.m2 = -1; }),
            "per_head[1].by_keys[1].score.m2: -1, but at least 0 is wanted");
  EXPECT_EQ(written([](HeadStats& h) { h.gaps.counts.resize(3); }),
            "per_head[1].gaps.counts: 3 bins, but none or 320 are wanted");
  EXPECT_EQ(written([](HeadStats& h) { h.softmax.logit_p_max.low = -8; }),
            "per_head[1].softmax.logit_p_max: from -8 to 16, but from -16 to 16 is wanted");
  EXPECT_EQ(written([](HeadStats& h) { h.by_keys[0].stats.by_keys.resize(1); }),
            "per_head[1].by_keys[0].by_keys: buckets inside a bucket");
  EXPECT_EQ(message_of([] {
              to_json(Stats{StatsLevel::kFull, 2, 2, {HeadStats{}}});
            }),
            "per_head: 1 elements, but 4 (batch 2, heads 2) are wanted");
}

// Judgements ----------------------------------------------------------------------------------------------------------

TEST(JudgementJson, HasEverything) {
  const std::vector<theory::Judgement> judgements = theory::judge(full_stats(), {.dtype = DType::kBF16});
  const json document = json::parse(to_json(judgements));
  EXPECT_EQ(document["format"], "rootdk-judgements");
  EXPECT_EQ(document["version"], 1);
  ASSERT_EQ(document["judgements"].size(), 2u);
  const json& j = document["judgements"][1];
  const theory::Judgement& from = judgements[1];
  EXPECT_EQ(j["verdict"], name_of(from.verdict));
  ASSERT_EQ(j["codes"].size(), from.codes.size());
  EXPECT_EQ(j["codes"][0], j["verdict"]);
  EXPECT_EQ(j["sigma"], from.sigma);
  EXPECT_EQ(j["sigma_c"], from.sigma_c);
  EXPECT_EQ(j["entropy"], from.entropy);
  EXPECT_EQ(j["predicted_entropy"], from.predicted_entropy);
  EXPECT_EQ(j["rounding"], from.rounding);
  EXPECT_EQ(j["unit_variance_factor"], from.unit_variance_factor);
  EXPECT_EQ(j["divisor"], from.divisor);
  EXPECT_EQ(j["divisor_over_sqrt_dk"], from.divisor_over_sqrt_dk);
  EXPECT_EQ(j["words"], from.words);
  EXPECT_EQ(j["fix"], from.fix);
  EXPECT_TRUE(j["stein_ratio"].is_null());  // not known here
}

}  // namespace
}  // namespace rootdk::report
