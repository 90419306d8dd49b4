// What full statistics offer beyond a head's numbers: rows, samples, buckets, the second pass, gradients, causes. Every
// kernel against the double reference, and against what they must be by definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/row_tensors.h"
#include "base/visibility.h"
#include "rootdk/running_stats.h"
#include "support/case.h"
#include "support/rng.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

constexpr double kU = 0x1p-24;

/// Calls f(case, its f64 copy, the reference's result, a kernel) for random problems at kFull; `prepare` sets options.
template <class Prepare, class F>
void for_each_kernel(int problems, std::uint64_t first_seed, bool backward, const Prepare& prepare, const F& f) {
  for (int i = 0; i < std::min(problem_count(problems), problems); ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    const auto c = random_case(seed);
    if (c->shape.len_q == 0 || c->shape.dtype == DType::kF64) continue;
    c->problem.stats = StatsLevel::kFull;
    prepare(*c, seed);
    const auto exact_case = c->exact();
    const Result exact = run(*exact_case, engine::kernel_table().back(), {.backward = backward});
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + kernel.label() + "\n" + c->describe());
      f(*c, exact, kernel);
      if (testing::Test::HasFailure()) return;
    }
  }
}

void keep_options(Case&, std::uint64_t) {}

bool row_is_finite(const Result& r, std::size_t i) { return std::isfinite(r.lse[i]) && std::isfinite(r.p_max[i]); }

// Bounds as in stats_full_test.cc: a score is off by e, sums of n terms by n·u relatively.
TEST(RowStats, EveryRowAgreesWithTheReference) {
  int rows = 0;
  for_each_kernel(150, 0, false, keep_options, [&](const Case& c, const Result& exact, const engine::Kernel& kernel) {
    const Result fast = run(c, kernel, {.backward = false});
    const Floors floor = floors(c, exact);
    const double n = static_cast<double>(c.shape.len_kv), e = 2 * std::max(floor.score_max, floor.raw_max),
                 sums = 8 * n * kU;
    ASSERT_EQ(fast.rows.size(), std::size(base::kFullRowTensors));
    for (std::size_t t = 0; t < fast.rows.size(); ++t) {
      const std::string name = base::kFullRowTensors[t].name;
      for (std::size_t i = 0; i < fast.lse.size(); ++i) {
        if (!row_is_finite(exact, i) || !row_is_finite(fast, i)) continue;
        const double x = fast.rows[t][i], y = exact.rows[t][i];
        if (std::isnan(x) && std::isnan(y)) continue;
        const double keys = exact.rows[0][i], size = std::fabs(exact.raw_max[i]) + std::fabs(exact.rows[7][i]) +
                                                     std::fabs(exact.score_max[i]) + std::fabs(exact.rows[10][i]);
        if (name.ends_with(
                "argmax")) {  // a key whose score is the row's maximum as near as rounding lets one say: below
          EXPECT_EQ(x < 0, y < 0) << name;
          continue;
        }
        double allowed = 0;
        if (name == "rows.entropy") allowed = (2 * e + sums) * (std::log(n + 1) + 1);
        else if (name == "rows.sum_p2" || name == "rows.sum_p3") allowed = 4 * (2 * e + sums) * y;
        else if (name == "rows.sink_mass") allowed = 2 * e + sums;
        else if (name.ends_with("variance"))
          allowed = keys < 2 ? 0 : (2 * e * std::sqrt(y * (keys - 1) * keys) + keys * e * e) / (keys - 1) + sums * y;
        else if (name.ends_with("mean")) allowed = e + sums * size;
        else if (name.ends_with("min")) allowed = e;
        EXPECT_LE(std::fabs(x - y), allowed + 2 * kU * std::fabs(y))
            << name << " of row " << i << ": " << x << ", exactly " << y;
        ++rows;
      }
    }
  });
  EXPECT_GT(rows, 10000);
}

// The maximum of each row is where the row says: without ties nothing else has that score.
TEST(RowStats, ArgmaxIsTheReferences) {
  Rng rng(5);
  constexpr std::int64_t kQueries = 100, kKeys = 300, kDim = 24;
  for (const engine::Kernel& kernel : fast_kernels()) {
    Case c;
    c.shape = {1, 2, 1, kQueries, kKeys, kDim, kDim, kernel.bf16_step ? DType::kBF16 : DType::kF32};
    const DType dtype = c.shape.dtype;
    c.q = Buffer(dtype, {1, 2, kQueries, kDim}), c.k = Buffer(dtype, {1, 1, kKeys, kDim}),
    c.v = Buffer(dtype, {1, 1, kKeys, kDim});
    c.q.fill_normal(rng, 1), c.k.fill_normal(rng, 1), c.v.fill_normal(rng, 1);
    c.problem.stats = StatsLevel::kFull;
    c.problem.mask.causal = true;
    const Result fast = run(c, kernel, {.backward = false}),
                 exact = run(*c.exact(), engine::kernel_table().back(), {.backward = false});
    int same = 0;
    for (std::size_t t = 11; t < 13; ++t)
      for (std::size_t i = 0; i < fast.rows[t].size(); ++i) same += fast.rows[t][i] == exact.rows[t][i];
    // Two keys of 300 tie in bf16 or within rounding now and then.
    EXPECT_GE(same, 2 * 2 * kQueries - 4) << kernel.label();
  }
}

// The samples at all offsets are disjoint and together everything.
TEST(Sampling, AllOffsetsTogetherAreTheWhole) {
  int compared = 0;
  for_each_kernel(60, 300, false, keep_options, [&](Case& c, const Result&, const engine::Kernel& kernel) {
    const Result whole = run(c, kernel, {.backward = false});
    constexpr std::int64_t kSample = 3;
    std::vector<Stats> parts;
    for (std::int64_t offset = 0; offset < kSample; ++offset) {
      c.problem.stats_options = {.sample = kSample, .sample_offset = offset};
      const Result part = run(c, kernel, {.backward = false});
      EXPECT_TRUE(part.same_as(whole));
      for (std::size_t t = 0; t < part.rows.size(); ++t)
        for (std::size_t i = 0; i < part.rows[t].size(); ++i) {
          const std::int64_t query = static_cast<std::int64_t>(i) % c.shape.len_q;
          const bool seen = query / kSampleBlock % kSample == offset;
          if (seen && std::isnan(whole.rows[t][i])) continue;
          if (seen) {
            EXPECT_EQ(part.rows[t][i], whole.rows[t][i]) << base::kFullRowTensors[t].name;
          } else {
            EXPECT_TRUE(std::isnan(part.rows[t][i]));
          }
        }
      parts.push_back(part.stats);
    }
    c.problem.stats_options = {};
    for (std::size_t h = 0; h < whole.stats.per_head.size(); ++h) {
      const HeadStats& all = whole.stats.per_head[h];
      if (all.rows_not_finite) continue;
      const HeadStats sum = merge(merge(parts[2].per_head[h], parts[0].per_head[h]), parts[1].per_head[h]);
      for (const Stats& part : parts) {  // maxima are exact in every sample
        EXPECT_EQ(part.per_head[h].raw_max, all.raw_max);
        EXPECT_EQ(part.per_head[h].score_max, all.score_max);
        if (all.rows_counted) {
          EXPECT_EQ(part.per_head[h].mean_p_max, all.mean_p_max);
        }
        EXPECT_EQ(part.per_head[h].row_count, all.row_count);
      }
      EXPECT_EQ(sum.rows_sampled, all.rows_sampled);
      EXPECT_EQ(sum.score.pairs, all.score.pairs);
      EXPECT_EQ(sum.blocks.seen, all.blocks.all);
      EXPECT_EQ(sum.score.max_query, all.score.max_query);
      EXPECT_EQ(sum.score.max_key, all.score.max_key);
      EXPECT_EQ(sum.softmax.logit_p_max.counts, all.softmax.logit_p_max.counts);
      EXPECT_EQ(sum.softmax.log_trace_j.counts, all.softmax.log_trace_j.counts);
      if (all.rows_sampled == 0) continue;
      EXPECT_NEAR(sum.softmax.entropy, all.softmax.entropy, 1e-12 * (1 + all.softmax.entropy));
      EXPECT_NEAR(sum.raw.within_m2, all.raw.within_m2, 1e-10 * all.raw.within_m2 + 1e-30);
      ++compared;
    }
  });
  EXPECT_GT(compared, 100);
}

// Over many samples of known populations the error in units of the standard error has mean square 1: with 200
// independent heads its own standard deviation is about √(2/200) = 0.1, and more since 16 blocks estimate each error
// (Student's t, 15 degrees).
TEST(Sampling, StandardErrorsAreOfTheRightSize) {
  constexpr std::int64_t kHeads = 200, kQueries = 64 * 64, kKeys = 32, kDim = 4;
  Rng rng(17);
  Buffer q(DType::kF32, {1, kHeads, kQueries, kDim}), k(DType::kF32, {1, kHeads, kKeys, kDim}),
      v(DType::kF32, {1, kHeads, kKeys, kDim}), o(DType::kF32, {1, kHeads, kQueries, kDim});
  q.fill_normal(rng, 1), k.fill_normal(rng, 1), v.fill_normal(rng, 1);
  // Blocks of queries differ in size, so that there is something between blocks.
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t first = 0; first < kQueries; first += kSampleBlock) {
      const double size = 0.5 + 1.5 * rng.uniform();
      for (std::int64_t i = first; i < first + kSampleBlock; ++i)
        for (std::int64_t d = 0; d < kDim; ++d) q.set(0, h, i, d, size * q.get(0, h, i, d));
    }
  Problem problem;
  problem.stats = StatsLevel::kFull;
  const Inputs in{q.tensor(), k.tensor(), v.tensor()};
  const Stats exact = forward(problem, in, {o.tensor()});
  problem.stats_options = {.sample = 4, .sample_offset = 1};
  const Stats sample = forward(problem, in, {o.tensor()});
  double squares[3] = {};
  for (std::size_t h = 0; h < kHeads; ++h) {
    const HeadStats &x = sample.per_head[h], &y = exact.per_head[h];
    const StandardErrors errors = standard_errors(x);
    EXPECT_EQ(standard_errors(y).entropy, 0);
    EXPECT_GT(errors.entropy, 0);
    squares[0] += std::pow((x.softmax.entropy - y.softmax.entropy) / errors.entropy, 2) / kHeads;
    squares[1] += std::pow((x.softmax.trace_j - y.softmax.trace_j) / errors.trace_j, 2) / kHeads;
    squares[2] +=
        std::pow((x.raw.within_row_variance() - y.raw.within_row_variance()) / errors.raw_within_row_variance, 2) /
        kHeads;
  }
  for (const double z2 : squares) EXPECT_NEAR(z2, 1, 0.5);
}

// Statistics are looked at, never in the way: the output has the same bits at every level.
TEST(Levels, LeaveTheOutputAlone) {
  for_each_kernel(100, 4000, false, keep_options, [&](Case& c, const Result&, const engine::Kernel& kernel) {
    const Result full = run(c, kernel, {.backward = false});
    for (const StatsLevel level : {StatsLevel::kNone, StatsLevel::kBasic}) {
      c.problem.stats = level;
      EXPECT_TRUE(run(c, kernel, {.backward = false}).same_as(full));
    }
    c.problem.stats = StatsLevel::kFull;
  });
}

// Buckets hold every row once, each where its number of keys says, and merge to the whole.
TEST(Buckets, TogetherAreTheWhole) {
  int compared = 0;
  for_each_kernel(
      80, 700, false, [](Case& c, std::uint64_t) { c.problem.stats_options.by_keys = true; },
      [&](const Case& c, const Result&, const engine::Kernel& kernel) {
        const Result r = run(c, kernel, {.backward = false});
        for (std::size_t h = 0; h < r.stats.per_head.size(); ++h) {
          const HeadStats& all = r.stats.per_head[h];
          std::int64_t rows = 0;
          HeadStats sum;
          for (const KeyBucket& bucket : all.by_keys) {
            std::int64_t expected = 0;
            for (std::int64_t i = 0; i < c.shape.len_q; ++i) {
              const double keys = r.rows[0][h * static_cast<std::size_t>(c.shape.len_q) + static_cast<std::size_t>(i)];
              expected += bucket.from == 0
                              ? keys == 0
                              : keys >= static_cast<double>(bucket.from) && keys < 2 * static_cast<double>(bucket.from);
            }
            EXPECT_EQ(bucket.stats.row_count, expected) << "from " << bucket.from;
            EXPECT_GT(expected, 0);
            rows += bucket.stats.row_count;
            sum = merge(sum, bucket.stats);
          }
          EXPECT_EQ(rows, all.row_count);
          if (all.rows_not_finite) continue;
          EXPECT_EQ(sum.raw_max, all.raw_max);
          EXPECT_EQ(sum.score.pairs, all.score.pairs);
          EXPECT_EQ(sum.softmax.relative_entropy.counts, all.softmax.relative_entropy.counts);
          if (all.rows_counted == 0) continue;
          EXPECT_NEAR(sum.softmax.entropy, all.softmax.entropy, 1e-12 * (1 + all.softmax.entropy));
          EXPECT_NEAR(sum.score.m2, all.score.m2, 1e-10 * all.score.m2 + 1e-30);
          ++compared;
        }
      });
  EXPECT_GT(compared, 50);
}

// A batch whose items end earlier has the statistics of the items alone, cut off where they end. (Fewer rows may have
// another plan, and so another order of sums.)
TEST(Padding, IsWhatCuttingItOffGives) {
  int compared = 0;
  for (int seed = 0; seed < problem_count(60); ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 7300, {.paged = false, .padding = false});
    const Shape& s = c->shape;
    const auto by_row = [](const Buffer& dense) { return !dense.empty() && dense.tensor().shape[2] != 1; };
    if (s.len_q < 2 || s.dtype == DType::kF64 || by_row(c->allowed) || by_row(c->bias)) continue;
    if (c->problem.dropout.p > 0 || c->problem.mask.documents)
      continue;  // they count rows of the whole batch, or all of an item's
    Rng rng(static_cast<std::uint64_t>(seed));
    c->problem.stats = StatsLevel::kFull;
    c->problem.stats_options = {.causes = true, .by_keys = true, .gaps = true};
    c->problem.mask.diagonal = Diagonal::at(rng.integer(-1, s.len_kv));
    for (std::int64_t b = 0; b < s.batch; ++b) c->query_lengths.push_back(rng.integer(0, s.len_q));
    c->link();
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, s, Machine::here()).empty()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + kernel.label() + "\n" + c->describe());
      const Result all = run(*c, kernel, {.backward = false});
      for (std::int64_t b = 0; b < s.batch; ++b) {
        const auto cut = c->item(b);
        const std::int64_t queries = cut->query_lengths[0];
        if (queries == 0) {
          for (std::int64_t h = 0; h < s.heads_q; ++h) EXPECT_EQ(all.stats.at(b, h).causes.weight, 0);
          continue;
        }
        cut->query_lengths.clear();
        cut->shape.len_q = queries;
        Buffer q(s.dtype, {1, s.heads_q, queries, s.dim_qk});
        for (std::int64_t h = 0; h < s.heads_q; ++h)
          for (std::int64_t i = 0; i < queries; ++i)
            for (std::int64_t d = 0; d < s.dim_qk; ++d) q.set(0, h, i, d, cut->q.get(0, h, i, d));
        cut->q = q;
        cut->link();
        const Result alone = run(*cut, kernel, {.backward = false});
        for (std::int64_t h = 0; h < s.heads_q; ++h) {
          const HeadStats &x = all.stats.at(b, h), &y = alone.stats.at(0, h);
          EXPECT_EQ(x.row_count, queries);
          EXPECT_EQ(x.rows_masked, y.rows_masked);
          EXPECT_EQ(x.rows_counted, y.rows_counted);
          EXPECT_EQ(x.score.pairs, y.score.pairs);
          EXPECT_NEAR(x.score.m2, y.score.m2, 1e-5 * y.score.m2);
          EXPECT_EQ(x.by_keys.size(), y.by_keys.size());
          EXPECT_EQ(x.causes.weight, y.causes.weight);
          EXPECT_NEAR(x.causes.scale_square, y.causes.scale_square, 1e-12 * y.causes.scale_square);
          EXPECT_NEAR(x.causes.q_square, y.causes.q_square, 1e-5 * y.causes.q_square);
          EXPECT_NEAR(x.causes.k_variance, y.causes.k_variance, 1e-5 * y.causes.k_variance);
          if (x.rows_counted == 0) continue;
          EXPECT_NEAR(x.score_max, y.score_max, 1e-5 * (1 + std::fabs(y.score_max)));
          EXPECT_NEAR(x.softmax.entropy, y.softmax.entropy, 1e-5 * (1 + y.softmax.entropy));
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(SecondPass, KeyMassAndGapsAreTheReferences) {
  int heads = 0;
  for_each_kernel(
      150, 1000, false,
      [](Case& c, std::uint64_t) { c.problem.stats_options.gaps = c.problem.stats_options.key_mass = true; },
      [&](const Case& c, const Result& exact, const engine::Kernel& kernel) {
        const Result fast = run(c, kernel, {.backward = false});
        EXPECT_TRUE(fast.guards_intact);
        const Shape& s = c.shape;
        const Floors floor = floors(c, exact);
        const double e = 2 * floor.score_max, rows = static_cast<double>(s.len_q);
        for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h) {
          const HeadStats &x = fast.stats.per_head[h], &y = exact.stats.per_head[h];
          if (x.rows_not_finite || y.rows_not_finite) continue;
          // p is off by 2e relatively and by the f32 lse, |lse|·u; sums over queries by rows·u.
          double mass = 0, lse_size = 0;
          for (std::int64_t i = 0; i < s.len_q; ++i) {
            const double lse = exact.lse[h * static_cast<std::size_t>(s.len_q) + static_cast<std::size_t>(i)];
            if (std::isfinite(lse)) lse_size = std::max(lse_size, std::fabs(lse));
          }
          const double relative = 2 * e + (rows + 8 + 2 * lse_size) * kU;
          for (std::int64_t j = 0; j < s.len_kv; ++j) {
            const std::size_t at = h * static_cast<std::size_t>(s.len_kv) + static_cast<std::size_t>(j);
            EXPECT_LE(std::fabs(fast.key_mass[at] - exact.key_mass[at]), relative * exact.key_mass[at] + 1e-30)
                << "key " << j;
            mass += exact.key_mass[at];
          }
          const double kept = static_cast<double>(y.rows_counted) * (1 - y.softmax.sink_mass);
          if (y.rows_short == 0 && y.rows_counted > 0) {
            EXPECT_NEAR(mass, kept, 1e-9 * (1 + kept));
          }

          std::int64_t total = 0, exact_total = 0;
          for (int i = 0; i < GapHistogram::kBins; ++i) {
            total += x.gaps.counts[static_cast<std::size_t>(i)],
                exact_total += y.gaps.counts[static_cast<std::size_t>(i)];
            // Rounding moves a key by one bin at most while a bin is wider than the error.
            if (2 * e > 0x1p-12) continue;
            const auto before = [&](const HeadStats& head, int bin) {
              return std::accumulate(head.gaps.counts.begin(),
                                     head.gaps.counts.begin() + std::clamp(bin, 0, GapHistogram::kBins),
                                     std::int64_t{0});
            };
            ASSERT_LE(before(x, i - 1), before(y, i));
            ASSERT_LE(before(y, i), before(x, i + 1));
          }
          EXPECT_EQ(total, exact_total);
          ++heads;
        }
      });
  EXPECT_GT(heads, 100);
}

TEST(SecondPass, CountsWhatIsNearTheMaximum) {
  GapHistogram gaps;
  gaps.counts.assign(GapHistogram::kBins, 0);
  EXPECT_EQ(GapHistogram::edge(0), 0x1p-8);
  EXPECT_EQ(GapHistogram::edge(GapHistogram::kBins), 0x1p12);
  EXPECT_EQ(GapHistogram::edge(8 * GapHistogram::kPerOctave), 1);
  gaps.counts[0] = 5, gaps.counts[8 * 16] = 3, gaps.counts.back() = 2;
  EXPECT_EQ(gaps.within(0.5), 5);
  EXPECT_EQ(gaps.within(2), 8);
  EXPECT_EQ(gaps.within(1e9), 10);
}

double squares(const std::vector<double>& x, std::size_t first, std::size_t count) {
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) sum += x[i] * x[i];
  return sum;
}

double largest(const Buffer& buffer) {
  double most = 0;
  for (const double x : buffer.values()) most = std::isfinite(x) ? std::max(most, std::fabs(x)) : most;
  return most;
}

// Norms are those of the gradients that the same call wrote, up to their rounding to the storage dtype; Σ q·dq
// likewise; ‖dS‖ is the reference's.
TEST(GradientStats, AreOfTheGradients) {
  int heads = 0;
  for_each_kernel(150, 2000, true, keep_options, [&](const Case& c, const Result& exact, const engine::Kernel& kernel) {
    const Result fast = run(c, kernel);
    const Shape& s = c.shape;
    const auto size = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
    const double storage = s.dtype == DType::kBF16 ? 0x1p-8 : s.dtype == DType::kF16 ? 0x1p-11 : kU;
    const double tiny = s.dtype == DType::kF16 ? 0x1p-24 : 1e-30;  // half of f16's smallest step, at least
    const Floors floor = floors(c, exact);
    ASSERT_EQ(fast.gradient_stats.per_head.size(), exact.gradient_stats.per_head.size());
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads_q; ++h) {
        const HeadGradients &x = fast.gradient_stats.at(b, h), &y = exact.gradient_stats.at(b, h);
        if (!std::isfinite(x.d_scores) || !std::isfinite(y.d_scores)) continue;
        const std::int64_t head = b * s.heads_q + h, kv = b * s.heads_kv + h / s.group();
        const auto expect_norm = [&](double square, const std::vector<double>& values, std::int64_t index,
                                     std::int64_t count, const char* what) {
          const double own = std::sqrt(squares(values, size(index, count), static_cast<std::size_t>(count)));
          if (!std::isfinite(own)) return;  // f16 may overflow where f32 did not
          const double allowed =
              (storage + static_cast<double>(count) * kU) * own + tiny * std::sqrt(static_cast<double>(count));
          EXPECT_NEAR(std::sqrt(square), own, allowed) << what;
        };
        expect_norm(x.d_q, fast.d_q, head, s.len_q * s.dim_qk, "d_q");
        expect_norm(x.d_k, fast.d_k, kv, s.len_kv * s.dim_qk, "d_k");
        expect_norm(x.d_v, fast.d_v, kv, s.len_kv * s.dim_v, "d_v");

        double dot = 0, magnitude = 0, q_size = 0;
        for (std::int64_t i = 0; i < s.len_q; ++i)
          for (std::int64_t d = 0; d < s.dim_qk; ++d) {
            const double q = c.q.get(b, h, i, d),
                         product =
                             q *
                             fast.d_q[size(head, s.len_q * s.dim_qk) + size(i, s.dim_qk) + static_cast<std::size_t>(d)];
            dot += product, magnitude += std::fabs(product), q_size += std::fabs(q);
          }
        if (std::isfinite(dot)) {
          EXPECT_NEAR(x.d_log_scale, dot,
                      (storage + static_cast<double>(s.len_q * s.dim_qk) * kU) * magnitude + tiny * q_size);
        }

        // dS = P(dP − D): P is off by 2e + |lse|u relatively, dP by d·u·max|dO|·max|v|, D by that and the rounding of O
        // to storage.
        double lse_size = 0;
        for (const double lse : exact.lse)
          lse_size = std::isfinite(lse) ? std::max(lse_size, std::fabs(lse)) : lse_size;
        const double relative = 4 * floor.score_max + 4 * (lse_size + static_cast<double>(s.len_kv)) * kU;
        const double keep = 1 / (1 - static_cast<double>(c.problem.dropout.p));
        const double element = (2 * storage + 4 * static_cast<double>(s.dim_v) * kU) * static_cast<double>(s.dim_v) *
                               largest(c.d_o) * largest(c.v) * keep;
        if (relative < 0.1) {
          EXPECT_NEAR(std::sqrt(x.d_scores), std::sqrt(y.d_scores),
                      relative * std::sqrt(y.d_scores) + 2 * element * std::sqrt(static_cast<double>(s.len_q)));
        }
        ++heads;
      }
  });
  EXPECT_GT(heads, 100);
}

TEST(Causes, AreTheReferences) {
  int heads = 0;
  for_each_kernel(
      100, 3000, false, keep_options, [&](const Case& c, const Result& exact, const engine::Kernel& kernel) {
        const Result fast = run(c, kernel, {.backward = false});
        for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h) {
          const Causes &x = fast.stats.per_head[h].causes, &y = exact.stats.per_head[h].causes;
          // Sums of squares about a first row, in f32 over at most 64 rows of dim terms; the mean may be much larger
          // than the spread.
          const double relative = (64 + static_cast<double>(c.shape.dim_qk)) * 4 * kU;
          EXPECT_NEAR(x.q_square, y.q_square, relative * y.q_square);
          EXPECT_NEAR(x.k_variance, y.k_variance, relative * (2 * y.k_variance + y.key_mean_square));
          EXPECT_NEAR(x.key_mean_square, y.key_mean_square, relative * (y.key_mean_square + y.k_variance * y.dim));
          EXPECT_EQ(x.dim, y.dim);
          EXPECT_NEAR(x.scale_square, y.scale_square, 1e-12 * y.scale_square);
          ++heads;
        }
      });
  EXPECT_GT(heads, 100);
}

// MATH.md section 3: without masks the within-row variance of q·k is ⟨QᵀQ/T, Cov(K)⟩, so alignment is 1 for what is
// isotropic and dim for queries and keys that all lie along one direction.
TEST(Causes, AlignmentIsOneForIsotropicHeads) {
  constexpr std::int64_t kLength = 2000, kDim = 16;
  Rng rng(3);
  Buffer q(DType::kF32, {1, 2, kLength, kDim}), k(DType::kF32, {1, 2, kLength, kDim}),
      o(DType::kF32, {1, 2, kLength, kDim});
  q.fill_normal(rng, 3), k.fill_normal(rng, 0.5);
  for (std::int64_t i = 0; i < kLength; ++i)
    for (std::int64_t d = 0; d < kDim; ++d) {
      k.set(0, 0, i, d, k.get(0, 0, i, d) + 2);  // a mean key changes nothing
      if (d > 0) q.set(0, 1, i, d, 0), k.set(0, 1, i, d, 0);
    }
  Problem problem;
  problem.stats = StatsLevel::kFull;
  const Stats stats = forward(problem, {q.tensor(), k.tensor(), k.tensor()}, {o.tensor()});
  const HeadStats &isotropic = stats.at(0, 0), &aligned = stats.at(0, 1);
  // Sampling: √(2/kLength) for each of 16 components' variances, and their cross terms.
  const double sampling = 4 * std::sqrt(2.0 * 2 / kLength);
  EXPECT_NEAR(isotropic.alignment(), 1, sampling);
  EXPECT_NEAR(isotropic.causes.sigma_q(), 3, 3 * sampling);
  EXPECT_NEAR(isotropic.causes.sigma_k(), 0.5, 0.5 * sampling);
  EXPECT_NEAR(isotropic.causes.key_mean_norm(), 2 * std::sqrt(double{kDim}), sampling);
  EXPECT_NEAR(aligned.alignment(), kDim, kDim * 1e-3);
}

// Queries in two calls, numbered through, are the queries in one: in either order.
TEST(Merge, SplitQueriesAreTheWholeInAnyOrder) {
  constexpr std::int64_t kQueries = 300, kKeys = 150, kDim = 32, kCut = 64 * 3;
  Rng rng(11);
  Buffer q(DType::kF32, {1, 3, kQueries, kDim}), k(DType::kF32, {1, 3, kKeys, kDim}),
      o(DType::kF32, {1, 3, kQueries, kDim});
  q.fill_normal(rng, 1), k.fill_normal(rng, 1);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    Problem problem;
    problem.stats = StatsLevel::kFull;
    problem.stats_options = {.first_query = from, .by_keys = true, .gaps = true};
    const auto rows = [&](Tensor t) {
      t.data = static_cast<float*>(t.data) + from * kDim;
      t.shape[2] = to - from;
      return t;
    };
    return forward(problem, {rows(q.tensor()), k.tensor(), k.tensor()}, {rows(o.tensor())});
  };
  const Stats whole = part(0, kQueries), first = part(0, kCut), second = part(kCut, kQueries);
  for (const Stats& sum : {merge(first, second), merge(second, first), merge(merge(Stats{}, second), first)})
    for (std::size_t h = 0; h < 3; ++h) {
      const HeadStats &x = sum.per_head[h], &y = whole.per_head[h];
      EXPECT_EQ(x.row_count, y.row_count);
      EXPECT_EQ(x.raw.max_query, y.raw.max_query);
      EXPECT_EQ(x.raw.max_key, y.raw.max_key);
      EXPECT_EQ(x.raw.max, y.raw.max);
      EXPECT_EQ(x.raw.min, y.raw.min);
      EXPECT_EQ(x.gaps.counts, y.gaps.counts);
      EXPECT_EQ(x.softmax.relative_entropy.counts, y.softmax.relative_entropy.counts);
      EXPECT_EQ(x.softmax.rows_trace_j_under_1pct, y.softmax.rows_trace_j_under_1pct);
      EXPECT_EQ(x.blocks.all, y.blocks.all);
      EXPECT_EQ(x.by_keys.size(), y.by_keys.size());
      EXPECT_NEAR(x.raw.m2, y.raw.m2, 1e-12 * y.raw.m2);
      EXPECT_NEAR(x.raw.mean, y.raw.mean, 1e-12);
      EXPECT_NEAR(x.mean_lse, y.mean_lse, 1e-12 * std::fabs(y.mean_lse));
      for (double SoftmaxMeans::*mean : SoftmaxMeans::all())
        EXPECT_NEAR(x.softmax.*mean, y.softmax.*mean, 1e-12 * (1 + y.softmax.*mean));
      EXPECT_NEAR(x.causes.q_square, y.causes.q_square, 1e-6);
      EXPECT_NEAR(x.alignment(), y.alignment(), 1e-6);
    }
}

// Attention over two parts of the keys, merged row by row, is attention over all: output and every statistic.
TEST(Merge, SplitKeysAreTheWhole) {
  constexpr std::int64_t kQueries = 130, kKeys = 260, kDim = 16, kCut = 97;
  Rng rng(23);
  const Extents rows = {1, 2, kQueries, 1};
  Buffer q(DType::kF64, {1, 2, kQueries, kDim}), k(DType::kF64, {1, 2, kKeys, kDim}),
      v(DType::kF64, {1, 2, kKeys, kDim});
  q.fill_normal(rng, 2), k.fill_normal(rng, 1), v.fill_normal(rng, 1);
  struct Part {
    Buffer o, lse;
    std::vector<Buffer> memory;
    Outputs out;
    Stats stats;
  };
  const auto run_part = [&](std::int64_t from, std::int64_t to) {
    Part part;
    part.o = Buffer(DType::kF64, {1, 2, kQueries, kDim}), part.lse = Buffer(DType::kF64, rows);
    part.out.o = part.o.tensor(), part.out.lse = part.lse.tensor();
    const auto give = [&](Tensor RowTensors::*tensor) {
      part.memory.emplace_back(DType::kF64, rows);
      part.out.rows.*tensor = part.memory.back().tensor();
    };
    for (const base::BasicRowTensor& t : base::kBasicRowTensors) give(t.tensor);
    for (const base::FullRowTensor& t : base::kFullRowTensors) give(t.tensor);
    const auto keys = [&](Tensor t) {
      t.data = static_cast<double*>(t.data) + from * kDim;
      t.shape[2] = to - from;
      return t;
    };
    Problem problem;
    problem.stats = StatsLevel::kFull;
    problem.stats_options.by_keys = true;
    part.stats = forward(problem, {q.tensor(), keys(k.tensor()), keys(v.tensor())}, part.out);
    return part;
  };
  const Part whole = run_part(0, kKeys), first = run_part(0, kCut), second = run_part(kCut, kKeys);
  const auto near = [](double x, double y, const char* what) { EXPECT_NEAR(x, y, 1e-11 * (1 + std::fabs(y))) << what; };
  merge(first.out, second.out, kCut);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < kQueries; ++i) {
      for (std::int64_t d = 0; d < kDim; ++d) near(first.o.get(0, h, i, d), whole.o.get(0, h, i, d), "o");
      near(first.lse.get(0, h, i, 0), whole.lse.get(0, h, i, 0), "lse");
      for (std::size_t t = 0; t < whole.memory.size(); ++t)
        near(first.memory[t].get(0, h, i, 0), whole.memory[t].get(0, h, i, 0),
             t < 3 ? base::kBasicRowTensors[t].name : base::kFullRowTensors[t - 3].name);
    }
  StatsOptions options;
  options.by_keys = true;
  const Stats merged = stats_of_rows(first.out.rows, first.out.lse, options);
  for (std::size_t h = 0; h < 2; ++h) {
    const HeadStats &x = merged.per_head[h], &y = whole.stats.per_head[h];
    for (double SoftmaxMeans::*mean : SoftmaxMeans::all()) near(x.softmax.*mean, y.softmax.*mean, "mean");
    EXPECT_EQ(x.score.pairs, y.score.pairs);
    EXPECT_EQ(x.score.max_query, y.score.max_query);
    EXPECT_EQ(x.score.max_key, y.score.max_key);
    near(x.raw.m2, y.raw.m2, "m2");
    near(x.raw.within_m2, y.raw.within_m2, "within_m2");
    EXPECT_EQ(x.by_keys.size(), y.by_keys.size());
  }
  Outputs lacking = first.out;
  lacking.rows.sum_p3 = {};
  EXPECT_THROW(merge(lacking, second.out, kCut), Error);
  EXPECT_THROW(merge(first.out, first.out, kCut), Error);
}

// A running average with decay 1 is the merge of all steps; with decay 0 the last step; else weights fall
// geometrically.
TEST(RunningStats, WeighsStepsByTheirAge) {
  const auto step = [](double entropy, std::int64_t rows, float max) {
    Stats stats{StatsLevel::kFull, 1, 1, {HeadStats{}}};
    HeadStats& head = stats.per_head[0];
    head.row_count = head.rows_counted = head.rows_sampled = rows;
    head.softmax.entropy = entropy;
    head.raw_max = max;
    for (std::int64_t i = 0; i < rows; ++i) head.softmax.relative_entropy.add(entropy / 10);
    return stats;
  };
  const Stats steps[] = {step(1, 10, 9), step(2, 10, 3), step(4, 10, 5)};
  for (const double decay : {0.0, 0.5, 1.0}) {
    RunningStats running(decay);
    EXPECT_TRUE(running.stats().per_head.empty());
    for (const Stats& s : steps) running.add(s);
    const DecayedHeadStats& head = running.stats().at(0, 0);
    const double a = decay * decay, b = decay, total = a + b + 1;
    EXPECT_NEAR(head.softmax.entropy, (a * 1 + b * 2 + 4) / total, 1e-12);
    EXPECT_NEAR(head.row_count, 10 * total, 1e-12);
    EXPECT_EQ(head.raw_max, 9);
    const auto& counts = head.softmax.relative_entropy.counts;
    EXPECT_NEAR(std::accumulate(counts.begin(), counts.end(), 0.0), 10 * total, 1e-12);
  }
  EXPECT_THROW(RunningStats(1.5), Error);
  RunningStats running(0.9);
  running.add(steps[0]);
  EXPECT_THROW(running.add(Stats{StatsLevel::kFull, 2, 1, {HeadStats{}, HeadStats{}}}), Error);
}

}  // namespace
}  // namespace rootdk::test
