// Several rules side by side: the same batches for each, the best rate for each, nothing that depends on how many run
// at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "lab/memory_store.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/lab/train/recall.h"
#include "support/message.h"

namespace rootdk::lab::testing {
namespace {

using test::message_of;

/// Recall that writes down what is drawn from it.
class Watched final : public Task {
 public:
  std::string description() const override { return task_.description(); }
  std::int64_t vocabulary() const override { return task_.vocabulary(); }
  std::int64_t length() const override { return task_.length(); }
  Measure measure() const override { return task_.measure(); }
  void draw(Split split, std::uint64_t seed, std::uint64_t index, std::int64_t sequences, Batch& batch) const override {
    task_.draw(split, seed, index, sequences, batch);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (split == Split::kTrain) ++drawn[{seed, index}];
  }

  mutable std::map<std::pair<std::uint64_t, std::uint64_t>, int> drawn;

 private:
  RecallTask task_{{.pairs = 3, .asked = 3, .keys = 6, .values = 6}};
  mutable std::mutex mutex_;
};

TrainOptions small_options() {
  TrainOptions o;
  o.rules = {Scale::none(), Scale::inv_sqrt_dk()};
  o.dk = {4, 8};
  o.learning_rates = {0.01, 0.1};
  o.seeds = 2;
  o.run.model.width = 8, o.run.model.layers = 1;
  o.run.steps = 3, o.run.sequences = 4, o.run.evaluate_every = 2, o.run.evaluation_batches = 1,
  o.run.checkpoint_every = 2;
  o.run.seed = 20;
  return o;
}

void expect_same(const TrainResult& a, const TrainResult& b) {
  ASSERT_EQ(a.rules.size(), b.rules.size());
  EXPECT_EQ(a.complete, b.complete);
  const auto expect_same_runs = [](const std::vector<RunResult>& x, const std::vector<RunResult>& y) {
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(x[i].outcome, y[i].outcome);
      EXPECT_EQ(x[i].steps, y[i].steps);
      EXPECT_EQ(x[i].evaluations, y[i].evaluations);
    }
  };
  for (std::size_t r = 0; r < a.rules.size(); ++r) {
    EXPECT_EQ(a.rules[r].best, b.rules[r].best);
    expect_same_runs(a.rules[r].tuning, b.rules[r].tuning);
    expect_same_runs(a.rules[r].runs, b.rules[r].runs);
  }
}

TEST(TrainRules, DoesNotDependOnRunsAtOnce) {
  TrainOptions o = small_options();
  o.parallel_runs = 1;
  const TrainResult one = train_rules(Watched(), o);
  EXPECT_TRUE(one.complete);
  for (const int at_once : {0, 3}) {
    o.parallel_runs = at_once;
    expect_same(train_rules(Watched(), o), one);
  }
}

// 2 d_k × 2 rules: the tuning seed for each of 2 rates, the two after it once each; 3 batches a run.
TEST(TrainRules, EveryRuleSeesTheSameBatches) {
  const Watched task;
  const TrainResult result = train_rules(task, small_options());
  std::map<std::pair<std::uint64_t, std::uint64_t>, int> want;
  for (std::uint64_t index = 0; index < 3; ++index) want[{20, index}] = 8, want[{21, index}] = 4, want[{22, index}] = 4;
  EXPECT_EQ(task.drawn, want);
  ASSERT_EQ(result.rules.size(), 4u);
  for (const RuleRuns& rule : result.rules)
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(rule.runs[s].options.seed, 21 + s);
      EXPECT_EQ(rule.runs[s].options.model.dim_qk, rule.dk);
      EXPECT_EQ(rule.runs[s].options.scale.name(), rule.scale.name());
      EXPECT_EQ(rule.runs[s].options.learning_rate, small_options().learning_rates[*rule.best]);
    }
}

TEST(TrainRules, TakesTheRateOfLeastLoss) {
  TrainOptions o = small_options();
  o.learning_rates = {1e-6, 0.01, 1e30};  // too small to move; fine; too large to live
  o.run.steps = 20;
  o.run.warmup_share = 0;
  const TrainResult result = train_rules(Watched(), o);
  for (const RuleRuns& rule : result.rules) {
    EXPECT_EQ(rule.best, 1u);
    EXPECT_LT(rule.tuning[1].evaluations.back().loss, rule.tuning[0].evaluations.back().loss);
    EXPECT_EQ(rule.tuning[2].outcome, Outcome::kDiverged);
  }
  EXPECT_TRUE(result.complete);
}

TEST(TrainRules, OneRateNeedsNoTuning) {
  TrainOptions o = small_options();
  o.learning_rates = {0.01};
  std::int64_t steps = 0;
  const TrainResult result = train_rules(Watched(), o, {.on_step = [&](const RunLabel& label, const StepTrace&) {
                                           EXPECT_FALSE(label.tuning);
                                           ++steps;
                                         }});
  EXPECT_EQ(steps, total_steps(o));
  EXPECT_EQ(steps, 2 * 2 * 2 * 3);
  EXPECT_TRUE(result.rules[0].tuning.empty());
  EXPECT_TRUE(result.complete);
}

// Stopped after any number of steps: what is there is the beginning of the whole; and resuming it ends in the whole.
TEST(TrainRules, StopsAndGoesOn) {
  const TrainResult whole = train_rules(Watched(), small_options());
  for (const int after : {0, 1, 10, 25, 40}) {
    MemoryStore store;
    std::atomic<int> steps = 0;
    TrainObserver observer;
    observer.store = &store;
    observer.folder = "runs";
    observer.resume = true;
    observer.on_step = [&](const RunLabel&, const StepTrace&) { ++steps; };
    observer.stop = [&] { return steps >= after; };
    const TrainResult stopped = train_rules(Watched(), small_options(), observer);
    EXPECT_FALSE(stopped.complete);
    for (std::size_t r = 0; r < whole.rules.size(); ++r)
      for (std::size_t t = 0; t < 2; ++t) {
        const auto& part = stopped.rules[r].tuning[t].steps;
        const auto& all = whole.rules[r].tuning[t].steps;
        ASSERT_LE(part.size(), all.size());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
      }
    observer.stop = {};
    expect_same(train_rules(Watched(), small_options(), observer), whole);
    EXPECT_EQ(steps, total_steps(small_options()));  // none was made twice
  }
}

TEST(TrainRules, ReportsEveryRunByName) {
  std::set<std::string> names;
  MemoryStore store;
  TrainObserver observer;
  observer.store = &store;
  observer.folder = "runs";
  observer.on_run = [&](const RunLabel& label, const RunResult& run) {
    EXPECT_EQ(run.outcome, Outcome::kFinished);
    EXPECT_TRUE(names.insert(label.name()).second);
    EXPECT_EQ(label.tuning, label.seed == 20);
  };
  train_rules(Watched(), small_options(), observer);
  EXPECT_EQ(names.size(), 2u * 2 * (2 + 2));
  EXPECT_EQ(names.count("none-dk4-lr0.01-seed20"), 1u);
  EXPECT_EQ(store.saved.size(), names.size());
  for (const std::string& name : names) EXPECT_EQ(store.saved.count("runs/" + name + ".safetensors"), 1u);
  EXPECT_EQ((RunLabel{"dk(8)*ssmax(0.43, 1)", 64, 1e-3, 2, false}.name()), "dk_8__ssmax_0.43__1_-dk64-lr0.001-seed2");
}

TEST(TrainRules, AFailureEndsItAll) {
  struct Full {};
  TrainObserver observer;
  observer.on_evaluation = [](const RunLabel&, const Evaluation&) { throw Full(); };
  EXPECT_THROW(train_rules(Watched(), small_options(), observer), Full);
}

TEST(TrainRules, RefusesWhatDoesNotFit) {
  const auto with = [](auto change) {
    TrainOptions o = small_options();
    change(o);
    return message_of([&] { train_rules(Watched(), o); });
  };
  EXPECT_EQ(with([](auto& o) { o.rules.clear(); }), "rules: none given, but at least one is wanted");
  EXPECT_EQ(with([](auto& o) { o.rules.push_back(Scale::none()); }), "rules: none given twice");
  EXPECT_EQ(with([](auto& o) { o.dk = {8, 8}; }), "dk: 8 given twice");
  EXPECT_EQ(with([](auto& o) {
              o.learning_rates = {0.1, 0.01};
            }),
            "learning rates: 0.1, 0.01, but ascending ones are wanted");
  EXPECT_EQ(with([](auto& o) { o.seeds = 0; }), "seeds: 0, but 1 to 1000 is wanted");
  EXPECT_EQ(with([](auto& o) { o.run.steps = 0; }), "steps: 0, but 1 to 16777216 is wanted");
}

}  // namespace
}  // namespace rootdk::lab::testing
