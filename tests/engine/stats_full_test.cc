// Full statistics: every kernel against the double reference, and against what they must be by definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/call.h"
#include "base/visibility.h"
#include "support/bits.h"
#include "support/case.h"
#include "support/close_stats.h"
#include "support/hidden.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

constexpr double kU = 0x1p-24;

TEST(FullStats, EveryKernelAgreesWithTheReference) {
  int heads = 0;
  for (int seed = 0; seed < problem_count(400); ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed));
    if (c->shape.len_q == 0 || c->shape.dtype == DType::kF64) continue;
    c->problem.stats = StatsLevel::kFull;
    c->problem.stats_options.gaps = seed % 2 == 0, c->problem.stats_options.key_mass = seed % 3 == 0,
    c->problem.stats_options.by_keys = seed % 5 == 0;
    const Sight sight(*c);
    const auto poisoned = c->copy();
    const bool hides = fill_hidden(*c, sight, Filling::kZeros);
    if (hides) fill_hidden(*poisoned, sight, Filling::kPoison, static_cast<std::uint64_t>(seed));
    const Result exact = run_reference(*c, {.backward = false});
    if (hides && seed % 4 == 0) {
      EXPECT_EQ(other_bits(exact, run_reference(*poisoned, {.backward = false})), "") << "seed " << seed << "\n"
                                                                                      << c->describe();
    }
    const Floors floor = floors(*c, exact);
    int tried = 0;
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + kernel.label() + "\n" + c->describe());
      const bool first = tried++ == 0;  // what users get; the others, which are slower, every third time
      const RunOptions options{.backward = hides && seed % 4 == 0};  // gradients' statistics, too
      const Result fast = run(*c, kernel, options);
      ASSERT_EQ(fast.stats.per_head.size(), exact.stats.per_head.size());
      if (hides && (first || (seed + tried) % 3 == 0)) {
        EXPECT_EQ(other_bits(fast, run(*poisoned, kernel, options)), "");
      }
      EXPECT_EQ(far_statistics(*c, fast, exact, floor), "");
      for (const HeadStats& head : exact.stats.per_head) heads += head.rows_not_finite == 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(heads, 100);
}

// The maximum is where the statistics say.
TEST(FullStats, MaximaAreWhereTheySay) {
  for (int seed = 0; seed < std::min(problem_count(200), 200); ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 900);
    if (c->shape.len_q == 0 || c->shape.dtype == DType::kF64) continue;
    c->problem.stats = StatsLevel::kFull;
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + kernel.label() + "\n" + c->describe());
      const Result r = run(*c, kernel, {.backward = false});
      for (std::size_t h = 0; h < r.stats.per_head.size(); ++h) {
        const HeadStats& head = r.stats.per_head[h];
        if (head.rows_not_finite) continue;
        for (const Spread* spread : {&head.raw, &head.score}) {
          if (spread->pairs == 0) {
            EXPECT_EQ(spread->max_key, -1);
            continue;
          }
          ASSERT_GE(spread->max_query, 0);
          ASSERT_GE(spread->max_key, 0);
          const std::vector<double>& rows = spread == &head.raw ? r.raw_max : r.score_max;
          const auto first = rows.begin() + static_cast<std::ptrdiff_t>(h) * c->shape.len_q;
          EXPECT_EQ(std::max_element(first, first + c->shape.len_q) - first, spread->max_query);
          EXPECT_EQ(*(first + spread->max_query), spread->max);
          if (spread != &head.raw) continue;
          const Shape& s = c->shape;
          const std::int64_t b = static_cast<std::int64_t>(h) / s.heads_q,
                             hq = static_cast<std::int64_t>(h) % s.heads_q;
          const base::KeyPlace place = base::place_of_key(c->problem, c->k.tensor(), b, spread->max_key);
          double dot = 0, magnitude = 0;
          for (std::int64_t d = 0; d < s.dim_qk; ++d) {
            const double product =
                c->q.get(b, hq, spread->max_query, d) * c->k.get(place.item, hq / s.group(), place.row, d);
            dot += product, magnitude += std::fabs(product);
          }
          const double factor = c->problem.scale.factor(
              hq, s.dim_qk, base::visible_keys(c->problem.mask, s, b, spread->max_query).scale_row());
          EXPECT_NEAR(factor * dot, spread->max,
                      (static_cast<double>(s.dim_qk) + 4) * kU * std::fabs(factor) * magnitude);
        }
      }
      if (HasFailure()) return;
    }
  }
}

// Statistics of rows in two parts, merged, are those of all rows.
TEST(FullStats, MergedPartsAreTheWhole) {
  for (int seed = 0; seed < std::min(problem_count(200), 200); ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 400);
    const Shape& s = c->shape;
    if (s.batch < 2 || s.len_q == 0) continue;
    c->problem.stats = StatsLevel::kFull;
    const Result r = run(*c, engine::kernel_table().front(), {.backward = false});
    HeadStats left = r.stats.at(0, 0);
    const HeadStats whole = merge(merge(left, r.stats.at(1, 0)), r.stats.at(s.batch - 1, s.heads_q - 1));
    const HeadStats other = merge(left, merge(r.stats.at(1, 0), r.stats.at(s.batch - 1, s.heads_q - 1)));
    EXPECT_EQ(whole.row_count, other.row_count);
    EXPECT_EQ(whole.score.pairs, other.score.pairs);
    EXPECT_EQ(whole.score.max_query, other.score.max_query);
    EXPECT_EQ(whole.softmax.relative_entropy.counts, other.softmax.relative_entropy.counts);
    if (whole.rows_not_finite || whole.score.pairs == 0) continue;
    EXPECT_NEAR(whole.score.mean, other.score.mean,
                1e-12 * (1 + std::fabs(whole.score.max) + std::fabs(whole.score.min)));
    EXPECT_NEAR(whole.score.m2, other.score.m2, 1e-10 * (1 + whole.score.m2));
    if (whole.rows_counted == 0) continue;
    EXPECT_NEAR(whole.softmax.entropy, other.softmax.entropy, 1e-12 * (1 + whole.softmax.entropy));
  }
}

TEST(Histogram, QuantilesAreRightToABin) {
  Histogram a{0, 1, {}}, b{0, 1, {}};
  for (int i = 0; i < 1000; ++i) (i % 3 == 0 ? a : b).add((i + 0.5) / 1000);
  a.merge(b);
  for (const double q : {0.05, 0.5, 0.95}) EXPECT_NEAR(a.quantile(q), q, 1.0 / Histogram::kBins + 1e-3);
  EXPECT_TRUE(std::isnan(Histogram{}.quantile(0.5)));
  Histogram outside{0, 1, {}};
  outside.add(-5), outside.add(7);
  EXPECT_LE(outside.quantile(0.4), 1.0 / Histogram::kBins);
  EXPECT_GE(outside.quantile(0.9), 1 - 1.0 / Histogram::kBins);
}

// What MATH says of uniform and of one-hot rows, on every kernel.
TEST(FullStats, UniformAndOneHotRows) {
  constexpr std::int64_t kKeys = 200, kDim = 16;
  for (const bool one_hot : {false, true}) {
    Buffer q(DType::kF32, {1, 1, 3, kDim}), k(DType::kF32, {1, 1, kKeys, kDim}), v(DType::kF32, {1, 1, kKeys, kDim}),
        o(DType::kF32, {1, 1, 3, kDim});
    q.fill(one_hot ? 8 : 0), k.fill(0), v.fill(1);
    for (std::int64_t d = 0; d < kDim; ++d) k.set(0, 0, 77, d, 8);  // one key scores 256, the others 0
    for (const engine::Kernel& kernel : fast_kernels()) {
      Machine machine = Machine::here();
      machine.isas = {kernel.isa};
      Problem problem;
      problem.stats = StatsLevel::kFull;
      const Plan plan = make_plan(problem, {1, 1, 1, 3, kKeys, kDim, kDim}, Pass::kForward, machine);
      std::vector<std::byte> memory(plan.workspace_bytes + 64);
      std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
      const HeadStats head =
          forward(plan, {q.tensor(), k.tensor(), v.tensor()}, {o.tensor()}, {aligned, plan.workspace_bytes}).at(0, 0);
      const double n = kKeys;
      EXPECT_NEAR(head.softmax.entropy, one_hot ? 0 : std::log(n), 1e-5) << kernel.label();
      EXPECT_NEAR(head.softmax.trace_j, one_hot ? 0 : 1 - 1 / n, 1e-6);
      EXPECT_NEAR(head.softmax.frobenius_j, one_hot ? 0 : (n - 1) / (n * n), 1e-6);
      EXPECT_NEAR(head.softmax.participation, one_hot ? 1 : n, 1e-3);
      EXPECT_EQ(head.softmax.rows_p_max_over_99pct, one_hot ? 3 : 0);
      EXPECT_EQ(head.softmax.rows_trace_j_under_1pct, one_hot ? 3 : 0);
      EXPECT_NEAR(head.softmax.relative_entropy.quantile(0.5), one_hot ? 0 : 1, 2.0 / Histogram::kBins);
      EXPECT_EQ(head.score.max_query, 0);
      EXPECT_EQ(head.score.max_key, one_hot ? 77 : 0);
      EXPECT_NEAR(head.score.within_row_variance(), one_hot ? 256.0 * 256 / n : 0, 0.01);
    }
  }
}

}  // namespace
}  // namespace rootdk::test
