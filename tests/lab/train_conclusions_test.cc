// Sentences from made-up results: whatever the medians say, in either direction.
#include <gtest/gtest.h>

#include <limits>

#include "rootdk/lab/train/conclusions.h"

namespace rootdk::lab {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A run that was evaluated after every hundred steps.
RunResult run_of(const std::vector<float>& values, Measure measure, Outcome outcome = Outcome::kFinished) {
  RunResult run;
  run.outcome = outcome;
  run.steps = {{1, 3, 0, 1, {{8, 1, 0.5f, 20}, {6, 1, 0.5f, 20}}}, {2, 2, 0, 1, {{2, 1, 0.5f, 20}, {4, 1, 0.5f, 20}}}};
  for (const float value : values) {
    const auto step = static_cast<std::int64_t>(run.evaluations.size() + 1) * 100;
    run.evaluations.push_back(measure == Measure::kAccuracy ? Evaluation{step, 9, value} : Evaluation{step, value, 0});
  }
  return run;
}

/// Rules none, 1/√d_k and 1/d_k with the given runs; each found its best rate in the middle.
TrainResult result_of(Measure measure, const std::vector<std::vector<RunResult>>& runs) {
  TrainResult result;
  result.measure = measure;
  result.complete = true;
  result.options.learning_rates = {0.001, 0.01, 0.1};
  result.options.run.steps = 300;
  for (std::size_t r = 0; r < runs.size(); ++r) result.rules.push_back({result.options.rules[r], 64, {}, 1, runs[r]});
  return result;
}

std::vector<RunResult> accuracies(std::initializer_list<std::vector<float>> values) {
  std::vector<RunResult> runs;
  for (const auto& v : values) runs.push_back(run_of(v, Measure::kAccuracy));
  return runs;
}
std::vector<RunResult> losses(std::initializer_list<std::vector<float>> values) {
  std::vector<RunResult> runs;
  for (const auto& v : values) runs.push_back(run_of(v, Measure::kLoss));
  return runs;
}

const std::vector<RunResult> kGood =
    accuracies({{0.5f, 0.995f, 0.999f}, {0.4f, 0.992f, 0.998f}, {0.995f, 0.997f, 0.997f}});
const std::vector<RunResult> kBad = accuracies({{0.1f, 0.2f, 0.3f}, {0.1f, 0.2f, 0.25f}, {0.2f, 0.3f, 0.4f}});
const std::vector<RunResult> kLate = accuracies({{0.1f, 0.2f, 0.999f}, {0.1f, 0.2f, 0.997f}, {0.1f, 0.3f, 0.995f}});

TEST(Conclusions, BehindIsSaid) {
  const auto result = result_of(Measure::kAccuracy, {kBad, kGood});
  const auto all = summarise(result);
  EXPECT_EQ(all[0].standing, Standing::kBehind);
  EXPECT_EQ(all[1].standing, Standing::kReference);
  EXPECT_EQ(all[1].steps_to_goal, 200);
  EXPECT_EQ(all[0].steps_to_goal, std::nullopt);
  EXPECT_EQ(all[0].first_sigma, 7);
  EXPECT_EQ(all[0].last_sigma, 3);
  EXPECT_EQ(conclusions(result), (std::vector<std::string>{"d_k = 64, c = 1/√d_k: ends with 99.8 % of held-out answers "
                                                           "right (median of 3 seeds, 99.7 % to 99.9 %), at a "
                                                           "learning rate of 0.01; it reaches 99.0 % after 200 steps.",
                                                           "d_k = 64, c = 1 (none): ends with 30.0 % of held-out "
                                                           "answers right (median of 3 seeds, 25.0 % to 40.0 %), at a "
                                                           "learning rate of 0.01. That is behind c = 1/√d_k by 69.8 "
                                                           "points, with its rate tuned; it does not reach 99.0 % "
                                                           "in 300 steps."}));
}

TEST(Conclusions, CatchingUpIsSaid) {
  const auto result = result_of(Measure::kAccuracy, {kLate, kGood, kGood});
  EXPECT_EQ(summarise(result)[0].standing, Standing::kLevel);
  const auto sentences = conclusions(result);
  ASSERT_EQ(sentences.size(), 3u);
  EXPECT_EQ(sentences[1], "d_k = 64, c = 1 (none): ends with 99.7 % of held-out answers right (median of 3 seeds, 99.5 "
                          "% to 99.9 %), at a learning "
                          "rate of 0.01. With its rate tuned it is level with c = 1/√d_k at the end; it reaches 99.0 % "
                          "after 300 steps, 1.5 "
                          "times as many as the other.");
  EXPECT_NE(
      sentences[2].find("level with c = 1/√d_k at the end; it reaches 99.0 % after 200 steps, as soon as the other."),
      std::string::npos)
      << sentences[2];
}

// The same numbers the other way round: the conclusion turns round with them.
TEST(Conclusions, AheadIsSaid) {
  const auto result = result_of(Measure::kAccuracy, {kGood, kBad});
  EXPECT_EQ(summarise(result)[0].standing, Standing::kAhead);
  const auto sentences = conclusions(result);
  EXPECT_NE(sentences[0].find("c = 1/√d_k: ends with 30.0 %"), std::string::npos) << sentences[0];
  EXPECT_NE(sentences[1].find("That is ahead of c = 1/√d_k by 69.8 points; it reaches 99.0 % after 200 steps."),
            std::string::npos)
      << sentences[1];
}

TEST(Conclusions, OverlapShowsNothing) {
  const auto wide = accuracies({{0.2f}, {0.5f}, {0.9985f}});
  const auto result = result_of(Measure::kAccuracy, {wide, kGood});
  EXPECT_EQ(summarise(result)[0].standing, Standing::kUnclear);
  EXPECT_NE(
      conclusions(result)[1].find("Its median is worse than that of c = 1/√d_k by 49.8 points, but seeds overlap"),
      std::string::npos);
}

// Swapping two rules' results swaps their standing, for every pair of the made-up results.
TEST(Conclusions, StandingIsFair) {
  const auto opposite = [](Standing s) {
    return s == Standing::kAhead ? Standing::kBehind : s == Standing::kBehind ? Standing::kAhead : s;
  };
  for (const auto& a : {kGood, kBad, kLate})
    for (const auto& b : {kGood, kBad, kLate})
      EXPECT_EQ(summarise(result_of(Measure::kAccuracy, {a, b}))[0].standing,
                opposite(summarise(result_of(Measure::kAccuracy, {b, a}))[0].standing));
}

TEST(Conclusions, OfLosses) {
  const auto good = losses({{0.9f, 0.52f, 0.5f}, {0.8f, 0.6f, 0.49f}, {0.7f, 0.5f, 0.51f}});
  const auto bad = losses({{1, 0.8f, 0.7f}, {1, 0.8f, 0.6f}, {1, 0.7f, 0.64f}});
  const auto behind = conclusions(result_of(Measure::kLoss, {bad, good}));
  EXPECT_EQ(behind[0], "d_k = 64, c = 1/√d_k: ends at a held-out loss of 0.500 nats (median of 3 seeds, 0.490 to "
                       "0.510), at a learning rate "
                       "of 0.01; it reaches a loss of 0.525 after 200 steps.");
  EXPECT_EQ(
      behind[1],
      "d_k = 64, c = 1 (none): ends at a held-out loss of 0.640 nats (median of 3 seeds, 0.600 to 0.700), at a "
      "learning rate of "
      "0.01. That is behind c = 1/√d_k by 0.140 nats, with its rate tuned; it does not reach a loss of 0.525 in 300 "
      "steps.");
  const auto ahead = conclusions(result_of(Measure::kLoss, {good, bad}));
  EXPECT_NE(ahead[1].find("That is ahead of c = 1/√d_k by 0.140 nats; it reaches a loss of 0.672 after 200 steps"),
            std::string::npos)
      << ahead[1];
}

TEST(Conclusions, DivergedRunsCountAsFailed) {
  auto runs = kGood;
  runs[0].outcome = runs[1].outcome = Outcome::kDiverged;
  const auto result = result_of(Measure::kAccuracy, {runs, kGood});
  const auto all = summarise(result);
  EXPECT_EQ(all[0].diverged, 2);
  EXPECT_EQ(all[0].median, 0);
  EXPECT_EQ(all[0].standing, Standing::kUnclear);  // one seed was as good
  EXPECT_NE(conclusions(result)[1].find("; 2 of its runs diverged."), std::string::npos);

  auto lost = losses({{1, 0.8f, 0.7f}, {1, 0.8f, kNan}, {kNan}});
  EXPECT_EQ(summarise(result_of(Measure::kLoss, {lost, losses({{0.5f}, {0.5f}, {0.5f}})}))[0].standing,
            Standing::kBehind);
}

TEST(Conclusions, UnfinishedSaysNothing) {
  auto half = kGood;
  half[2].outcome = Outcome::kStopped;
  EXPECT_EQ(conclusions(result_of(Measure::kAccuracy, {half, kGood}))[1],
            "d_k = 64, c = 1 (none): not finished, so nothing is said about it.");
  const auto without = conclusions(result_of(Measure::kAccuracy, {kBad, half}));
  EXPECT_NE(without[0].find("What it is to be compared with is not finished."), std::string::npos);
  EXPECT_EQ(without[1], "d_k = 64, c = 1/√d_k: not finished, so nothing is said about it.");
  TrainResult nothing;
  nothing.rules = {{Scale::none(), 64, {}, {}, {}}};
  EXPECT_EQ(conclusions(nothing)[0], "d_k = 64, c = 1 (none): not finished, so nothing is said about it.");
  EXPECT_TRUE(conclusions({}).empty());
}

// With one rate nothing was tuned, and no sentence may say so.
TEST(Conclusions, OneRateIsNotTuned) {
  for (const auto& runs : {kBad, kGood, kLate}) {
    auto result = result_of(Measure::kAccuracy, {runs, kGood});
    EXPECT_NE(conclusions(result)[1].find("ith its rate tuned"), std::string::npos) << conclusions(result)[1];
    result.options.learning_rates = {0.01};
    for (RuleRuns& rule : result.rules) rule.best = 0;
    EXPECT_EQ(conclusions(result)[1].find("tuned"), std::string::npos) << conclusions(result)[1];
    EXPECT_EQ(conclusions(result)[1].find("tried"), std::string::npos) << conclusions(result)[1];
  }
}

// Each rule has its own sentence; the list has them all.
TEST(Conclusions, EachRuleHasItsOwn) {
  const auto result = result_of(Measure::kAccuracy, {kBad, kGood, kLate});
  const auto all = summarise(result);
  EXPECT_EQ(conclusions(result), (std::vector<std::string>{all[1].conclusion, all[0].conclusion, all[2].conclusion}));
  for (const RuleSummary& s : all) EXPECT_NE(s.conclusion.find("c = " + s.rule + ":"), std::string::npos);
}

TEST(Conclusions, ARateAtTheEdgeIsSaid) {
  auto result = result_of(Measure::kAccuracy, {kBad, kGood});
  result.rules[0].best = 2;
  result.rules[1].best = 0;
  const auto sentences = conclusions(result);
  EXPECT_NE(sentences[0].find("Its best rate is the smallest tried: one beyond may do better."), std::string::npos);
  EXPECT_NE(sentences[1].find("Its best rate is the largest tried: one beyond may do better."), std::string::npos);
  result.options.learning_rates = {0.01};
  result.rules[0].best = result.rules[1].best = 0;
  for (const std::string& sentence : conclusions(result)) EXPECT_EQ(sentence.find("tried"), std::string::npos);
}

// Without 1/√d_k the best is what the others are measured by; each d_k is by itself.
TEST(Conclusions, AnotherReference) {
  auto result = result_of(Measure::kAccuracy, {kBad, kGood, kLate});
  result.rules.erase(result.rules.begin() + 1);
  auto other = result.rules;
  other[0].dk = other[1].dk = 16;
  std::swap(other[0].runs, other[1].runs);
  result.rules.insert(result.rules.end(), other.begin(), other.end());
  const auto all = summarise(result);
  EXPECT_EQ(all[0].standing, Standing::kBehind);
  EXPECT_EQ(all[1].standing, Standing::kReference);
  EXPECT_EQ(all[2].standing, Standing::kReference);
  EXPECT_EQ(all[3].standing, Standing::kBehind);
  EXPECT_EQ(conclusions(result).size(), 4u);
}

}  // namespace
}  // namespace rootdk::lab
