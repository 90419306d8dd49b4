// The judge on what the engine measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rootdk/rootdk.h"
#include "rootdk/running_stats.h"
#include "rootdk/theory.h"
#include "support/buffer.h"
#include "support/rng.h"

namespace rootdk::theory {
namespace {

using Codes = std::vector<Verdict>;

struct Data {
  test::Buffer q, k, v, o;
  Data(std::int64_t batch, std::int64_t length, std::int64_t dim, std::uint64_t seed, DType dtype = DType::kF32)
      : q(dtype, {batch, 1, length, dim}),
        k(dtype, {batch, 1, length, dim}),
        v(dtype, {batch, 1, length, 8}),
        o(dtype, {batch, 1, length, 8}) {
    test::Rng rng(seed);
    for (test::Buffer* x : {&q, &k, &v}) x->fill_normal(rng, 1);
  }
  Stats run(Problem problem) {
    const test::Buffer &cq = q, &ck = k, &cv = v;
    return forward(problem, {cq.tensor(), ck.tensor(), cv.tensor()}, {.o = o.tensor()});
  }
};

Problem full(Scale scale) { return {.scale = scale, .stats = StatsLevel::kFull}; }

/// Mean over independent batch items, and its standard error.
struct Mean {
  double mean = 0, error = 0;
};

template <class Value>
Mean over_items(const std::vector<Judgement>& items, const Value& value) {
  const auto n = static_cast<double>(items.size());
  double sum = 0, squares = 0;
  for (const Judgement& j : items) sum += value(j);
  for (const Judgement& j : items) squares += (value(j) - sum / n) * (value(j) - sum / n);
  return {sum / n, std::sqrt(squares / (n - 1) / n)};
}

void expect_agrees(const Mean& measured, double expected, const char* what, double bias = 0) {
  EXPECT_NEAR(measured.mean, expected, 4 * measured.error + bias) << what;
  EXPECT_LT(measured.error, 0.05 * expected) << what << ": too few samples to tell";
}

// The three scales of the paper, at d = 512 and 1024 keys. Rows of an item share their keys, so errors are between
// items.
TEST(JudgeMeasured, NoneFreezesRootIsSoftWholeIsUniform) {
  constexpr double kDim = 512;
  Data data(8, 1024, 512, 1);
  const struct {
    Scale scale;
    Verdict verdict;
    double sigma;
  } cases[] = {{Scale::none(), Verdict::kFrozen, std::sqrt(kDim)},
               {Scale::inv_sqrt_dk(), Verdict::kSoft, 1},
               {Scale::inv_dk(), Verdict::kUniform, 1 / std::sqrt(kDim)}};
  for (const auto& [scale, verdict, sigma] : cases) {
    SCOPED_TRACE(scale.name());
    const std::vector<Judgement> items = judge(data.run(full(scale)));
    for (const Judgement& j : items) {
      EXPECT_EQ(j.codes, Codes{verdict}) << j.words;
      EXPECT_NEAR(j.keys, 1024, 1e-9 * 1024);
    }
    expect_agrees(over_items(items, [](const Judgement& j) { return j.sigma; }), sigma, "sigma");
    expect_agrees(over_items(items, [](const Judgement& j) { return j.divisor_over_sqrt_dk; }), 1, "divisor/√d_k");
    // H where it is small, ln n − H elsewhere: what tells one spread from another. MATH gives f32 2e-6 on H.
    const bool frozen = verdict == Verdict::kFrozen;
    const auto tell = [&](double entropy) { return frozen ? entropy : std::log(1024.0) - entropy; };
    expect_agrees(over_items(items, [&](const Judgement& j) { return tell(j.entropy) / tell(j.predicted_entropy); }), 1,
                  "entropy", 2e-6 * std::log(1024.0) / tell(items[0].predicted_entropy));
    // Rows' spreads differ by a share √(2/d), which moves a mean of products from the product of means by its square.
    expect_agrees(over_items(items, [](const Judgement& j) { return j.stein_ratio; }), 1, "Stein's ratio", 2 / kDim);
  }
}

// The parts that words are about multiply to σ.
TEST(JudgeMeasured, PartsMakeUpTheSpread) {
  Data data(1, 300, 32, 2);
  const Evidence e = evidence_of(data.run(full(Scale::constant(0.7))).at(0, 0));
  EXPECT_NEAR(e.scale * std::sqrt(e.dim_qk * e.alignment) * e.sigma_q * e.sigma_k / e.raw_sigma, 1, 1e-9);
}

void expect_same(const Judgement& a, const Judgement& b) {
  EXPECT_EQ(a.codes, b.codes) << a.words << "\n" << b.words;
  // Sums in another order, over at most 2^20 terms.
  const auto near = [](double x, double y, const char* what) {
    if (std::isnan(x) && std::isnan(y)) return;
    EXPECT_NEAR(x, y, 0x1p-52 * 0x1p20 * std::fabs(x)) << what;
  };
  near(a.sigma, b.sigma, "sigma");
  near(a.keys, b.keys, "keys");
  near(a.entropy, b.entropy, "entropy");
  near(a.predicted_entropy, b.predicted_entropy, "predicted entropy");
  near(a.rounding, b.rounding, "rounding");
  near(a.divisor, b.divisor, "divisor");
}

// Batches merged in any order, or taken as running statistics of one step, are judged alike.
TEST(JudgeMeasured, MergingDoesNotMatter) {
  for (const Scale& scale : {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()}) {
    Data data(3, 96, 24, 3, DType::kBF16);
    Problem problem = full(scale);
    problem.mask.causal = true;
    const Stats stats = data.run(problem);
    const HeadStats &a = stats.at(0, 0), &b = stats.at(1, 0), &c = stats.at(2, 0);
    const Setting setting = {.dtype = DType::kBF16};
    const Judgement all = judge(over_batch(stats).at(0, 0), setting);
    expect_same(judge(merge(c, merge(b, a)), setting), all);
    expect_same(judge(merge(merge(b, c), a), setting), all);
    expect_same(judge(merge(merge(a, a), merge(a, a)), setting), judge(a, setting));
    RunningStats running(1);
    running.add(stats);
    expect_same(judge(over_batch(running.stats()).at(0, 0), setting), all);
  }
}

TEST(JudgeMeasured, BasicStatisticsSayWhatTheyCannotTell) {
  Data data(1, 64, 64, 4);
  const auto judged = [&](Scale scale, DType dtype) {
    return judge(data.run({.scale = scale}).at(0, 0), {.dtype = dtype});
  };
  EXPECT_EQ(judged(Scale::inv_sqrt_dk(), DType::kBF16).codes, Codes{Verdict::kUnknown});
  EXPECT_EQ(judged(Scale::inv_sqrt_dk(), DType::kBF16).words,
            "Spread and entropy are not known (full statistics measure them), so whether the head is uniform, sharp or "
            "frozen was not judged.");
  EXPECT_EQ(judged(Scale::constant(20), DType::kBF16).verdict, Verdict::kExploding);
  EXPECT_EQ(judged(Scale::constant(1e5), DType::kF32).codes, Codes{Verdict::kFrozen});
}

TEST(JudgeMeasured, TheMinimumCanExplode) {
  Data data(1, 2, 1, 5);
  for (std::int64_t i = 0; i < 2; ++i) data.q.set(0, 0, i, 0, 1), data.k.set(0, 0, i, 0, i == 0 ? -60 : -61);
  const Judgement j = judge(data.run(full(Scale::none())).at(0, 0), {.dtype = DType::kBF16});
  EXPECT_EQ(j.verdict, Verdict::kExploding);
  EXPECT_EQ(j.rounding, 61 * 0x1p-9);
}

TEST(JudgeMeasured, NotFinite) {
  Data data(1, 8, 4, 6);
  data.q.set(0, 0, 3, 1, std::numeric_limits<double>::quiet_NaN());
  const Judgement j = judge(data.run(full(Scale::inv_sqrt_dk())).at(0, 0));
  EXPECT_EQ(j.verdict, Verdict::kNotFinite);
  EXPECT_TRUE(j.words.starts_with("Not finite: NaN or Inf in 12.5 % of the rows.")) << j.words;
}

TEST(JudgeMeasured, NothingToSee) {
  Data data(1, 1, 4, 7);
  const Judgement j = judge(data.run(full(Scale::inv_sqrt_dk())).at(0, 0));
  EXPECT_EQ(j.codes, Codes{Verdict::kUnknown});
  EXPECT_EQ(j.words, "No row sees two keys, so there is nothing else to judge.");
}

// A mask written as a bias of −10⁹ leaves an enormous σ behind, and a soft head.
TEST(JudgeMeasured, ABiasForAMaskIsNotFrozen) {
  Data data(1, 64, 16, 8);
  test::Buffer bias(DType::kF32, {1, 1, 1, 64});
  bias.fill(0);
  for (std::int64_t key = 48; key < 64; ++key) bias.set(0, 0, 0, key, -1e9);
  Problem problem = full(Scale::inv_sqrt_dk());
  problem.mask.bias = static_cast<const test::Buffer&>(bias).tensor();
  const Judgement j = judge(data.run(problem).at(0, 0));
  EXPECT_GT(j.sigma, 1e8);
  EXPECT_EQ(j.codes, Codes{Verdict::kOutliers}) << j.words;
}

TEST(JudgeMeasured, Sink) {
  Data data(1, 64, 16, 9);
  const float sink[] = {6};
  Problem problem = full(Scale::inv_sqrt_dk());
  problem.sink = sink;
  const Judgement j = judge(data.run(problem).at(0, 0));
  EXPECT_EQ(j.codes, Codes{Verdict::kSink}) << j.words;
}

// With theory from the weights beside the measurement.
TEST(JudgeMeasured, SaysWhatWasExpected) {
  Data data(1, 64, 16, 10);
  const Judgement j = judge(data.run(full(Scale::inv_sqrt_dk())).at(0, 0), {.expected_sigma = 1.5});
  EXPECT_NE(j.words.find("From the weights alone one would expect σ = 1.5."), std::string::npos) << j.words;
}

}  // namespace
}  // namespace rootdk::theory
