// The statistic that docs/architecture.md adds to the table, renyi_entropy = −ln Σp², is found wherever statistics are:
// this is compiled over a table that has it, with nothing else changed.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/head_columns.h"
#include "base/row_tensors.h"
#include "cuda/api/backend.h"
#include "engine/records.h"
#include "engine/reduce.h"
#include "report/experiments.h"
#include "rootdk/attention.h"
#include "rootdk/c.h"
#include "rootdk/report/stats_json.h"
#include "rootdk/running_stats.h"
#include "support/rng.h"

namespace rootdk {
namespace {

constexpr std::int64_t kHeads = 2, kLength = 100, kDim = 8;
constexpr Extents kShape = {1, kHeads, kLength, kDim}, kRows = {1, kHeads, kLength, 1};

std::vector<float> drawn(std::uint64_t seed) {
  test::Rng rng(seed);
  std::vector<float> x(kHeads * kLength * kDim);
  for (float& value : x) value = static_cast<float>(rng.normal());
  return x;
}

struct Call {
  std::vector<float> q = drawn(1), k = drawn(2), v = drawn(3), o = std::vector<float>(q.size());
  std::vector<float> lse = std::vector<float>(kHeads * kLength);
  std::vector<std::vector<float>> rows;
  Problem problem = {.mask = {.causal = true}, .stats = StatsLevel::kFull};
  Outputs out = {tensor(o.data(), kShape), tensor(lse.data(), kRows)};

  explicit Call(std::int64_t sample = 1) {
    problem.stats_options.sample = sample;
    rows.reserve(64);
    for (const auto& row : base::kBasicRowTensors) out.rows.*row.tensor = fresh();
    for (const auto& row : base::kFullRowTensors) out.rows.*row.tensor = fresh();
  }
  Tensor fresh() {
    rows.emplace_back(kHeads * kLength, NAN);
    return tensor(rows.back().data(), kRows);
  }
  Inputs in() const { return {tensor(q.data(), kShape), tensor(k.data(), kShape), tensor(v.data(), kShape)}; }
  Stats run() { return forward(problem, in(), out); }
  float of(const Tensor& row, std::int64_t i) const { return static_cast<const float*>(row.data)[i]; }

  void expect_rows() const {
    for (std::int64_t i = 0; i < kHeads * kLength; ++i)
      EXPECT_NEAR(of(out.rows.renyi_entropy, i), -std::log(of(out.rows.sum_p2, i)), 1e-5) << i;
  }
  /// Rows that see one key do not count.
  double mean(std::int64_t head) const {
    double sum = 0;
    for (std::int64_t i = 1; i < kLength; ++i)
      sum += static_cast<double>(of(out.rows.renyi_entropy, head * kLength + i));
    return sum / (kLength - 1);
  }
};

TEST(AddedStatistic, IsOfEveryRowAndItsMeanOfEveryHead) {
  Call call;
  const Stats stats = call.run();
  call.expect_rows();
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_GT(call.mean(h), 0.1);
    EXPECT_NEAR(stats.at(0, h).softmax.renyi_entropy, call.mean(h), 1e-6);
  }
}

TEST(AddedStatistic, MergesAndHasAStandardError) {
  Call call, sampled(2);
  const Stats stats = call.run(), some = sampled.run();
  const HeadStats &a = stats.at(0, 0), &b = stats.at(0, 1);
  EXPECT_NEAR(merge(a, b).softmax.renyi_entropy, (a.softmax.renyi_entropy + b.softmax.renyi_entropy) / 2, 1e-12);
  RunningStats running(0.5);
  running.add(stats);
  EXPECT_EQ(running.stats().at(0, 0).softmax.renyi_entropy, a.softmax.renyi_entropy);
  EXPECT_EQ(standard_errors(a).renyi_entropy, 0);
  EXPECT_TRUE(std::isnan(standard_errors(some.at(0, 0)).renyi_entropy));  // one block of two
}

TEST(AddedStatistic, IsInTheJsonThatComesBack) {
  const Stats stats = Call().run();
  const std::string text = report::to_json(stats);
  const auto document = nlohmann::json::parse(text);
  EXPECT_EQ(document["per_head"][1]["softmax"]["renyi_entropy"], stats.at(0, 1).softmax.renyi_entropy);
  EXPECT_EQ(report::stats_from_json(text).at(0, 1).softmax.renyi_entropy, stats.at(0, 1).softmax.renyi_entropy);
}

TEST(AddedStatistic, IsAColumnAndInWhatAttendPrints) {
  const Stats stats = Call().run();
  const auto column =
      std::find_if(std::begin(base::kHeadColumns<std::int64_t>), std::end(base::kHeadColumns<std::int64_t>),
                   [](const auto& c) { return std::string(c.name) == "renyi_entropy"; });
  ASSERT_NE(column, std::end(base::kHeadColumns<std::int64_t>));
  EXPECT_EQ(column->value(stats.at(0, 0)), stats.at(0, 0).softmax.renyi_entropy);
  EXPECT_NE(std::string(column->doc).find("Rényi"), std::string::npos);
  const report::Attended attended{
      {1, kHeads, kHeads, kLength, kLength, kDim, kDim, DType::kF32}, "sqrt_dk", true, "reference", "", stats};
  EXPECT_EQ(report::json_of(attended)["heads"][1]["renyi_entropy"], stats.at(0, 1).softmax.renyi_entropy);
}

TEST(AddedStatistic, IsInTheStructsOfC) {
  Call call;
  const Stats stats = call.run();
  std::vector<float> o(call.o.size()), renyi(kHeads * kLength);
  std::vector<rootdk_head_stats> heads(kHeads);
  rootdk_problem problem;
  rootdk_problem_init(&problem);
  problem.causal = 1, problem.stats = ROOTDK_STATS_FULL;
  const auto view = [](const std::vector<float>& x, std::int64_t dim) {
    return rootdk_row_major(x.data(), ROOTDK_F32, 1, kHeads, kLength, dim);
  };
  const rootdk_inputs inputs = {view(call.q, kDim), view(call.k, kDim), view(call.v, kDim), {}};
  rootdk_row_tensors rows = {};
  rows.renyi_entropy = view(renyi, 1);
  rootdk_outputs outputs = {};
  outputs.o = view(o, kDim), outputs.rows = &rows, outputs.head_stats = heads.data(), outputs.head_stats_count = kHeads;
  ASSERT_EQ(rootdk_forward(&problem, &inputs, &outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  for (std::int64_t h = 0; h < kHeads; ++h)
    EXPECT_EQ(heads[static_cast<std::size_t>(h)].renyi_entropy, stats.at(0, h).softmax.renyi_entropy);
  EXPECT_EQ(renyi, std::vector<float>(static_cast<float*>(call.out.rows.renyi_entropy.data),
                                      static_cast<float*>(call.out.rows.renyi_entropy.data) + renyi.size()));
  static_assert(sizeof(rootdk_head_stats) == ROOTDK_HEAD_STATS_WORDS * 8);  // out of what was reserved
}

TEST(AddedStatistic, IsWorkedOutAgainWhereRowsMerge) {
  Call call, other;
  other.problem.mask.causal = false;
  call.run(), other.run();
  merge(call.out, other.out, kLength);
  call.expect_rows();
  call.out.rows.renyi_entropy = {};  // derived: statistics of rows do not ask for it
  EXPECT_GT(stats_of_rows(call.out.rows, call.out.lse).at(0, 0).softmax.renyi_entropy, 0.1);
}

// The plain kernel, compiled for the host.
TEST(AddedStatistic, IsWrittenByTheKernelsOfAGpu) {
  Call call, on_cpu;
  on_cpu.run();
  Plan plan;
  plan.problem = call.problem, plan.shape = {1, kHeads, kHeads, kLength, kLength, kDim, kDim, DType::kF32};
  plan.kernel = "plain";
  const std::size_t bytes = engine::records_bytes(plan);
  std::vector<std::byte> memory(bytes + rootdk_cuda_backend()->forward_bytes(plan) + 64);
  base::Arena arena(memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64);
  const auto records = engine::ForwardRecords::take(arena, plan);
  const Inputs in = call.in();
  rootdk_cuda_backend()->forward(
      {plan, in, call.out, records.rows, records.full, records.causes, records.gaps,
       memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + arena.used()},
      nullptr);
  call.expect_rows();
  EXPECT_NEAR(engine::reduce_head(plan, records, 0).softmax.renyi_entropy, on_cpu.mean(0), 1e-4);
}

}  // namespace
}  // namespace rootdk
