// The judge on evidence made by hand: what must hold for any evidence, and both sides of every threshold.
// tests/theory/judge_measured_test.cc has it judge what the engine measured.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rootdk/theory.h"
#include "support/message.h"

namespace rootdk::theory {
namespace {

using Codes = std::vector<Verdict>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double above(double x) { return std::nextafter(x, kInfinity); }
bool has(const Judgement& j, Verdict verdict) {
  return std::find(j.codes.begin(), j.codes.end(), verdict) != j.codes.end();
}

/// A healthy head, as it would be measured.
Evidence soft(double sigma = 1, double keys = 1024) {
  Evidence e;
  e.rows = 100;
  e.keys = keys;
  e.sigma = e.raw_sigma = sigma;
  const GaussianSoftmax g = gaussian_softmax(sigma, keys);
  e.entropy = g.entropy;
  e.sum_p2 = g.sum_p2;
  e.mean_score = g.log_z - g.entropy;
  e.mean_p_max = e.median_p_max = gaussian_p_max(sigma, keys);
  e.raw_max = 5 * sigma;
  return e;
}

/// Over the whole range from the first case on; left alone, RapidCheck starts with the smallest values.
int pick(int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, end)); }
double draw(double low, double high) { return low + (high - low) * pick(1'000'001) / 1e6; }
double log_draw(double low, double high) { return std::exp(draw(std::log(low), std::log(high))); }
bool coin() { return pick(2) == 0; }

/// Anything at all; each number may be unknown.
Evidence any_evidence() {
  const auto maybe = [](double x) { return pick(5) == 0 ? Evidence::kUnknown : x; };
  Evidence e;
  e.rows = maybe(pick(3) * 50.0);
  e.keys = maybe(log_draw(2, 1e6));
  e.sigma = maybe(coin() ? log_draw(1e-4, 1e4) : 0);
  e.entropy = maybe(draw(0, 1) * (std::isnan(e.keys) ? 5 : std::log(e.keys)));
  e.sum_p2 = maybe(draw(0, 1));
  e.mean_score = maybe(draw(-1, 100));
  e.mean_p_max = maybe(draw(0, 1));
  e.median_p_max = maybe(draw(0, 1));
  e.sink = coin() ? 0 : draw(0, 1);
  e.not_finite = coin() ? 0 : draw(0, 1);
  e.dtype = *rc::gen::element(DType::kF32, DType::kF16, DType::kBF16, DType::kF64);
  e.raw_max = maybe(log_draw(1e-3, 1e6));
  e.raw_sigma = maybe(log_draw(1e-4, 1e4));
  e.scale = maybe(log_draw(1e-4, 10));
  e.sigma_q = maybe(log_draw(1e-3, 1e3));
  e.sigma_k = maybe(log_draw(1e-3, 1e3));
  e.key_mean_norm = maybe(log_draw(1e-3, 1e3));
  e.alignment = maybe(log_draw(1e-2, 1e2));
  e.expected_sigma = maybe(log_draw(1e-4, 1e4));
  e.ground = *rc::gen::element(Ground::kMeasured, Ground::kEmbeddings, Ground::kWeights);
  e.overflows = e.ground != Ground::kMeasured && coin();
  return e;  // dim_qk stays unknown: the average over ‖q‖ costs thirty times as much
}

/// The symptom alone: what follows may speak of the scale or of dtypes, which are facts.
std::string symptom_of(const Judgement& j) {
  return j.words.substr(0, std::min(j.words.find(". "), j.words.find("the spread")));
}

TEST(Judge, SaysSomethingOfAnything) {
  for (int i = 0; i < 20; ++i)  // of a hundred cases each: some combinations are rare
    ASSERT_TRUE(rc::check([] {
      const Judgement j = judge(any_evidence());
      RC_ASSERT(!j.codes.empty());
      RC_ASSERT(j.verdict == j.codes.front());
      RC_ASSERT(std::is_sorted(j.codes.rbegin(), j.codes.rend()));
      RC_ASSERT(std::adjacent_find(j.codes.begin(), j.codes.end()) == j.codes.end());
      if (has(j, Verdict::kSoft) || has(j, Verdict::kUnknown)) RC_ASSERT(j.codes.size() == 1u);
      if (has(j, Verdict::kFrozen)) RC_ASSERT(!has(j, Verdict::kSharp));
      // What never ran is nowhere spoken of as if it had.
      const bool fact =
          j.ground == Ground::kMeasured || j.verdict == Verdict::kNotFinite || j.verdict == Verdict::kUnknown;
      RC_ASSERT(j.words.starts_with("Would be ") == !fact);
      RC_ASSERT((j.fix.find("if measuring bears this out") != j.fix.npos ||
                 j.fix.starts_with("If measuring bears this out, ")) == !fact);
      for (const char* claim : {"σ = ", " is ", "half of the rows give"})
        RC_ASSERT(fact || symptom_of(j).find(claim) == std::string::npos);
      for (const std::string* text : {&j.words, &j.fix}) {
        RC_ASSERT(text->size() > 4u && text->back() == '.');
        RC_ASSERT(text->find("nan") == std::string::npos);
        RC_ASSERT(text->find("  ") == std::string::npos);
        RC_ASSERT(text->front() >= 'A' && text->front() <= 'Z');
      }
    }));
}

bool too_wide(const Judgement& j) {
  return has(j, Verdict::kFrozen) || has(j, Verdict::kSharp) || has(j, Verdict::kOutliers);
}

// More spread and all else equal: what is frozen stays so, and what is too wide never becomes soft.
TEST(Judge, IsMonotoneInSigma) {
  EXPECT_TRUE(rc::check([] {
    Evidence e = any_evidence();
    e.keys = log_draw(2, 1e6);
    e.sigma = log_draw(1e-3, 1e3);
    const Judgement before = judge(e);
    e.sigma *= 1 + log_draw(1e-3, 100);
    const Judgement after = judge(e);
    if (has(before, Verdict::kFrozen)) RC_ASSERT(has(after, Verdict::kFrozen));
    if (too_wide(before)) RC_ASSERT(too_wide(after));
  }));
}

// From theory alone a head goes from uniform over soft and sharp to frozen, each exactly once.
TEST(Judge, GoesFromUniformToFrozen) {
  for (const double keys : {16.0, 1024.0, 1e6}) {
    std::vector<Verdict> seen;
    for (double sigma = 0.001; sigma < 100; sigma *= 1.05) {
      Evidence e;
      e.keys = keys;
      e.sigma = sigma;
      const Verdict v = judge(e).verdict;
      if (seen.empty() || seen.back() != v) seen.push_back(v);
    }
    EXPECT_EQ(seen, (Codes{Verdict::kUniform, Verdict::kSoft, Verdict::kSharp, Verdict::kFrozen})) << keys;
  }
}

// Thresholds: at the number it does not hold, beyond it does ---------------------------------------------------------

TEST(JudgeThresholds, Uniform) {
  Evidence e = soft(0.3);
  e.entropy = std::log(e.keys) - 0.01;
  EXPECT_EQ(judge(e).codes, Codes{Verdict::kSoft});
  e.entropy = above(e.entropy);
  EXPECT_EQ(judge(e).codes, Codes{Verdict::kUniform});
  EXPECT_EQ(judge(e, {.uniform = 0.009}).codes, Codes{Verdict::kSoft});
  // Without a measurement the prediction decides: H ≈ ln n − σ²/2 crosses at σ = √0.02.
  e.entropy = Evidence::kUnknown;
  for (const double sigma : {0.135, 0.15}) {
    e.sigma = sigma;
    EXPECT_EQ(judge(e).verdict, sigma * sigma < 0.02 ? Verdict::kUniform : Verdict::kSoft) << sigma;
  }
}

TEST(JudgeThresholds, SharpAndFrozen) {
  Evidence e = soft(4);
  e.median_p_max = e.mean_p_max = 0.4;
  const double critical = critical_sigma(e.keys);
  EXPECT_EQ((e.sigma = critical / 2, judge(e).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.sigma = above(critical / 2), judge(e).codes), Codes{Verdict::kSharp});
  EXPECT_EQ((e.sigma = critical, judge(e).codes), Codes{Verdict::kSharp});
  EXPECT_EQ((e.sigma = above(critical), judge(e).codes), Codes{Verdict::kFrozen});
  EXPECT_EQ(judge(e, {.frozen = 1.1}).codes, Codes{Verdict::kSharp});
  EXPECT_EQ(judge(e, {.sharp = 1.1, .frozen = 1.1}).codes, Codes{Verdict::kSoft});
}

TEST(JudgeThresholds, MedianLargestProbability) {
  Evidence e = soft();
  EXPECT_EQ((e.median_p_max = 0.99, judge(e).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.median_p_max = above(0.99), judge(e).codes), Codes{Verdict::kFrozen});
  EXPECT_EQ(judge(e, {.frozen_p_max = 0.999}).codes, Codes{Verdict::kSoft});
  // Only the mean is known: it must force the median.
  e.median_p_max = Evidence::kUnknown;
  EXPECT_EQ((e.mean_p_max = 0.995, judge(e).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.mean_p_max = above(0.995), judge(e).codes), Codes{Verdict::kFrozen});
}

TEST(JudgeThresholds, Sink) {
  Evidence e = soft();
  e.entropy = std::log(2.0) + e.entropy / 2;  // as a sink of half the mass leaves it
  EXPECT_EQ((e.sink = 0.5, judge(e).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.sink = above(0.5), judge(e).codes), Codes{Verdict::kSink});
  EXPECT_EQ(judge(e, {.sink = 0.6}).codes, Codes{Verdict::kSoft});
}

TEST(JudgeThresholds, Exploding) {
  Evidence e = soft();
  // u·|max| = 0.1 at 51.2 and 204.8; both are exact doubles times a power of two, so 0.1 is met to the bit.
  const struct {
    DType dtype;
    double u;
  } narrow[] = {{DType::kBF16, 0x1p-9}, {DType::kF16, 0x1p-11}};
  for (const auto& [dtype, u] : narrow) {
    e.dtype = dtype;
    EXPECT_EQ((e.raw_max = 0.1 / u, judge(e).codes), Codes{Verdict::kSoft});
    EXPECT_EQ((e.raw_max = above(0.1 / u), judge(e).codes), Codes{Verdict::kExploding});
    EXPECT_EQ(judge(e).rounding, u * e.raw_max);
    EXPECT_EQ(judge(e, {.rounding = 0.2}).codes, Codes{Verdict::kSoft});
  }
  // The second f16 threshold, with the first out of the way.
  EXPECT_EQ((e.raw_max = 16'376, judge(e, {.rounding = 1e9}).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.raw_max = above(16'376), judge(e, {.rounding = 1e9}).codes), Codes{Verdict::kExploding});
  e.dtype = DType::kBF16;
  EXPECT_EQ(judge(e, {.rounding = 1e9}).codes, Codes{Verdict::kSoft});
  // f32 and f64 report the rounding and leave it at that.
  for (const auto& [dtype, u] : {std::pair{DType::kF32, 0x1p-24}, std::pair{DType::kF64, 0x1p-53}}) {
    e.dtype = dtype;
    e.raw_max = 1e9;
    EXPECT_EQ(judge(e).codes, Codes{Verdict::kSoft});
    EXPECT_EQ(judge(e).rounding, u * 1e9);
  }
}

TEST(JudgeThresholds, NotFinite) {
  Evidence e = soft();
  EXPECT_EQ((e.not_finite = 1e-12, judge(e).codes), Codes{Verdict::kSoft});
  EXPECT_EQ((e.not_finite = above(1e-12), judge(e).codes), Codes{Verdict::kNotFinite});
  EXPECT_EQ(judge(e, {.not_finite = 0.1}).codes, Codes{Verdict::kSoft});
}

// Σp² overrules a σ that only a few scores make.
TEST(JudgeThresholds, Outliers) {
  Evidence e = soft();
  const double critical = critical_sigma(e.keys);
  for (const double sigma : {above(critical / 2), critical, above(critical), 2 * critical, 1e8}) {
    e.sigma = sigma;
    const bool frozen = sigma > critical;
    const double limit = gaussian_softmax(0.7 * (frozen ? 1 : 0.5) * critical, e.keys).sum_p2;
    EXPECT_EQ((e.sum_p2 = limit, judge(e).codes), Codes{frozen ? Verdict::kFrozen : Verdict::kSharp});
    EXPECT_EQ((e.sum_p2 = std::nextafter(limit, 0), judge(e).codes), Codes{Verdict::kOutliers});
    EXPECT_EQ(judge(e, {.outliers = 0.6}).codes, Codes{frozen ? Verdict::kFrozen : Verdict::kSharp});
  }
  EXPECT_EQ((e.sigma = critical / 2, judge(e).codes), Codes{Verdict::kSoft});
}

// Gaussian scores never look like outliers: down to two keys, and for queries of any dimension.
TEST(JudgeThresholds, GaussianScoresHaveNoOutliers) {
  for (const double keys : {2.0, 4.0, 16.0, 1024.0, 65536.0})
    for (const double share : {0.5, 0.6, 0.8, 1.0, 1.2, 2.0, 6.0})
      for (const std::int64_t dim : {0, 1, 2, 64}) {
        Evidence e = soft(above(share) * critical_sigma(keys), keys);
        if (dim > 0) e.sum_p2 = gaussian_softmax(e.sigma, keys, dim).sum_p2;
        EXPECT_FALSE(has(judge(e), Verdict::kOutliers)) << keys << " keys, σ " << e.sigma << ", dim " << dim;
      }
}

// What the numbers are -----------------------------------------------------------------------------------------------

TEST(Judge, SeveralCodesTheMostSeriousFirst) {
  Evidence e = soft(8);
  e.dtype = DType::kBF16;
  e.raw_max = 60;
  e.not_finite = 0.25;
  e.sink = 0.6;
  EXPECT_EQ(judge(e).codes, (Codes{Verdict::kNotFinite, Verdict::kExploding, Verdict::kFrozen, Verdict::kSink}));
}

TEST(Judge, PredictsWithTheTheory) {
  Evidence e = soft(2);
  e.dim_qk = 16;
  const Judgement j = judge(e);
  EXPECT_EQ(j.sigma_c, critical_sigma(1024));
  EXPECT_EQ(j.predicted_entropy, gaussian_softmax(2, 1024, 16).entropy);
  EXPECT_EQ(j.entropy, e.entropy);
  EXPECT_NEAR(j.stein_ratio, 1, 1e-6);  // the quadrature's promise
  e.dim_qk = Evidence::kUnknown;
  EXPECT_EQ(judge(e).predicted_entropy, gaussian_softmax(2, 1024).entropy);
}

// Dividing by the factor gives unit variance; the divisor is that of q·k itself, whatever the scale is.
TEST(Judge, UnitVariance) {
  EXPECT_TRUE(rc::check([] {
    Evidence e = soft();
    const double dot_sigma = log_draw(0.01, 1000);  // of q·k
    e.scale = log_draw(1e-3, 1);
    e.raw_sigma = dot_sigma * e.scale;
    const Judgement j = judge(e);
    RC_ASSERT(j.unit_variance_factor == e.raw_sigma);
    RC_ASSERT(std::fabs(j.divisor / dot_sigma - 1) < 1e-14);
    RC_ASSERT(std::isnan(j.divisor_over_sqrt_dk));  // no dimension known
  }));
  Evidence e = soft();
  e.scale = 0.125;
  e.dim_qk = 64;
  EXPECT_DOUBLE_EQ(judge(e).divisor, 8);
  EXPECT_DOUBLE_EQ(judge(e).divisor_over_sqrt_dk, 1);
}

// A sink hides nothing: keys that are uniform among themselves are, whatever it takes.
TEST(Judge, UniformBesideASink) {
  for (const double mass : {0.001, 0.1, 0.5, 0.9, 0.99}) {
    Evidence e = soft(0.05);
    e.sink = mass;
    const double h = -mass * std::log(mass) - (1 - mass) * std::log(1 - mass);
    e.entropy = h + (1 - mass) * (std::log(e.keys) - 0.009);
    EXPECT_TRUE(has(judge(e), Verdict::kUniform)) << mass;
    e.entropy = h + (1 - mass) * (std::log(e.keys) - 0.011);
    EXPECT_FALSE(has(judge(e), Verdict::kUniform)) << mass;
  }
}

TEST(Judge, TheoryAlone) {
  // W_q = W_k = identity on isotropic inputs: q·k has variance d.
  constexpr std::int64_t kDim = 64;
  std::vector<double> identity(kDim * kDim, 0);
  for (std::int64_t i = 0; i < kDim; ++i) identity[static_cast<std::size_t>(i * kDim + i)] = 1;
  const Projected p = project({.weight = identity}, kDim);
  const auto judged = [&](double scale) {
    return judge(evidence_of(head_theory(p, p, {.scale = scale}), 1024, kDim, scale));
  };
  EXPECT_EQ(judged(1).codes, Codes{Verdict::kFrozen});
  EXPECT_EQ(judged(1 / 8.0).codes, Codes{Verdict::kSoft});
  EXPECT_EQ(judged(1 / 64.0).codes, Codes{Verdict::kUniform});
  for (const double scale : {1.0, 1 / 8.0, 1 / 64.0, -1 / 8.0}) {
    EXPECT_NEAR(judged(scale).divisor, 8, 1e-12);
    EXPECT_NEAR(judged(scale).divisor_over_sqrt_dk, 1, 1e-13);
    EXPECT_TRUE(std::isnan(judged(scale).entropy));
    EXPECT_TRUE(std::isnan(judged(scale).rounding));
  }
}

// A query mean counts as size of the queries, as it does in measured causes: the four parts still make up σ.
TEST(Judge, PartsOfTheoryMakeUpSigma) {
  HeadTheory head;
  head.sigma_q = 2, head.sigma_k = 3, head.query_mean_norm = 5, head.within_row_variance = 700,
  head.sigma = std::sqrt(700.0) / 4;
  const Evidence e = evidence_of(head, 100, 16, 0.25);
  EXPECT_NEAR(e.scale * std::sqrt(e.dim_qk * e.alignment) * e.sigma_q * e.sigma_k, e.sigma, 1e-12);
}

// Words --------------------------------------------------------------------------------------------------------------

/// A head of d = 64 and 1024 keys whose four parts are these.
Evidence made_of(double scale, double sigma_q, double sigma_k, double alignment) {
  Evidence e = soft(scale * 8 * sigma_q * sigma_k * std::sqrt(alignment));
  e.dim_qk = 64, e.scale = scale, e.sigma_q = sigma_q, e.sigma_k = sigma_k, e.alignment = alignment;
  return e;
}

TEST(JudgeWords, NameTheCause) {
  const auto words = [](const Evidence& e) { return judge(e).words; };
  EXPECT_NE(words(made_of(1, 1, 1, 1)).find("Why: q·k is not scaled, 8 times what 1/√d_k gives."), std::string::npos)
      << words(made_of(1, 1, 1, 1));
  EXPECT_NE(words(made_of(1 / 8.0, 3.1, 1, 1)).find("Why: queries are 3.1 times as large as unit variance."),
            std::string::npos);
  EXPECT_NE(words(made_of(1 / 8.0, 1, 7, 1)).find("Why: keys spread 7 times as far as unit variance."),
            std::string::npos);
  EXPECT_NE(words(made_of(1 / 8.0, 1, 1, 16))
                .find("Why: q and k are aligned: q·k varies 16 times as much as in unrelated directions."),
            std::string::npos);
  EXPECT_NE(words(made_of(1 / 8.0, 3, 2, 1))
                .find("Why: queries are 3 times as large as unit variance, and keys spread 2 times"),
            std::string::npos);
  EXPECT_NE(words(made_of(1 / 64.0, 1, 1, 1)).find("Why: the scale is 1/d_k, 0.125 times 1/√d_k."), std::string::npos);
  // What pulls the other way is no cause.
  EXPECT_EQ(words(made_of(1 / 8.0, 8, 0.5, 1)).find("keys spread"), std::string::npos);
}

TEST(JudgeWords, ExamplesInFull) {
  Evidence unscaled = made_of(1, 1, 1, 1);
  unscaled.median_p_max = 0.75;
  EXPECT_EQ(judge(unscaled).words, "Frozen: σ = 8 is 2.15 times σ_c = 3.72, where 1,024 keys freeze, and half of the "
                                   "rows give one key 0.75 or more. "
                                   "Why: q·k is not scaled, 8 times what 1/√d_k gives.");
  unscaled.median_p_max = 0.99996;  // no weight is "1 or more"
  EXPECT_EQ(judge(unscaled).words, "Frozen: σ = 8 is 2.15 times σ_c = 3.72, where 1,024 keys freeze, and half of the "
                                   "rows give one key practically all. "
                                   "Why: q·k is not scaled, 8 times what 1/√d_k gives.");
  EXPECT_EQ(judge(unscaled).fix, "Divide the scores by 8 for unit variance: use the scale 1/√d_k; or use QK-norm, "
                                 "which keeps σ there whatever the weights do.");
  EXPECT_EQ(judge(made_of(1 / 8.0, 1, 1, 1)).words, "Soft: σ = 1 is 0.269 times σ_c = 3.72, where 1,024 keys freeze, "
                                                    "and the entropy is 6.43 out of 6.93 (Gaussian scores: 6.43).");
  EXPECT_EQ(judge(made_of(1 / 8.0, 1, 1, 1)).fix, "No fix is needed.");
  EXPECT_EQ(judge(made_of(1 / 64.0, 1, 1, 1)).fix, "Multiply the scores by 8 for unit variance: use the scale 1/√d_k.");
  EXPECT_EQ(judge(made_of(1 / 8.0, 3.1, 1, 1)).fix,
            "Divide the scores by 3.1 for unit variance: use the scale 1/24.8, a divisor of 3.1·√d_k; or use QK-norm, "
            "which keeps σ there whatever the "
            "weights do.");
}

TEST(JudgeWords, FollowTheirGround) {
  Evidence e = made_of(1, 3, 1, 1);
  e.entropy = e.sum_p2 = e.mean_p_max = e.median_p_max = e.rows = e.raw_max = Evidence::kUnknown;
  e.ground = Ground::kWeights;
  EXPECT_EQ(judge(e).ground, Ground::kWeights);
  EXPECT_EQ(judge(e).words,
            fmt::format("Would be frozen if inputs were isotropic: σ would be 24, {:.3g} times σ_c = 3.72, where 1,024 "
                        "keys freeze, and Gaussian scores would leave an "
                        "entropy of {:.3g} out of 6.93. Why: q·k is not scaled, 8 times what 1/√d_k gives, and queries "
                        "would be 3 times as large as unit variance.",
                        24 / critical_sigma(1024), gaussian_softmax(24, 1024, 64).entropy));
  EXPECT_EQ(judge(e).fix,
            "If measuring bears this out, divide the scores by 24 for unit variance: use the scale 1/24, a divisor of "
            "3·√d_k; or use QK-norm, which keeps σ "
            "there whatever the weights do.");
  e.ground = Ground::kEmbeddings;
  EXPECT_TRUE(judge(e).words.starts_with("Would be frozen if every layer's inputs were like the embeddings: σ would be "
                                         "24, "))
      << judge(e).words;
  EXPECT_TRUE(judge(e).fix.starts_with("If measuring bears this out, divide ")) << judge(e).fix;
  Evidence soft_head = made_of(1 / 8.0, 1, 1, 1);
  soft_head.ground = Ground::kWeights;
  EXPECT_TRUE(judge(soft_head).words.starts_with("Would be soft if inputs were isotropic: σ would be 1, "))
      << judge(soft_head).words;
  EXPECT_EQ(judge(soft_head).fix, "No fix is needed, if measuring bears this out.");
  Evidence flat = soft(0);
  flat.ground = Ground::kWeights;
  EXPECT_EQ(judge(flat).words, "Would be uniform if inputs were isotropic: all scores of a row would be equal.");
}

// Of weights it is no matter of rows or of statistics, and finite ones are not called NaN.
TEST(JudgeWords, NotFinite) {
  Evidence e;
  e.not_finite = 1;
  EXPECT_EQ(judge(e).words, "Not finite: NaN or Inf in every row.");
  e.ground = Ground::kWeights;
  EXPECT_EQ(judge(e).words, "Not finite: NaN or Inf among its weights.");
  EXPECT_EQ(judge(e).fix, "Go back to a checkpoint whose weights are finite, and look for the step that made the first "
                          "NaN or Inf.");
  e.overflows = true;
  EXPECT_EQ(judge(e).words, "Not finite: its weights are finite, but products of them overflow f32.");
  EXPECT_EQ(judge(e).fix, "Go back to a checkpoint from before its weights ran away: no scale helps once q·k itself "
                          "overflows.");
  // Rows that are not finite may well have seen two keys.
  Evidence rows;
  rows.rows = 0;
  rows.not_finite = 0.5;
  EXPECT_EQ(judge(rows).words,
            "Not finite: NaN or Inf in 50 % of the rows. No finite row sees two keys, so there is nothing else to "
            "judge.");
}

TEST(JudgeWords, ExplodingBecauseOfTheMeanKey) {
  Evidence e = made_of(1 / 8.0, 1, 1, 1);
  e.dtype = DType::kBF16;
  e.raw_max = 80;
  EXPECT_EQ(judge(e).words, "Exploding: raw scores reach 80, which bf16 rounds by up to 0.156.");
  EXPECT_EQ(judge(e).fix, "Use QK-norm, or QK-clip with τ = 51.2.");
  e.key_mean_norm = 40;
  EXPECT_EQ(judge(e).words, "Exploding: raw scores reach 80, which bf16 rounds by up to 0.156. Why: the mean key has "
                            "length 40, and keys spread by only 8 about it.");
  EXPECT_TRUE(judge(e).fix.starts_with("Subtract the mean key"));
}

TEST(JudgeWords, ABiasIsNotMendedByAScale) {
  Evidence e = soft(8);
  e.raw_sigma = 1;
  EXPECT_NE(judge(e).words.find("c·q·k alone spreads by 1."), std::string::npos);
  EXPECT_EQ(judge(e).fix, "Make the bias smaller: no scale of q·k can change what it adds.");
}

TEST(JudgeWords, EqualScores) {
  Evidence e = soft(0);
  EXPECT_EQ(judge(e).words, "Uniform: all scores of a row are equal.");
  EXPECT_EQ(judge(e).fix, "Find out why q or k does not differ between keys: no scale can change that.");
}

TEST(Judge, RefusesWhatMakesNoSense) {
  const auto message = [](void (*spoil)(Evidence&)) {
    return test::message_of([spoil] {
      Evidence e = soft();
      spoil(e);
      judge(e);
    });
  };
  EXPECT_EQ(message([](Evidence& e) { e.sigma = -1; }),
            "sigma: -1, but a number of at least 0 is wanted, or NaN where it is unknown");
  EXPECT_EQ(message([](Evidence& e) { e.keys = 1; }),
            "keys: 1, but a number from 2 to 2^53 is wanted, or NaN where it is unknown");
  EXPECT_EQ(message([](Evidence& e) { e.dim_qk = 0; }),
            "dim_qk: 0, but a number from 1 to 2^53 is wanted, or NaN where it is unknown");
  EXPECT_EQ(test::message_of([] { judge(soft(), {.sharp = 2}); }),
            "thresholds: sharp 2 and frozen 1, but ascending ones are wanted");
  EXPECT_EQ(test::message_of([] { judge(soft(), {.sink = NAN}); }),
            "thresholds.sink: nan, but a finite number of at least 0 is wanted");
}

}  // namespace
}  // namespace rootdk::theory
