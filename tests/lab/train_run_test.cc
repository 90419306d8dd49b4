// One run: the same bits at any thread count, taken up where it was stopped, logged truly, and refused when it does not
// fit.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lab/memory_store.h"
#include "lab/train/head_trace.h"
#include "rootdk/attention.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/run.h"
#include "rootdk/nn/init.h"
#include "support/message.h"

namespace rootdk::lab::testing {
namespace {

using test::message_of;

const RecallTask& small_task() {
  static const RecallTask task({.pairs = 3, .asked = 3, .keys = 6, .values = 6});
  return task;
}

RunOptions small_options() {
  RunOptions o;
  o.model.width = 16, o.model.layers = 2, o.model.heads = 2, o.model.dim_qk = 8;
  o.steps = 12, o.sequences = 16, o.evaluate_every = 5, o.evaluation_batches = 2, o.checkpoint_every = 4;
  o.seed = 9;
  return o;
}

void expect_same(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.evaluations, b.evaluations);
}

TEST(Train, SameBitsAtAnyThreadCount) {
  RunOptions o = small_options();
  o.sequences = 40;  // several chunks of rows
  o.steps = 4;
  const int before = omp_get_max_threads();
  RunResult first;
  Checkpoint weights;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    MemoryStore store;
    const RunResult result = train(small_task(), o, {.store = &store, .checkpoint_path = "run"});
    if (threads == 1) first = result, weights = store.saved.at("run");
    expect_same(result, first);
    EXPECT_TRUE(same(store.saved.at("run"), weights)) << threads;
  }
  omp_set_num_threads(before);
  EXPECT_EQ(first.outcome, Outcome::kFinished);
}

// Wherever it is stopped, and however often.
TEST(Train, GoesOnToTheSameBits) {
  MemoryStore whole_store;
  const RunResult whole = train(small_task(), small_options(), {.store = &whole_store, .checkpoint_path = "run"});
  ASSERT_EQ(whole.steps.size(), 12u);
  ASSERT_EQ(whole.evaluations.size(), 3u);  // after 5, 10 and 12
  for (const int each : {1, 3, 5, 12, 100}) {
    MemoryStore store;
    RunResult result;
    int parts = 0;
    for (; result.outcome != Outcome::kFinished && parts < 20; ++parts) {
      int left = each;
      RunObserver observer = {.store = &store, .checkpoint_path = "run", .resume = true};
      observer.stop = [&] { return left-- == 0; };
      result = train(small_task(), small_options(), observer);
    }
    EXPECT_EQ(parts, std::max(1, (12 + each - 1) / each));
    expect_same(result, whole);
    EXPECT_TRUE(same(store.saved.at("run"), whole_store.saved.at("run"))) << each;
  }
}

// A process that dies loses what came after its last checkpoint, and nothing else.
TEST(Train, GoesOnFromAnOlderCheckpoint) {
  MemoryStore store;
  struct Died {};
  RunObserver observer = {.store = &store, .checkpoint_path = "run", .resume = true};
  observer.on_step = [](const StepTrace& trace) {
    if (trace.step == 7) throw Died();
  };
  EXPECT_THROW(train(small_task(), small_options(), observer), Died);
  EXPECT_EQ(store.saves, 1);  // after 4
  observer.on_step = {};
  expect_same(train(small_task(), small_options(), observer), train(small_task(), small_options()));
}

TEST(Train, AFinishedRunIsNotSavedAgain) {
  MemoryStore store;
  const RunObserver observer = {.store = &store, .checkpoint_path = "run", .resume = true};
  const RunResult first = train(small_task(), small_options(), observer);
  const int saves = store.saves;
  expect_same(train(small_task(), small_options(), observer), first);
  EXPECT_EQ(store.saves, saves);
}

TEST(Train, StepByStepIsTheSameRun) {
  const RunResult whole = train(small_task(), small_options());
  TrainingRun run(small_task(), small_options());
  EXPECT_EQ(run.result().outcome, Outcome::kStopped);
  for (int i = 0; i < 7; ++i) run.step();
  EXPECT_EQ(run.steps_done(), 7);
  EXPECT_FALSE(run.ended());

  // A checkpoint says which run it is of.
  const Checkpoint checkpoint = run.checkpoint();
  TrainingRun other(small_task(), options_of(checkpoint, "it"));
  other.restore(checkpoint, "it");
  for (TrainingRun* one : {&run, &other}) {
    while (!one->ended()) one->step();
    expect_same(one->result(), whole);
    one->step();
    expect_same(one->result(), whole);
  }
  EXPECT_TRUE(same(run.checkpoint(), other.checkpoint()));

  RunOptions far = small_options();
  far.scale = Scale::parse("unit_variance(0.1, 3)*yarn(4)"), far.learning_rate = 1.0 / 3, far.clip_norm.reset(),
  far.model.rotary_base = 1e5 / 3;
  far.optimiser.weight_decay = 0, far.seed = 0xFFFFFFFFFFFFFFFF;
  TrainingRun strange(small_task(), far), again(small_task(), options_of(strange.checkpoint(), "it"));
  again.restore(strange.checkpoint(), "it");  // refuses unless every option is as it was
  Checkpoint spoilt = checkpoint;
  spoilt.metadata["steps"] = "many";
  EXPECT_EQ(message_of([&] { options_of(spoilt, "it"); }), "it: steps is many, but a number is wanted");
  spoilt.metadata.erase("seed");
  EXPECT_EQ(message_of([&] { options_of(spoilt, "it"); }),
            "it: its metadata has no seed; not a checkpoint of rootdk's training?");
}

TEST(Train, CheckpointsAreNamedAsLlamas) {
  MemoryStore store;
  train(small_task(), small_options(), {.store = &store, .checkpoint_path = "run"});
  EXPECT_EQ(store.saves, 3);
  const Checkpoint& c = store.saved.at("run");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const CheckpointTensor& t : c.tensors) {
    std::int64_t count = 1;
    for (const std::int64_t extent : t.shape) count *= extent;
    EXPECT_EQ(static_cast<std::int64_t>(t.values.size()), count) << t.name;
    EXPECT_TRUE(shapes.emplace(t.name, t.shape).second) << t.name;
  }
  using Extents = std::vector<std::int64_t>;
  EXPECT_EQ(shapes.at("model.embed_tokens.weight"), (Extents{12, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.weight"), (Extents{16, 16}));
  EXPECT_EQ(shapes.at("model.layers.0.input_layernorm.weight"), (Extents{16}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (Extents{12, 16}));
  EXPECT_EQ(shapes.at("train.heads"), (Extents{12, 2, 2, 4}));
  EXPECT_EQ(c.metadata.at("head_dim"), "8");
  EXPECT_EQ(c.metadata.at("num_attention_heads"), "2");
  EXPECT_EQ(c.metadata.at("scale"), "sqrt_dk");
}

TEST(Train, RefusesTheCheckpointOfAnotherRun) {
  MemoryStore store;
  const RunObserver observer = {.store = &store, .checkpoint_path = "run", .resume = true};
  train(small_task(), small_options(), observer);
  const Checkpoint good = store.saved.at("run");

  RunOptions other = small_options();
  other.scale = Scale::none();
  EXPECT_EQ(message_of([&] { train(small_task(), other, observer); }), "run: scale is sqrt_dk, but this run has none");
  other = small_options();
  other.learning_rate = 0.1;
  EXPECT_EQ(message_of([&] { train(small_task(), other, observer); }),
            "run: learning_rate is 0.003, but this run has 0.1");
  const RecallTask other_task({.pairs = 3, .asked = 2, .keys = 6, .values = 6});
  EXPECT_EQ(message_of([&] { train(other_task, small_options(), observer); }),
            "run: task is recall: 3 pairs, 3 asked, 6 keys, 6 values, but this run has recall: 3 pairs, 2 asked, 6 "
            "keys, 6 values");

  const auto spoilt = [&](const std::function<void(Checkpoint&)>& spoil) {
    store.saved["run"] = good;
    spoil(store.saved["run"]);
    return message_of([&] { train(small_task(), small_options(), observer); });
  };
  EXPECT_EQ(spoilt([](Checkpoint& c) { c.metadata.clear(); }),
            "run: its metadata has no beta1; not a checkpoint of rootdk's training?");
  EXPECT_EQ(spoilt([](Checkpoint& c) { c.tensors.erase(c.tensors.begin()); }), "run: has no model.embed_tokens.weight");
  EXPECT_EQ(spoilt([](Checkpoint& c) {
              c.tensors[0].shape = {16, 12};
            }),
            "run: model.embed_tokens.weight is [16, 12], but [12, 16] is wanted");
  EXPECT_EQ(spoilt([](Checkpoint& c) { c.tensors[0].values.pop_back(); }),
            "run: model.embed_tokens.weight is [12, 16], but [12, 16] is wanted");
  const auto find = [](Checkpoint& c, const char* name) -> CheckpointTensor& {
    return *std::find_if(c.tensors.begin(), c.tensors.end(), [&](const auto& t) { return t.name == name; });
  };
  EXPECT_EQ(spoilt([&](Checkpoint& c) {
              find(c, "train.steps") = {"train.steps", {99, 3}, std::vector<float>(297)};
            }),
            "run: 99 steps done, but the run has 12");
  EXPECT_EQ(spoilt([&](Checkpoint& c) {
              find(c, "train.steps") = {"train.steps", {-1, 3}, {}};
            }),
            "run: train.steps is [-1, 3], but [0, 3] is wanted");
  EXPECT_EQ(spoilt([&](Checkpoint& c) { find(c, "train.adamw.v").values.clear(); }).substr(0, 23),
            "run: train.adamw.v is [");
}

TEST(Train, StopsAndSaysSo) {
  std::vector<StepTrace> heard;
  RunObserver observer;
  observer.on_step = [&](const StepTrace& trace) { heard.push_back(trace); };
  observer.stop = [&] { return heard.size() == 3; };
  const RunResult result = train(small_task(), small_options(), observer);
  EXPECT_EQ(result.outcome, Outcome::kStopped);
  EXPECT_EQ(result.steps, heard);
  EXPECT_TRUE(result.evaluations.empty());
}

// A rate that throws the weights out of f32's range: the run ends, and the log with it.
TEST(Train, EndsWhenItDiverges) {
  RunOptions o = small_options();
  o.learning_rate = 1e30;
  o.warmup_share = 0;
  MemoryStore store;
  const RunResult result = train(small_task(), o, {.store = &store, .checkpoint_path = "run"});
  EXPECT_EQ(result.outcome, Outcome::kDiverged);
  ASSERT_LT(result.steps.size(), 12u);
  EXPECT_FALSE(result.steps.back().finite());
  for (std::size_t i = 0; i + 1 < result.steps.size(); ++i) EXPECT_TRUE(result.steps[i].finite());
  EXPECT_EQ(store.saves, 0);
}

TEST(Train, LearningRateRisesAndFalls) {
  RunOptions o;
  o.learning_rate = 2, o.steps = 100, o.warmup_share = 0.1, o.final_rate_share = 0.25;
  EXPECT_EQ(learning_rate_at(o, 5), 1);
  EXPECT_EQ(learning_rate_at(o, 10), 2);
  EXPECT_NEAR(learning_rate_at(o, 55), 2 * (0.25 + 0.75 / 2), 1e-15);  // half-way down; a few roundings
  EXPECT_NEAR(learning_rate_at(o, 100), 0.5, 1e-15);
  for (std::int64_t t = 1; t < 100; ++t) EXPECT_EQ(learning_rate_at(o, t + 1) > learning_rate_at(o, t), t < 10) << t;
  o.warmup_share = 1;
  EXPECT_EQ(learning_rate_at(o, 100), 2);
}

// σ, entropy, p_max and the largest score by their definitions, in double, over two sequences and two heads. The kernel
// works in f32 on scores of up to about |s| = 3: relative errors of a few u·(d + |s|) each, 2⁻²⁴·40 with room for sums
// over 9 keys.
TEST(HeadTrace, IsWhatItIsCalled) {
  const std::int64_t batch = 2, heads = 2, length = 9, d = 8;
  std::vector<float> q(static_cast<std::size_t>(batch * heads * length * d)), k(q.size()), v(q.size()), o(q.size());
  nn::fill(q, nn::Init::normal(1), {}, {1, 1});
  nn::fill(k, nn::Init::normal(1), {}, {1, 2});
  nn::fill(v, nn::Init::normal(1), {}, {1, 3});
  const Extents shape = {batch, heads, length, d};
  Problem problem;
  problem.mask.causal = true;
  problem.stats = StatsLevel::kFull;
  const auto traces =
      head_traces(forward(problem, {tensor(q.data(), shape), tensor(k.data(), shape), tensor(v.data(), shape)},
                          {.o = tensor(o.data(), shape)}));
  ASSERT_EQ(traces.size(), 2u);
  for (std::int64_t h = 0; h < heads; ++h) {
    double within = 0, degrees = 0, entropy = 0, p_max = 0, rows = 0, largest = -1e9;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < length; ++i) {
        std::vector<double> s;
        for (std::int64_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (std::int64_t c = 0; c < d; ++c)
            dot += static_cast<double>(q[static_cast<std::size_t>(((b * heads + h) * length + i) * d + c)]) *
                   static_cast<double>(k[static_cast<std::size_t>(((b * heads + h) * length + j) * d + c)]);
          s.push_back(dot / std::sqrt(static_cast<double>(d)));
        }
        double mean = 0, sum = 0;
        for (const double x : s)
          mean += x / static_cast<double>(s.size()), sum += std::exp(x), largest = std::max(largest, x);
        for (const double x : s) within += (x - mean) * (x - mean);
        degrees += static_cast<double>(s.size()) - 1;
        if (s.size() < 2) continue;  // a row with one key says nothing
        ++rows;
        double top = 0;
        for (const double x : s)
          entropy -= std::exp(x) / sum * std::log(std::exp(x) / sum), top = std::max(top, std::exp(x) / sum);
        p_max += top;
      }
    const HeadTrace& t = traces[static_cast<std::size_t>(h)];
    const double slack = 40 * 0x1p-24;
    EXPECT_NEAR(t.sigma, std::sqrt(within / degrees), slack * 3);
    EXPECT_NEAR(t.entropy, entropy / rows, slack * 3);
    EXPECT_NEAR(t.p_max, p_max / rows, slack);
    EXPECT_NEAR(t.score_max, largest, slack * 3);
  }
}

// Short of the default size, which the long test trains: three pairs, and well on the way to all answers. Guessing
// among a sequence's own three values is right in 1/3 + a little (values may repeat) of cases.
TEST(Train, LearnsToRecall) {
  RunOptions o = small_options();
  o.model.width = 32, o.model.heads = 1, o.model.dim_qk = 16;
  o.steps = 150, o.sequences = 32, o.learning_rate = 0.01, o.evaluate_every = 150;
  const RunResult result = train(small_task(), o);
  EXPECT_LT(result.steps.front().accuracy, 0.4);
  EXPECT_GT(result.evaluations.back().accuracy, 0.8);
}

TEST(Train, RefusesWhatDoesNotFit) {
  const auto with = [](auto change) {
    RunOptions o = small_options();
    change(o);
    return message_of([&] { train(small_task(), o); });
  };
  EXPECT_EQ(with([](auto& o) { o.learning_rate = 0; }), "learning_rate: 0, but a finite positive number is wanted");
  EXPECT_EQ(with([](auto& o) { o.steps = 0; }), "steps: 0, but 1 to 16777216 is wanted");
  EXPECT_EQ(with([](auto& o) { o.warmup_share = 1.5; }), "warmup_share: 1.5, but 0 to 1 is wanted");
  EXPECT_EQ(with([](auto& o) { o.model.dim_qk = 9; }), "dim_qk: 9, but an even number of at least 2 is wanted");
  EXPECT_EQ(message_of([] { train(small_task(), small_options(), {.resume = true}); }),
            "resume: wanted, but there is no store to load from");
  MemoryStore store;
  EXPECT_EQ(message_of([&] { train(small_task(), small_options(), {.store = &store}); }),
            "checkpoint_path: empty, but there is a store to save to");
}

}  // namespace
}  // namespace rootdk::lab::testing
