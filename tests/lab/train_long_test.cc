// The default experiment, whole: minutes. Prints what it found.
#include <gtest/gtest.h>
#include <omp.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "rootdk/lab/train/conclusions.h"
#include "rootdk/lab/train/grammar.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/text.h"

namespace rootdk::lab {
namespace {

double seconds_of(const auto& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(const TrainResult& result, double seconds) {
  std::printf("%s: %.0f s on %d threads\n", result.task.c_str(), seconds, omp_get_max_threads());
  for (const RuleRuns& rule : result.rules) {
    const auto line = [&](const char* what, const RunResult& run) {
      std::printf("%-12s d_k %-4lld %-7s rate %-6g seed %llu:", rule.scale.describe().c_str(),
                  static_cast<long long>(rule.dk), what, run.options.learning_rate,
                  static_cast<unsigned long long>(run.options.seed));
      for (std::size_t i = 0; i < run.evaluations.size(); i += 2)
        std::printf(" %.3f", static_cast<double>(result.measure == Measure::kAccuracy ? run.evaluations[i].accuracy
                                                                                      : run.evaluations[i].loss));
      std::printf("\n");
    };
    for (const RunResult& run : rule.tuning) line("tuning", run);
    for (const RunResult& run : rule.runs) line("counted", run);
  }
  for (const std::string& sentence : conclusions(result)) std::printf("%s\n", sentence.c_str());
}

// What the default size takes is printed: three minutes and two on two cores, where nothing else runs.
TEST(TrainLong, RecallIsLearnedUnderTheSquareRoot) {
  TrainResult result;
  const double seconds = seconds_of([&] { result = train_rules(RecallTask()); });
  print(result, seconds);
  EXPECT_TRUE(result.complete);
  for (const RuleRuns& rule : result.rules)
    for (const RunResult& run : rule.runs)
      EXPECT_TRUE(rule.scale.name() != "sqrt_dk" || run.evaluations.back().accuracy > 0.99f);
}

// Of the characters by themselves: the loss of knowing only how often each comes.
double entropy_of(const std::string& text) {
  std::map<char, double> counts;
  for (const char c : text) ++counts[c];
  double entropy = 0;
  for (const auto& entry : counts) {
    const double share = entry.second / static_cast<double>(text.size());
    entropy -= share * std::log(share);
  }
  return entropy;
}

TEST(TrainLong, TextIsLearned) {
  TrainResult result;
  const std::string text = grammar_text(1 << 16);
  const double seconds = seconds_of([&] { result = train_rules(TextTask(text), text_defaults()); });
  print(result, seconds);
  EXPECT_TRUE(result.complete);
  for (const RuleRuns& rule : result.rules)
    for (const RunResult& run : rule.runs)
      EXPECT_LT(static_cast<double>(run.evaluations.back().loss), entropy_of(text) / 2);
}

}  // namespace
}  // namespace rootdk::lab
