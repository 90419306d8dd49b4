// The mask that docs/architecture.md adds to the table, query_starts (rows before it are padding), is found wherever
// masks are: this is compiled over a table that has it, and a rule of what is seen that asks for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/visibility.h"
#include "cuda/api/backend.h"
#include "description.h"
#include "engine/records.h"
#include "engine/reduce.h"
#include "rootdk/attention.h"
#include "rootdk/c.h"
#include "support/rng.h"

namespace rootdk {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 2, kLength = 40, kDim = 8;
constexpr Extents kShape = {kBatch, kHeads, kLength, kDim}, kRows = {kBatch, kHeads, kLength, 1};
const std::vector<std::int64_t> kStarts = {0, 7};

std::vector<float> drawn(std::uint64_t seed) {
  test::Rng rng(seed);
  std::vector<float> x(kBatch * kHeads * kLength * kDim);
  for (float& value : x) value = static_cast<float>(rng.normal());
  return x;
}

struct Call {
  std::vector<float> q = drawn(1), k = drawn(2), v = drawn(3), o = std::vector<float>(q.size(), NAN);
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kLength, NAN);
  Problem problem = {.mask = {.causal = true}, .stats = StatsLevel::kFull};
  Outputs out = {tensor(o.data(), kShape), tensor(lse.data(), kRows)};

  explicit Call(bool padded) {
    if (padded) problem.mask.query_starts = kStarts;
  }
  Inputs in() const { return {tensor(q.data(), kShape), tensor(k.data(), kShape), tensor(v.data(), kShape)}; }
};

bool is_padding(std::size_t row) { return row / (kHeads * kLength) == 1 && row % kLength < 7; }

/// Rows that are padding see nothing; others are as without it.
void expect_rows(const Call& padded) {
  Call whole(false);
  forward(whole.problem, whole.in(), whole.out);
  for (std::size_t row = 0; row < padded.lse.size(); ++row) {
    if (is_padding(row)) EXPECT_EQ(padded.lse[row], -INFINITY) << row;
    else EXPECT_NEAR(padded.lse[row], whole.lse[row], 1e-5) << row;
    for (std::size_t d = 0; d < kDim; ++d)
      if (is_padding(row)) EXPECT_EQ(padded.o[row * kDim + d], 0) << row;
      else EXPECT_NEAR(padded.o[row * kDim + d], whole.o[row * kDim + d], 1e-5) << row;
  }
}

void expect_counts(const HeadStats& first, const HeadStats& second) {
  EXPECT_EQ(first.row_count, kLength);
  EXPECT_EQ(second.row_count, kLength - 7);
}

TEST(AddedMask, HidesOnTheCpu) {
  Call call(true);
  const Stats stats = forward(call.problem, call.in(), call.out);
  expect_rows(call);
  expect_counts(stats.at(0, 1), stats.at(1, 1));
}

TEST(AddedMask, HidesOnAGpu) {
  Call call(true);
  Plan plan;
  plan.problem = call.problem, plan.shape = {kBatch, kHeads, kHeads, kLength, kLength, kDim, kDim, DType::kF32};
  plan.kernel = "plain";
  std::vector<std::byte> memory(engine::records_bytes(plan) + rootdk_cuda_backend()->forward_bytes(plan) + 64);
  std::byte* const aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  base::Arena arena(aligned);
  const auto records = engine::ForwardRecords::take(arena, plan);
  const Inputs in = call.in();
  rootdk_cuda_backend()->forward(
      {plan, in, call.out, records.rows, records.full, records.causes, records.gaps, aligned + arena.used()}, nullptr);
  expect_rows(call);
  expect_counts(engine::reduce_head(plan, records, 1), engine::reduce_head(plan, records, kHeads + 1));
}

TEST(AddedMask, ComesFromC) {
  Call call(false);
  rootdk_problem problem;
  rootdk_problem_init(&problem);
  EXPECT_EQ(std::count_if(std::begin(problem.reserved), std::end(problem.reserved), [](auto x) { return x == 0; }),
            ROOTDK_PROBLEM_SPARE - 2 * std::ssize(base::kPerItem));
  problem.causal = 1;
  problem.query_starts = {kStarts.data(), 2};
  const auto view = [](std::vector<float>& x, std::int64_t dim) {
    return rootdk_row_major(x.data(), ROOTDK_F32, kBatch, kHeads, kLength, dim);
  };
  rootdk_inputs inputs = {};
  inputs.q = view(call.q, kDim), inputs.k = view(call.k, kDim), inputs.v = view(call.v, kDim);
  rootdk_outputs outputs = {};
  outputs.o = view(call.o, kDim), outputs.lse = view(call.lse, 1);
  ASSERT_EQ(rootdk_forward(&problem, &inputs, &outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  expect_rows(call);
  problem.query_starts.count = 1;
  EXPECT_EQ(rootdk_forward(&problem, &inputs, &outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "query_starts: 1 entries, but batch is 2");
}

TEST(AddedMask, ComesFromPython) {
  // seed, causal, diagonal, offset, window (absent, two sides), items, q_starts, kv_starts, then the table's
  std::vector<std::int64_t> numbers = {0, 1, 0, 0, 0, -1, -1, 0, -1, -1};
  for (const base::PerItem& field : base::kPerItem) {
    const bool added = std::strcmp(field.name, "query_starts") == 0;
    if (added) numbers.insert(numbers.end(), {2, kStarts[0], kStarts[1]});
    else numbers.push_back(-1);
  }
  Call call(false);
  std::vector<float> slopes;
  python::read_description(numbers, {}, call.problem, slopes);
  EXPECT_TRUE(call.problem.mask.causal);
  forward(call.problem, call.in(), call.out);
  expect_rows(call);
}

TEST(AddedMask, IsCheckedAndSaid) {
  Call call(true);
  EXPECT_NE(make_plan(call.problem, shape_of(call.in(), call.problem)).explain().find("query starts"),
            std::string::npos);
  EXPECT_TRUE(base::has_padding(call.problem.mask)) << "Hopper's kernels do not take it";
  EXPECT_FALSE(base::rows_alike(call.problem.mask));
  EXPECT_FALSE(base::sees_everything(call.problem.mask));
  const std::vector<std::int64_t> wrong = {0, kLength + 1};
  call.problem.mask.query_starts = wrong;
  try {
    forward(call.problem, call.in(), call.out);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "query_starts: entry 1 is 41, but 0 to len_q (40) is wanted");
  }
}

}  // namespace
}  // namespace rootdk
