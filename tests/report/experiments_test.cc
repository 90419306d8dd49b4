// Every experiment said as JSON, as tables and as a sentence: numbers come back as they were, nothing is NaN, lines fit
// a terminal, and the sentence follows the numbers when they change.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "report/experiments.h"
#include "report/json.h"
#include "report/text.h"
#include "rootdk/attention.h"
#include "rootdk/lab/train/conclusions.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/nn/init.h"
#include "support/rng.h"

namespace rootdk::report {
namespace {

void expect_fits(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), kLineWidth) << line;
}

/// JSON that parses and prints as before (so it has no NaN), text that fits and closes with the sentence. Returns what
/// was parsed.
template <class Result>
Json check(const Result& result) {
  const std::string printed = dumped(json_of(result));
  const Json json = Json::parse(printed);
  EXPECT_EQ(dumped(json), printed);
  EXPECT_EQ(json.at("conclusion"), conclusion_of(result));
  if constexpr (!std::is_same_v<Result, Attended>) {
    EXPECT_EQ(json_text(result), printed);
  }
  const std::string text = text_of(result);
  expect_fits(text);
  EXPECT_TRUE(text.ends_with(wrap(conclusion_of(result)))) << text;
  return json;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Json, NumbersComeBackAsTheyWere) {
  test::Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    const double x = std::bit_cast<double>(rng.next());
    Json json;
    json["x"] = x;
    const Json back = Json::parse(dumped(json))["x"];
    if (std::isfinite(x)) {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(back.get<double>()), std::bit_cast<std::uint64_t>(x));
    } else {
      ASSERT_TRUE(back.is_null());
    }
  }
  Json json;
  json["inf"] = INFINITY, json["nan"] = NAN, json["text"] = "not UTF-8: \xFF";
  json["list"] = {1, 2.5, "x"}, json["lists"] = {{1, 2}, Json::object()}, json["none"] = Json::array();
  EXPECT_TRUE(dumped(json).ends_with(R"(
  "list": [1, 2.5, "x"],
  "lists": [
    [1, 2],
    {}
  ],
  "none": []
}
)")) << dumped(json);
  const Json back = Json::parse(dumped(json));
  EXPECT_EQ(back["lists"], json["lists"]);
  EXPECT_TRUE(back["inf"].is_null());
  EXPECT_TRUE(back["nan"].is_null());
  EXPECT_EQ(back["text"], "not UTF-8: \uFFFD");
}

TEST(Json, FloatsAreShortAndComeBack) {
  test::Rng rng(2);
  for (int i = 0; i < 2000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(shortest(x))), std::bit_cast<std::uint32_t>(x));
  }
  EXPECT_EQ(dumped(Json(shortest(0.1f))), "0.1\n");
  EXPECT_TRUE(std::isnan(shortest(NAN)));
}

TEST(Report, Explain) {
  const Json json = check(lab::explain({.scores = {14, 10, 12}, .dk = 64}));
  EXPECT_EQ(json["dk"], 64);
  ASSERT_EQ(json["rules"].size(), 3u);
  for (const char* field : {"rule", "divisor", "scores", "exp", "exp_sum", "softmax", "entropy", "p_max",
                            "effective_keys", "trace_j", "frobenius_j"})
    EXPECT_TRUE(json["rules"][0].contains(field)) << field;
  EXPECT_EQ(json["rules"][1]["rule"], "sqrt_dk");
  EXPECT_EQ(json["rules"][1]["divisor"], 8);
  // An exponential beyond double is null, the weights are not.
  const Json large = check(lab::explain({.scores = {1000, 10}, .dk = 64}));
  EXPECT_TRUE(large["rules"][0]["exp"][0].is_null());
  EXPECT_EQ(large["rules"][0]["softmax"][0], 1);
  check(lab::explain({.scores = {3}, .dk = 4}));
  check(lab::explain({.scores = {3, 3}, .dk = 4}));
  check(lab::explain({.scores = std::vector<double>(100, 1.5), .dk = 4}));
  check(lab::explain(
      {.q = {1, 0, 1, 0}, .keys = {{0, 1, 1, 1}, {1, 2, 3, 4}}, .rules = {Scale::parse("constant(0.5)*ssmax(0.3)")}}));
}

TEST(Report, ExplainSaysWhichWayItWent) {
  // A divisor below 1 sharpens: the sentence must turn round.
  const lab::Explanation softer = lab::explain({.scores = {14, 10, 12}, .dk = 64});
  EXPECT_TRUE(has(conclusion_of(softer), "2.8 times as much")) << conclusion_of(softer);
  EXPECT_TRUE(has(conclusion_of(softer), "8.6 times smaller than with √d_k")) << conclusion_of(softer);
  const lab::Explanation flat =
      lab::explain({.scores = {0, 0.1}, .dk = 64});  // open already: dividing opens it by next to nothing
  EXPECT_TRUE(has(conclusion_of(flat), "1.0 times as much")) << conclusion_of(flat);
  EXPECT_EQ(conclusion_of(lab::explain({.scores = {1}, .dk = 4})),
            "With a single key softmax gives it all the weight, whatever the rule.");
}

lab::Variance small_variance() {
  lab::VarianceOptions options;
  options.dk = {1, 64, 512};
  options.pairs = 20'000;
  return lab::measure_variance(options);
}

TEST(Report, Variance) {
  lab::Variance variance = small_variance();
  const Json json = check(variance);
  ASSERT_EQ(json["rows"].size(), 12u);
  EXPECT_TRUE(conclusion_of(variance).starts_with("Var(q·k) = d_k: 1")) << conclusion_of(variance);  // of the 12
  for (const char* field : {"dk", "mean", "variance", "ci95", "expected"})
    EXPECT_TRUE(json["rows"][0].contains(field)) << field;
  EXPECT_EQ(json["rows"][4]["ci95"].size(), 2u);
  EXPECT_EQ(json["square_terms"].size(), 9u);
  expect_fits(text_of(variance, {.detail = Detail::kShort}));
  // One histogram for each d_k and rule, of the same counts; the edges are divided.
  ASSERT_EQ(json["histograms"].size(), 9u);
  const Json &plain = json["histograms"][3], &root = json["histograms"][4];
  EXPECT_EQ(plain["rule"], "none");
  EXPECT_EQ(root["rule"], "sqrt_dk");
  EXPECT_EQ(root["dk"], 64);
  EXPECT_EQ(plain["counts"], root["counts"]);
  ASSERT_EQ(root["edges"].size(), root["counts"].size() + 1);
  for (std::size_t i = 0; i < root["edges"].size(); ++i)
    EXPECT_DOUBLE_EQ(plain["edges"][i].get<double>(), 8 * root["edges"][i].get<double>());

  // The sentence counts: move every interval away, and it says so.
  for (lab::VarianceRow& row : variance.rows) row.low = row.high = 0, row.after_sqrt_dk = 1.5;
  EXPECT_TRUE(conclusion_of(variance).starts_with("Var(q·k) = d_k does not hold here: 0 of 12 intervals contain it"))
      << conclusion_of(variance);
  EXPECT_TRUE(has(conclusion_of(variance), "within 50 % of 1"));
  variance.rows.clear();
  variance.complete = false;
  EXPECT_EQ(check(variance)["complete"], false);
  EXPECT_TRUE(has(text_of(variance), "Interrupted"));

  lab::VarianceOptions options;
  options.dk = {64};
  options.pairs = 50'000;
  options.mean = 0.5;
  const std::string general = check(lab::measure_variance(options))["conclusion"];
  EXPECT_TRUE(general.starts_with("√d_k is too small a divisor here: at d_k = 64 the variance is ")) << general;
  EXPECT_TRUE(has(general, "general formula")) << general;
}

TEST(Report, Phase) {
  lab::PhaseOptions options;
  options.dk = {4, 64};
  options.keys = {16, 64, 256, 1024};
  options.queries = 16;
  options.batches = 2;
  lab::Phase phase = lab::measure_phase(options);
  const Json json = check(phase);
  EXPECT_EQ(json["points"].size(), 24u);
  EXPECT_EQ(json["critical_line"].size(), 4u);
  for (const char* field : {"value", "ci95", "theory"})
    EXPECT_TRUE(json["points"][0]["entropy"].contains(field)) << field;
  // d_k = 64 is above 2 ln n for all four, d_k = 4 for none.
  EXPECT_TRUE(conclusion_of(phase).starts_with("Attention freezes unscaled (at 4 of 8 points), but nowhere under "
                                               "1/√d_k and under 1/d_k. At d_k = 64 and 1,024 keys the "
                                               "largest weight is "))
      << conclusion_of(phase);
  for (lab::PhasePoint& point : phase.points) point.frozen = false;
  EXPECT_TRUE(conclusion_of(phase).starts_with("Attention freezes at none of these points. ")) << conclusion_of(phase);
  phase.points.clear();
  EXPECT_EQ(check(phase)["conclusion"], "Nothing was finished.");
}

TEST(Report, Gradient) {
  lab::GradientOptions options;
  options.dk = {16, 512};
  options.keys = 256;
  options.queries = 32;
  options.batches = 2;
  lab::Gradient gradient = lab::measure_gradient(options);
  const Json json = check(gradient);
  EXPECT_EQ(json["points"].size(), 6u);
  EXPECT_EQ(json["points"][0]["scores"]["quantiles"].size(), 7u);
  // Swapping two rules' numbers swaps the sentence.
  const std::string before = conclusion_of(gradient);
  EXPECT_TRUE(before.starts_with("Unscaled, the median row of scores receives a gradient ")) << before;
  EXPECT_TRUE(has(before, "though ") && has(before, "larger in mean square")) << before;
  std::swap(gradient.points[3].rule, gradient.points[4].rule);
  EXPECT_TRUE(has(conclusion_of(gradient), "smaller in mean square")) << conclusion_of(gradient);
  options.rules = {Scale::parse("dk(16)"), Scale::parse("dk(2)")};
  options.dk = {16};
  EXPECT_TRUE(
      has(check(lab::measure_gradient(options))["conclusion"], "The median row of scores receives least under"));
}

TEST(Report, Precision) {
  lab::PrecisionOptions options;
  options.keys = 64;
  options.queries = 16;
  const lab::Precision precision = lab::measure_precision(options);
  const Json json = check(precision);
  EXPECT_EQ(json["points"].size(), 48u);
  EXPECT_TRUE(json["points"][0]["signal_bits"].is_null()) << "f64 has no rounding to count";
  options.dtypes = {DType::kF32};
  options.rules = {Scale::parse("constant(2)")};
  check(lab::measure_precision(options));
}

TEST(Report, Initialisation) {
  lab::InitialisationOptions options;
  options.widths = {768};
  options.dk = {64};
  options.tokens = 32;
  options.batches = 4;
  const Json json = check(lab::measure_initialisation(options));
  EXPECT_EQ(json["rows"].size(), 5u);
  const std::string sentence = json["conclusion"];
  EXPECT_TRUE(
      has(sentence,
          "√d_k is right under \"Xavier, square\" and \"LeCun\": after it the scores' spread is 1 (within 5 %), but "))
      << sentence;
  EXPECT_TRUE(has(sentence, "2.0 under \"He\"")) << sentence;
}

lab::TrainOptions small_training() {
  lab::TrainOptions o;
  o.dk = {4, 16};
  o.learning_rates = {0.01, 0.1};
  o.seeds = 2;
  o.run.model.width = 8, o.run.model.heads = 2;
  o.run.steps = 7, o.run.sequences = 4, o.run.evaluate_every = 3, o.run.evaluation_batches = 1;
  return o;
}

TEST(Report, Train) {
  const lab::RecallTask task({.pairs = 2, .asked = 2, .keys = 4, .values = 4});
  lab::TrainResult result = lab::train_rules(task, small_training());
  const Json json = check(result);
  ASSERT_EQ(json["rules"].size(), 6u);
  EXPECT_EQ(json["measure"], "accuracy");
  for (std::size_t r = 0; r < 6; ++r) {
    const Json& rule = json["rules"][r];
    EXPECT_EQ(rule["conclusion"], lab::summarise(result)[r].conclusion);
    EXPECT_EQ(rule["tuning"].size(), 2u);
    ASSERT_EQ(rule["runs"].size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const lab::RunResult& run = result.rules[r].runs[i];
      const Json &steps = rule["runs"][i]["steps"], &evaluations = rule["runs"][i]["evaluations"];
      EXPECT_EQ(rule["runs"][i]["seed"], run.options.seed);
      EXPECT_EQ(evaluations["step"], Json({3, 6, 7}));
      EXPECT_EQ(evaluations["accuracy"].size(), 3u);
      ASSERT_EQ(steps["step"], Json({1, 2, 3, 4, 5, 6, 7}));
      for (const char* column : {"loss", "accuracy", "gradient_norm", "sigma", "entropy", "p_max", "score_max"})
        ASSERT_EQ(steps[column].size(), 7u) << column;
      ASSERT_EQ(steps["heads"].size(), 4u) << "two layers of two heads";
      EXPECT_EQ(steps["heads"][3]["layer"], 1);
      EXPECT_EQ(steps["heads"][3]["head"], 1);
      for (std::size_t s = 0; s < 7; ++s) {
        EXPECT_EQ(steps["loss"][s].get<float>(), run.steps[s].loss);
        double sigma = 0;
        float largest = -INFINITY;
        for (std::size_t h = 0; h < 4; ++h) {
          EXPECT_EQ(steps["heads"][h]["entropy"][s].get<float>(), run.steps[s].heads[h].entropy);
          sigma += static_cast<double>(run.steps[s].heads[h].sigma) / 4;
          largest = std::max(largest, run.steps[s].heads[h].score_max);
        }
        EXPECT_FLOAT_EQ(steps["sigma"][s].get<float>(), static_cast<float>(sigma));
        EXPECT_EQ(steps["score_max"][s].get<float>(), largest);
      }
    }
  }

  // Made-up ends: the sentence follows them.
  EXPECT_TRUE(has(json["conclusion"], "Medians of 2 seeds, each rule at its own best learning rate."))
      << json["conclusion"];
  lab::TrainResult made = result;
  made.rules.resize(3);
  made.options.dk = {4};
  const float ends[] = {0.2f, 0.9f, 0.901f};
  for (std::size_t r = 0; r < 3; ++r)
    for (lab::RunResult& run : made.rules[r].runs) run.evaluations.back().accuracy = ends[r];
  EXPECT_EQ(check(made)["conclusion"],
            "At d_k = 4, no scaling ends behind 1/√d_k, 1/d_k ends level with it; held-out answers right in the end: "
            "90 % under 1/√d_k, "
            "20 % under no scaling and 90 % under 1/d_k. Medians of 2 seeds, each rule at its own best learning rate.");
  made.options.learning_rates = {0.1};
  for (lab::RuleRuns& rule : made.rules) rule.best = 0;
  EXPECT_TRUE(has(conclusion_of(made), "Medians of 2 seeds, all at one learning rate."));

  // Long runs are thinned to what a screen shows, with their first and their last step.
  lab::RunResult& run = result.rules[0].runs[0];
  run.steps.resize(1001, run.steps.back());
  for (std::size_t s = 0; s < run.steps.size(); ++s) run.steps[s].step = static_cast<std::int64_t>(s + 1);
  const Json thin = check(result)["rules"][0]["runs"][0]["steps"];
  EXPECT_EQ(thin["step"].size(), 200u);
  EXPECT_EQ(thin["step"].front(), 1);
  EXPECT_EQ(thin["step"].back(), 1001);
  EXPECT_EQ(thin["loss"].size(), 200u);

  // Stopped at once: nothing is claimed, and it can still be written.
  lab::TrainObserver observer;
  observer.stop = [] { return true; };
  const Json stopped = check(lab::train_rules(task, small_training(), observer));
  EXPECT_EQ(stopped["complete"], false);
  EXPECT_TRUE(stopped["rules"][0]["median"].is_null());
  EXPECT_TRUE(stopped["rules"][0]["runs"].empty());
  EXPECT_EQ(stopped["conclusion"], "Nothing was finished.");
}

TEST(Report, Playground) {
  lab::PlaygroundOptions options;
  options.rule = lab::treatment("none");
  const Json json = check(lab::play(options));
  EXPECT_EQ(json["experiment"], "playground");
  EXPECT_EQ(json["rule"], "none");
  EXPECT_EQ(json["frozen"], true);
  EXPECT_EQ(json["verdict"], "frozen");
  EXPECT_TRUE(has(json["conclusion"], "Frozen: σ = "));
  EXPECT_EQ(json["theory"]["sigma"], 8);
  EXPECT_EQ(json["theory"]["exp_entropy"], std::exp(json["theory"]["entropy"].get<double>()));
  EXPECT_EQ(json["histogram"]["edges"].size(), 65u);
  EXPECT_EQ(json["weights"]["values"].size(), 32u * 64u);
  EXPECT_EQ(json["row"]["p"].size(), 256u);
  EXPECT_TRUE(json["soft_cap"].is_null());

  options.causal = true, options.soft_cap = 4, options.rule = lab::treatment("sqrt_dk*ssmax(0.43)");
  const Json capped = check(lab::play(options));
  EXPECT_TRUE(capped["theory"]["sigma"].is_null());
  EXPECT_TRUE(capped["histogram"]["expected"].is_null());
  EXPECT_EQ(capped["soft_cap"], 4);
  EXPECT_TRUE(capped["row"]["scores"].back().is_null());  // the first query does not see the last key
}

TEST(Report, WhatifAndAttend) {
  const std::int64_t len = 20, dim = 16;
  std::vector<float> x(static_cast<std::size_t>(2 * len * dim)), o(x.size());
  nn::fill(x, nn::Init::normal(2), {}, {1, 1});
  const Extents shape = {1, 2, len, dim};
  const ConstTensor view = tensor<float>(static_cast<const float*>(x.data()), shape);
  lab::WhatifOptions options;
  options.q = options.k = options.v = view;
  const Json whatif = check(lab::try_rules(options));
  EXPECT_EQ(whatif["rows"].size(), lab::usual_treatments().size());
  EXPECT_EQ(whatif["rows"][0]["heads"].size(), 2u);
  options.v = {};
  EXPECT_TRUE(check(lab::try_rules(options))["rows"][0]["output_change"].is_null());
  options.treatments = {lab::treatment("none"), lab::treatment("qk_norm")};
  const std::string said = check(lab::try_rules(options))["conclusion"];
  EXPECT_NE(said.find("QK-norm flattest"), said.npos) << said << ": rules are called as one speaks of them";

  x[3] = NAN;  // one query, and one key that all of its head see
  for (const StatsLevel level : {StatsLevel::kNone, StatsLevel::kBasic, StatsLevel::kFull}) {
    Problem problem;
    problem.stats = level;
    Attended attended{{1, 2, 2, len, len, dim, dim, DType::kF32}, "sqrt_dk", false, "fused", "AVX2", {}};
    attended.stats = forward(problem, {view, view, view}, {tensor(o.data(), shape)});
    const Json json = check(attended);
    EXPECT_EQ(json["heads"].size(), level == StatsLevel::kNone ? 0u : 2u);
    if (level != StatsLevel::kNone) {
      EXPECT_TRUE(has(json["conclusion"],
                      "rows that are not finite: 20; look for NaN or Inf in q, k or v, and for scores that "
                      "overflow f32."))
          << json["conclusion"];
      EXPECT_TRUE(json["heads"][0]["mean_p_max"].is_null()) << "no row of this head counts";
    }
  }
}

TEST(Report, Plan) {
  using distributed::Way;
  RankPlan plan;
  plan.shape = {1, 8, 2, 4096, 4096, 64, 64, DType::kBF16};
  plan.causal = true, plan.layout = "zigzag", plan.ranks = 2;
  plan.choice.why = "fastest";
  for (const Way way : {Way::kRing, Way::kAllGather, Way::kHeads}) {
    distributed::Cost cost{way};
    cost.forward = {{1000, 3000}, 4, {1e9, 2e9}, 2e-3}, cost.backward = {{5000, 4000}, 6, {3e9, 2e9}, 5e-3};
    cost.forward.memory = 23456789, cost.backward.memory = 123456789, cost.efficiency = 0.5;
    plan.choice.costs.push_back(cost);
  }
  plan.choice.costs.push_back({Way::kTwoLevels, "2 ranks are not several nodes of 8, more than 1 each"});
  const Json json = check(plan);
  ASSERT_EQ(json["ways"].size(), 4u);
  EXPECT_EQ(json["ways"][0]["forward"]["bytes_sent_by_a_rank"], 3000);
  EXPECT_EQ(json["ways"][0]["forward"]["bytes_sent"], 4000);
  EXPECT_EQ(json["ways"][0]["backward"]["flops_of_a_rank"], 3e9);
  EXPECT_EQ(json["ways"][0]["seconds"], 7e-3);
  EXPECT_EQ(json["ways"][0]["forward"]["memory_bytes"], 23456789);
  EXPECT_EQ(json["ways"][0]["backward"]["memory_bytes"], 123456789);
  EXPECT_EQ(json["ways"][0]["memory_bytes"], 123456789);
  EXPECT_EQ(json["ways"][3]["refused"], "2 ranks are not several nodes of 8, more than 1 each");
  EXPECT_EQ(json["published"].size(), 2u);
  const std::string text = text_of(plan);
  for (const char* part : {"ring *", "7.00 ms", "23.5 MB", "123 MB", "2411.01783", "93 %", "85 to 90 %",
                           "two_levels: 2 ranks are not several nodes"})
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
}

TEST(Report, Machine) {
  lab::Health health = lab::examine();
  EXPECT_EQ(check(health)["healthy"], true);
  health.checks.front().error = 1;
  EXPECT_TRUE(has(conclusion_of(health), "1 of "));
  EXPECT_EQ(check(health)["healthy"], false);
  lab::TimingOptions options;
  options.cases = {{2, 64, 16}};
  options.rounds = 1;
  lab::Timing timing = lab::time_forward(options);
  EXPECT_EQ(check(timing)["rows"].size(), 1u);
  timing.rows[0].of_peak = 0.8;
  EXPECT_TRUE(has(conclusion_of(timing), "Forward reaches 0.80 of "));
  timing.rows[0].of_peak = 1.31;  // of a peak that another process had a share of
  EXPECT_TRUE(has(conclusion_of(timing), "Other work disturbed the timing"));
}

TEST(Report, Rules) {
  const std::vector<lab::Rule> rules = lab::all_rules();
  const Json json = Json::parse(json_text(rules));
  EXPECT_EQ(json["rules"].size(), rules.size());
  expect_fits(text_of(rules));
  for (const lab::Rule& rule : rules) EXPECT_TRUE(has(text_of(rules), rule.name));
}

}  // namespace
}  // namespace rootdk::report
