// What experiments say while they run: shares that only grow, and the names of their parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lab/memory_store.h"
#include "rootdk/lab.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/lab/train/recall.h"

namespace rootdk::lab::testing {
namespace {

/// Listens, and holds what it hears against what is promised.
struct Listener {
  std::vector<std::pair<double, std::string>> heard;

  Watch watch() {
    Watch out;
    out.progress = [this](double done, std::string_view what) { heard.emplace_back(done, what); };
    return out;
  }
  bool heard_of(const std::string& what) const {
    return std::any_of(heard.begin(), heard.end(),
                       [&](const auto& one) { return one.second.find(what) != std::string::npos; });
  }
  void expect_whole() const {
    ASSERT_GE(heard.size(), 2u);
    EXPECT_EQ(heard.front().first, 0) << "as the first part begins";
    EXPECT_EQ(heard.back(), std::pair(1.0, std::string())) << "nothing comes after the last";
    for (std::size_t i = 0; i < heard.size(); ++i) {
      EXPECT_GE(heard[i].first, i == 0 ? 0 : heard[i - 1].first);
      EXPECT_LE(heard[i].first, 1);
      EXPECT_EQ(heard[i].second.empty(), i + 1 == heard.size()) << i;
    }
  }
};

TEST(Watch, HearsWhatRuns) {
  const auto expect = [](const auto& experiment, const std::vector<std::string>& parts) {
    Listener listener;
    experiment(listener.watch());
    listener.expect_whole();
    for (const std::string& part : parts) EXPECT_TRUE(listener.heard_of(part)) << part;
  };
  expect(
      [](const Watch& w) {
        measure_variance({.dk = {1, 4}, .pairs = 100'000}, w);
      },
      {"terms of a square", "normal, d_k up to 4", "student_t5, d_k up to 4"});
  expect(
      [](const Watch& w) {
        measure_phase({.dk = {2, 4}, .keys = {4, 8}, .queries = 4, .batches = 2}, w);
      },
      {"d_k 2, 4 keys", "d_k 4, 8 keys"});
  expect(
      [](const Watch& w) {
        measure_gradient({.dk = {2, 4}, .keys = 8, .queries = 4, .batches = 2}, w);
      },
      {"d_k 2, batch 1 of 2", "d_k 4, batch 2 of 2"});
  expect([](const Watch& w) { measure_precision({.dk = {4}, .keys = 8, .queries = 4}, w); },
         {"none in f64, d_k 4", "sqrt_dk in bf16, d_k 4"});
  expect([](const Watch& w) { measure_initialisation({.widths = {8}, .dk = {4}, .tokens = 4, .batches = 2}, w); },
         {"Xavier, square, width 8, d_k 4", "He, width 8, d_k 4"});
  expect(
      [](const Watch& w) {
        time_forward({.cases = {{1, 16, 8}}, .rounds = 2}, w);
      },
      {"round 1 of 2", "round 2 of 2"});
  const std::vector<float> x(4 * 4, 0.5f);
  WhatifOptions whatif;
  whatif.q = whatif.k = tensor(x.data(), {1, 1, 4, 4});
  expect([&](const Watch& w) { try_rules(whatif, w); }, {"none", "measured", "sqrt_dk*yarn(4)"});
}

// However large a part is, a wish to stop waits for no more than a batch of it.
TEST(Watch, StopsBetweenBatches) {
  const auto batches_until_stopped = [](const auto& experiment) {
    int asked = 0;
    Watch watch;
    watch.stop = [&] { return ++asked > 3; };
    EXPECT_FALSE(experiment(watch).complete);
    return asked;
  };
  constexpr std::int64_t kMany = 1000;
  EXPECT_EQ(batches_until_stopped([](const Watch& w) {
              return measure_phase({.dk = {2}, .keys = {4}, .queries = 4, .batches = kMany}, w);
            }),
            4);
  EXPECT_EQ(batches_until_stopped([](const Watch& w) {
              return measure_gradient({.dk = {2}, .keys = 4, .queries = 4, .batches = kMany}, w);
            }),
            4);
  EXPECT_EQ(batches_until_stopped([](const Watch& w) {
              return measure_initialisation({.widths = {8}, .dk = {4}, .tokens = 4, .batches = kMany}, w);
            }),
            4);
}

TrainOptions small_training() {
  TrainOptions o;
  o.rules = {Scale::none(), Scale::inv_sqrt_dk()};
  o.dk = {4, 64};
  o.learning_rates = {0.01, 0.1};
  o.seeds = 2;
  o.run.model.width = 8, o.run.model.layers = 1;
  o.run.steps = 4, o.run.sequences = 4, o.run.evaluate_every = 2, o.run.evaluation_batches = 1,
  o.run.checkpoint_every = 1;
  o.run.seed = 20;
  o.parallel_runs = 1;
  return o;
}

const RecallTask kTask({.pairs = 3, .asked = 3, .keys = 6, .values = 6});

TEST(Watch, HearsOfRuleRateSeedAndStep) {
  Listener listener;
  train_rules(kTask, small_training(), watched_by(listener.watch(), small_training()));
  for (const char* what :
       {"none, rate 0.01, seed 20, step 1/4, d_k 4, to find the rate", "sqrt_dk, rate 0.1, seed 20, step 4/4, d_k 64",
        "seed 21, step 2/4, d_k 64", "seed 22, step"})
    EXPECT_TRUE(listener.heard_of(what)) << what;
  EXPECT_FALSE(listener.heard_of("more")) << "one run at a time";
  for (std::size_t i = 1; i < listener.heard.size(); ++i)
    EXPECT_GE(listener.heard[i].first, listener.heard[i - 1].first);
  EXPECT_NEAR(listener.heard.back().first, 1, 1e-12);
  // The wider head takes longer: half of the runs that find the rate are not half of the work.
  const auto wide = std::find_if(listener.heard.begin(), listener.heard.end(),
                                 [](const auto& one) { return one.second.find("d_k 64") != std::string::npos; });
  EXPECT_LT(wide->first, 0.25);
  EXPECT_GT(wide->first, 0);
}

// Runs that go on at once: one of them is told, the first, until it has ended.
TEST(Watch, HearsOfOneRunAtATime) {
  Listener listener;
  const TrainObserver observer = watched_by(listener.watch(), small_training());
  const RunLabel one = {"none", 4, 0.01, 21, false}, other = {"sqrt_dk", 4, 0.1, 22, false};
  const auto hears = [&](const RunLabel& label, std::int64_t step) {
    StepTrace trace;
    trace.step = step;
    observer.on_step(label, trace);
    return listener.heard.back().second;
  };
  EXPECT_EQ(hears(one, 1), "none, rate 0.01, seed 21, step 1/4, d_k 4");
  EXPECT_EQ(hears(other, 1), "none, rate 0.01, seed 21, step 1/4, d_k 4, and 1 more");
  EXPECT_EQ(hears(other, 2), "none, rate 0.01, seed 21, step 1/4, d_k 4, and 1 more");
  EXPECT_EQ(hears(one, 2), "none, rate 0.01, seed 21, step 2/4, d_k 4, and 1 more");
  const double before = listener.heard.back().first;
  observer.on_run(one, {});  // it diverged
  EXPECT_EQ(listener.heard.back().second, "sqrt_dk, rate 0.1, seed 22, step 2/4, d_k 4");
  EXPECT_GT(listener.heard.back().first, before) << "there is less to do";
}

// Steps of an earlier process are no work of this one: the share that is done stays in step with the time.
TEST(Watch, ResumedTrainingCountsWhatIsLeft) {
  MemoryStore store;
  int steps = 0;
  TrainObserver first;
  first.store = &store, first.folder = "runs";
  first.on_step = [&](const RunLabel&, const StepTrace&) { ++steps; };
  first.stop = [&] { return steps >= 22; };  // five runs and a half
  train_rules(kTask, small_training(), first);
  Listener listener;
  TrainObserver second = watched_by(listener.watch(), small_training());
  second.store = &store, second.folder = "runs", second.resume = true;
  train_rules(kTask, small_training(), second);
  ASSERT_FALSE(listener.heard.empty());
  double largest_step = 0, last = 0;
  for (const auto& [done, what] : listener.heard) {
    largest_step = std::max(largest_step, done - last);
    last = done;
  }
  EXPECT_LT(largest_step, 0.1) << "nothing is counted that was done before";
  EXPECT_NEAR(listener.heard.back().first, 1, 1e-12);
  EXPECT_FALSE(listener.heard_of("step 1/4, d_k 4, to find the rate")) << "all of these had begun";
}

}  // namespace
}  // namespace rootdk::lab::testing
