// What experiments will take in memory, known before they begin: never less than what they cannot do without, more
// where a size is more, and refused by the name of what is too large. Peaks are measured in tests/app/memory_test.cc.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rootdk/lab.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/memory.h"
#include "support/message.h"

namespace rootdk::lab {
namespace {

using test::message_of;

std::int64_t size(std::int64_t most, std::int64_t least = 1) {
  const auto exponent = *rc::gen::inRange(0, 21);
  return std::clamp((*rc::gen::inRange<std::int64_t>(1, 4)) << exponent, least, most);
}

double real(std::int64_t x) { return static_cast<double>(x); }

/// memory_of does not fall when a size doubles, and blames only what is larger than usual. A call's workspace may:
/// another kernel takes it, or other tiles, which matters where the workspace is most of all.
template <class Options>
void expect_grows(const Options& options, std::int64_t Options::*member, std::int64_t most) {
  Options more = options;
  more.*member = std::min(most, 2 * (options.*member));
  constexpr std::uint64_t kOfKernels = 1 << 20;
  RC_ASSERT(2 * memory_of(more).bytes + kOfKernels >= memory_of(options).bytes);
}

RC_GTEST_PROP(Need, OfPhase, ()) {
  PhaseOptions o;
  o.dk = {size(1 << 16)}, o.keys = {size(1 << 20, 2)}, o.queries = size(1 << 16), o.batches = size(1 << 16, 2);
  const MemoryNeed need = memory_of(o);
  RC_ASSERT(real(need.bytes) >= 4 * real(o.dk[0]) * real(o.keys[0] + o.queries));
  expect_grows(o, &PhaseOptions::queries, 1 << 16);
  const std::vector<std::string> names = {"", "dk", "keys", "queries", "batches", "rules"};
  RC_ASSERT(std::count(names.begin(), names.end(), need.argument) == 1);
  if (need.argument == "queries") RC_ASSERT(o.queries > PhaseOptions().queries);
}

RC_GTEST_PROP(Need, OfGradient, ()) {
  GradientOptions o;
  o.dk = {size(1 << 16)}, o.keys = size(1 << 20, 2), o.queries = size(1 << 16), o.batches = size(1 << 16, 2);
  RC_ASSERT(real(memory_of(o).bytes) >= 4 * real(o.keys) * real(o.queries) + 8 * real(o.batches) * real(o.keys));
  expect_grows(o, &GradientOptions::keys, 1 << 20);
  expect_grows(o, &GradientOptions::batches, 1 << 16);
}

RC_GTEST_PROP(Need, OfPrecision, ()) {
  PrecisionOptions o;
  o.dk = {size(1 << 16)}, o.keys = size(1 << 20, 2), o.queries = size(1 << 16);
  RC_ASSERT(real(memory_of(o).bytes) >= 8 * real(o.keys) * real(o.queries));
  expect_grows(o, &PrecisionOptions::keys, 1 << 20);
}

RC_GTEST_PROP(Need, OfInitialisation, ()) {
  InitialisationOptions o;
  o.dk = {size(1 << 16)}, o.widths = {size(1 << 16)}, o.heads = size(1 << 16), o.tokens = size(1 << 16, 2);
  const double weights = real(o.dk[0]) * real(o.widths[0]) * real(o.heads);
  RC_ASSERT(real(memory_of(o).bytes) >= 8 * weights);
  expect_grows(o, &InitialisationOptions::heads, 1 << 16);
  expect_grows(o, &InitialisationOptions::tokens, 1 << 16);
}

RC_GTEST_PROP(Need, OfTraining, ()) {
  TrainOptions o;
  const RecallTask task;
  o.dk = {2 * size(1 << 15)};
  o.run.model.layers = size(1 << 21), o.run.sequences = size(1 << 20), o.run.steps = size(1 << 23);
  const double weights = real(o.run.model.layers) * 64 * (2 * real(o.dk[0]) + 2 * 64 + 3 * 176);
  const MemoryNeed need = memory_of(task, o);
  RC_ASSERT(need.bytes > 0);
  RC_ASSERT(real(need.bytes) >= 4 * 4 * weights + 4 * 24 * real(o.run.sequences) * real(o.dk[0]));
  RC_ASSERT(memory_of(task, o, true).bytes >= need.bytes);
  TrainOptions two = o;
  two.parallel_runs = 2;
  RC_ASSERT(memory_of(task, two).bytes >= need.bytes);
  TrainOptions one = o;
  one.run.model.layers += 1;
  RC_ASSERT(memory_of(task, one).bytes >= need.bytes);
}

TEST(Need, DoesNotRunOver) {
  TrainOptions o;
  o.run.model.layers = 2147483647, o.run.sequences = 1 << 20, o.dk = {65536}, o.run.steps = 1 << 24, o.seeds = 1000;
  EXPECT_GT(static_cast<double>(memory_of(RecallTask(), o).bytes), 1e18);
  InitialisationOptions wide;
  wide.dk = wide.widths = {1 << 16}, wide.heads = wide.tokens = 1 << 16;
  EXPECT_GT(static_cast<double>(memory_of(wide).bytes), 1e15);
  EXPECT_GT(static_cast<double>(memory_to_explain(std::size_t{1} << 62, std::size_t{1} << 60).bytes), 9e18);
}

// Functions refuse for themselves, so that whoever calls them is safe: before any of it is allocated, which would take
// long.
TEST(Need, IsAskedForBeforeAnythingIsAllocated) {
  if (free_memory().bytes > std::int64_t{1} << 37) GTEST_SKIP() << "there is so much memory here that these would run";
  const auto shortage_of = [](const auto& call) { return message_of(call, ErrorCode::kOutOfMemory); };
  PhaseOptions phase;
  phase.keys = {1 << 20}, phase.dk = {1 << 16};
  EXPECT_TRUE(shortage_of([&] { measure_phase(phase); }).starts_with("dk: 65536 would take 2"));
  GradientOptions gradient;
  gradient.keys = 1 << 20, gradient.queries = 1 << 16;
  EXPECT_TRUE(shortage_of([&] { measure_gradient(gradient); }).starts_with("keys: 1048576 would take "));
  PrecisionOptions precision;
  precision.keys = 1 << 20, precision.queries = 1 << 16;
  EXPECT_TRUE(shortage_of([&] { measure_precision(precision); }).starts_with("keys: 1048576 would take "));
  InitialisationOptions init;
  init.widths = {64, 256}, init.dk = {64, 65536}, init.tokens = 1 << 14;
  EXPECT_TRUE(
      shortage_of([&] { measure_initialisation(init); }).starts_with("dk: 65536, the largest of 2, would take "));
  TimingOptions timing;
  timing.cases = {{4096, 1 << 20, 4096}};
  EXPECT_TRUE(shortage_of([&] { time_forward(timing); }).starts_with("this would take "));
  WhatifOptions whatif;
  const float x = 1;  // one number, seen as many
  whatif.q = whatif.k = tensor(&x, {1 << 20, 64, 2, 8}, {0, 0, 0, 0});
  EXPECT_TRUE(shortage_of([&] {
                try_rules(whatif);
              }).starts_with("q, k: [1048576, 64, 2, 8] and [1048576, 64, 2, 8] would take "));
  TrainOptions train_options;
  train_options.run.model.layers = 100000;
  const std::string refused = shortage_of([&] { train_rules(RecallTask(), train_options); });
  EXPECT_TRUE(refused.starts_with("layers: 100000 would take 9")) << refused;
  RunOptions run;
  run.sequences = 1 << 20;
  EXPECT_TRUE(shortage_of([&] { train(RecallTask(), run); }).starts_with("sequences: 1048576 would take "));
}

// What is wrong with options is said before what they would take.
TEST(Need, RefusesWhatTheExperimentRefuses) {
  PhaseOptions phase;
  phase.keys = {1};
  EXPECT_EQ(message_of([&] { memory_of(phase); }), message_of([&] { measure_phase(phase); }));
  EXPECT_EQ(message_of([&] { memory_of(phase); }), "keys: 1, but a whole number from 2 to 1048576 is wanted");
  TrainOptions training;
  training.dk = {3};
  EXPECT_EQ(message_of([&] { memory_of(RecallTask(), training); }),
            "dim_qk: 3, but an even number of at least 2 is wanted");
}

}  // namespace
}  // namespace rootdk::lab
