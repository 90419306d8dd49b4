// The scale: every rule against its formula, the length rules against queries scaled by hand, and the registry of
// names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {
namespace {

constexpr double kU64 = 0x1p-53;

void expect_relative(double got, double want, double roundings) {
  EXPECT_NEAR(got, want, roundings * kU64 * std::fabs(want));
}

TEST(Scale, FactorsAreTheirFormulas) {
  const std::vector<float> heads = {0.5f, -3.0f};
  for (const std::int64_t dim : {1, 64, 96, 512}) {
    const auto d = static_cast<double>(dim);
    EXPECT_EQ(Scale::none().factor(0, dim), 1);
    EXPECT_EQ(Scale::inv_sqrt_dk().factor(0, dim), 1 / std::sqrt(d));
    EXPECT_EQ(Scale::inv_dk().factor(0, dim), 1 / d);
    EXPECT_EQ(Scale::constant(0.3).factor(0, dim), 0.3);
    EXPECT_EQ(Scale::per_head(heads).factor(1, dim), -3);
    EXPECT_EQ(Scale::alpha_over_dk(8).factor(0, dim), 8 / d);
    expect_relative(Scale::unit_variance(0.5, 4).factor(0, dim), 1 / (2 * std::sqrt(d)), 4);
    expect_relative(Scale::inv_dk().with_yarn(16).factor(0, dim), std::pow(0.1 * std::log(16.0) + 1, 2) / d, 8);
  }
  EXPECT_EQ(Scale::alpha_over_dk(8).factor(0, 64), Scale::inv_sqrt_dk().factor(0, 64))
      << "muP's alpha of 8 is 1/sqrt(d_k) at 64";
}

TEST(Scale, LengthFactorsAreTheirFormulas) {
  const std::vector<float> gains = {0.5f, 2.0f}, offsets = {0.25f, -1.0f};
  const Scale both = Scale::none().with_ssmax(gains, offsets), gain_only = Scale::none().with_ssmax(gains);
  expect_relative(both.length_factor(0, {100, 0}), 0.5 * std::log(100.0) + 0.25, 4);
  expect_relative(both.length_factor(1, {100, 0}), 2 * std::log(100.0) - 1, 4);
  expect_relative(gain_only.length_factor(1, {100, 0}), 2 * std::log(100.0), 4);
  expect_relative(Scale::none().with_ssmax(0.43, 1).length_factor(0, {7, 0}), 0.43 * std::log(7.0) + 1, 4);
  expect_relative(Scale::none().with_entropy_invariance().length_factor(0, {512, 0}), 1, 2);
  expect_relative(Scale::none().with_entropy_invariance().length_factor(0, {8, 0}), 1.0 / 3, 4);
  const Scale llama = Scale::none().with_llama4_temperature();
  EXPECT_EQ(llama.length_factor(0, {1, 0}), 1);
  EXPECT_EQ(llama.length_factor(0, {1, 8190}), 1) << "the step comes with the 8192nd token";
  expect_relative(llama.length_factor(0, {1, 8191}), 1 + 0.1 * std::log(2.0), 4);
  expect_relative(llama.length_factor(0, {1, 10 * 8192 - 2}), 1 + 0.1 * std::log(10.0), 4);
  EXPECT_EQ(llama.length_factor(0, {1, -70000}), 1) << "before the first key";
  EXPECT_EQ(both.length_factor(0, {0, 0}), 0.25) << "a query that sees nothing counts as seeing one key";
  // The parts multiply.
  const Scale all = Scale::constant(3).with_yarn(2).with_ssmax(0.5);
  expect_relative(all.factor(0, 64, {20, 0}), 3 * std::pow(0.1 * std::log(2.0) + 1, 2) * 0.5 * std::log(20.0), 10);
}

TEST(Scale, SlopesAreDerivatives) {
  const ScaleRow row{37, 20000};
  const double h = 0x1p-10;  // c is linear in each, so any step is as good as another but for rounding
  for (const Scale& scale :
       {Scale::constant(0.7), Scale::constant(0.7).with_yarn(4), Scale::constant(0.7).with_ssmax(0.4, 0.3),
        Scale::constant(0).with_yarn(3).with_ssmax(0.4), Scale::constant(0.7).with_entropy_invariance(),
        Scale::constant(-0.7).with_yarn(8).with_llama4_temperature()}) {
    SCOPED_TRACE(scale.describe());
    const auto slope = [&](double Scale::*what) {
      Scale high = scale, low = scale;
      high.*what += h, low.*what -= h;
      return (high.factor(0, 64, row) - low.factor(0, 64, row)) / (2 * h);
    };
    const Scale::Slopes slopes = scale.slopes(0, 64, row);
    const double rounding = 16 * kU64 / h;
    EXPECT_NEAR(slopes.rule, slope(&Scale::value), 8 * rounding);
    EXPECT_NEAR(slopes.log_n_gain, slope(&Scale::log_n_gain), 8 * rounding);
    EXPECT_NEAR(slopes.log_n_offset, slope(&Scale::log_n_offset), 8 * rounding);
  }
}

/// Two heads on one, five queries, nine keys, batch 2, f64.
std::unique_ptr<Case> small_case() {
  auto c = std::make_unique<Case>();
  c->shape = {2, 2, 1, 5, 9, 8, 6, DType::kF64};
  c->q = Buffer(DType::kF64, {2, 2, 5, 8}), c->k = Buffer(DType::kF64, {2, 1, 9, 8}),
  c->v = Buffer(DType::kF64, {2, 1, 9, 6});
  Rng rng(3);
  for (Buffer* b : {&c->q, &c->k, &c->v}) b->fill_normal(rng, 1);
  c->gains = {0.5f, 1.5f}, c->offsets = {0.25f, -0.5f};
  c->link();
  return c;
}

// What a length rule does is what scaling each query by hand does; n and the position are counted here key by key.
TEST(Scale, LengthRulesCountVisibleKeysAndPositions) {
  struct Row {
    const char* name;
    std::function<void(Case&)> set;
    std::function<bool(std::int64_t b, std::int64_t i, std::int64_t j)> sees;
    std::function<std::int64_t(std::int64_t i)> position;
  };
  const std::vector<Row> rows = {
      {"nothing hidden", [](Case&) {}, [](auto, auto, auto) { return true; }, [](std::int64_t i) { return i + 4; }},
      {"causal", [](Case& c) { c.problem.mask.causal = true; }, [](auto, auto i, auto j) { return j <= i + 4; },
       [](std::int64_t i) { return i + 4; }},
      {"causal, window and lengths",
       [](Case& c) {
         c.problem.mask.causal = true, c.problem.mask.window = Window{2},
         c.problem.mask.diagonal = Diagonal::top_left();
         c.key_lengths = {3, 9};
       },
       [](auto b, auto i, auto j) { return j <= i && j >= i - 2 && j < (b == 0 ? 3 : 9); },
       [](std::int64_t i) { return i; }},
      {"documents, far along",
       [](Case& c) {
         c.q_starts = {0, 2, 5}, c.kv_starts = {0, 6, 9}, c.problem.mask.documents = Documents{};
         c.problem.mask.diagonal = Diagonal::at(20000);
       },
       [](auto, auto i, auto j) { return (i < 2) == (j < 6); },
       [](std::int64_t i) { return 20000 + (i < 2 ? i : i - 2); }}};
  for (const Row& row : rows)
    for (const Scale& scale : {Scale::inv_sqrt_dk().with_ssmax(1), Scale::inv_sqrt_dk().with_entropy_invariance(),
                               Scale::inv_sqrt_dk().with_llama4_temperature()}) {
      SCOPED_TRACE(std::string(row.name) + ", " + scale.describe());
      const auto c = small_case();
      c->problem.scale = scale;
      row.set(*c);
      c->link();
      const RunOptions options{.threads = 1, .backward = false};
      const engine::Kernel& reference = engine::kernel_table().back();
      const Result got = run(*c, reference, options);
      const Scale counted = c->problem.scale;
      double largest = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 2; ++h)
          for (std::int64_t i = 0; i < 5; ++i) {
            double n = 0;
            for (std::int64_t j = 0; j < 9; ++j) n += row.sees(b, i, j);
            double factor = 1;
            const std::size_t head = static_cast<std::size_t>(h);
            if (n > 0 && scale.length == Scale::Length::kLogN)
              factor = static_cast<double>(c->gains[head]) * std::log(n) + static_cast<double>(c->offsets[head]);
            if (n > 0 && scale.length == Scale::Length::kEntropyInvariant) factor = std::log(n) / std::log(512.0);
            if (scale.length == Scale::Length::kLlama4)
              factor = 1 + 0.1 * std::log(1 + std::floor(static_cast<double>(row.position(i) + 1) / 8192));
            for (std::int64_t d = 0; d < 8; ++d) {
              c->q.set(b, h, i, d, factor * c->q.get(b, h, i, d));
              largest = std::max(largest, std::fabs(c->q.get(b, h, i, d)));
            }
          }
      c->problem.scale = Scale::inv_sqrt_dk();
      c->link();
      const Result want = run(*c, reference, options);
      double k_max = 0, v_max = 0;
      for (const double x : c->k.values()) k_max = std::max(k_max, std::fabs(x));
      for (const double x : c->v.values()) v_max = std::max(v_max, std::fabs(x));
      // A score is a sum of 8 products of at most `largest`·k_max, each rounded a few times, over √8; probabilities
      // move by twice that.
      const double score = 8 * largest * k_max / std::sqrt(8.0), error = (8 + 6) * kU64 * score;
      ASSERT_EQ(got.o.size(), want.o.size());
      for (std::size_t i = 0; i < got.o.size(); ++i)
        EXPECT_NEAR(got.o[i], want.o[i], (4 * error + 16 * kU64) * v_max) << i;
      for (std::size_t i = 0; i < got.lse.size(); ++i)
        if (got.lse[i] != want.lse[i]) {
          EXPECT_NEAR(got.lse[i], want.lse[i], 2 * error + 16 * kU64 * (1 + score)) << i;
        }
      EXPECT_TRUE(counted.by_row());
    }
}

TEST(Scale, NamesParseBackToTheSameScale) {
  const std::vector<Scale> scales = {Scale::none(),
                                     Scale::inv_sqrt_dk(),
                                     Scale::inv_dk(),
                                     Scale::constant(0.1),
                                     Scale::constant(-1e-30),
                                     Scale::alpha_over_dk(8),
                                     Scale::unit_variance(0.3, 1.0 / 3),
                                     Scale::inv_sqrt_dk().with_yarn(4),
                                     Scale::inv_sqrt_dk().with_ssmax(0.43),
                                     Scale::none().with_ssmax(0.43, -1.0 / 3),
                                     Scale::inv_dk().with_entropy_invariance(),
                                     Scale::constant(2).with_yarn(40).with_llama4_temperature()};
  for (const Scale& scale : scales) {
    const Scale back = Scale::parse(scale.name());
    EXPECT_EQ(back.name(), scale.name());
    EXPECT_EQ(back.describe(), scale.describe());
    EXPECT_EQ(back.factor(0, 80, {1000, 50000}), scale.factor(0, 80, {1000, 50000})) << scale.name();
  }
}

TEST(Scale, ParsesWhatPeopleWrite) {
  EXPECT_EQ(Scale::parse("sqrt_dk").name(), "sqrt_dk");
  EXPECT_EQ(Scale::parse("ssmax(0.43)").name(), "sqrt_dk*ssmax(0.43, 0)") << "without a rule it is 1/sqrt(d_k)";
  EXPECT_EQ(Scale::parse(" llama4 * dk( 8 ) ").name(), "dk(8)*llama4") << "in any order";
  EXPECT_EQ(Scale::parse("yarn(4)*ssmax(1,2)*constant(0.5)").name(), "constant(0.5)*yarn(4)*ssmax(1, 2)");
  EXPECT_EQ(Scale::parse("dk()").name(), "dk");
  for (const ScaleName& name : Scale::names()) {
    std::string text(name.name);
    if (name.parameters == "(sigma_q, sigma_k)") text += "(1, 2)";
    else if (!name.parameters.empty()) text += "(2)";
    EXPECT_NE(Scale::parse(text).name().find(name.name), std::string::npos) << text;
    EXPECT_FALSE(name.description.empty());
  }
}

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Scale, RefusesWithTheReason) {
  const std::string known = "none, sqrt_dk, dk([alpha]), constant(c), unit_variance(sigma_q, sigma_k), yarn(f), "
                            "ssmax(a[, b]), entropy_invariant, llama4";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"sqrt", "scale: \"sqrt\" is not known; known are " + known + "; did you mean sqrt_dk?"},
      {"sqrt_dk*llama", "scale: \"llama\" is not known; known are " + known + "; did you mean llama4?"},
      {"cauchy", "scale: \"cauchy\" is not known; known are " + known},
      {"", "scale: \"\" is not known; known are " + known},
      {"sqrt_dk*", "scale: \"\" is not known; known are " + known},
      {"per_head", "scale: per_head is a number for each head; give those instead of the name"},
      {"ssmax(per_head, 0)", "scale: \"ssmax(per_head, 0)\": an array is given in code, not as text"},
      {"constant", "scale: \"constant\": 0 parameters, but constant(c) is wanted"},
      {"ssmax(1,2,3)", "scale: \"ssmax(1,2,3)\": 3 parameters, but ssmax(a[, b]) is wanted"},
      {"sqrt_dk(2)", "scale: \"sqrt_dk(2)\": 1 parameter, but sqrt_dk is wanted"},
      {"constant(x)", "scale: \"constant(x)\": \"x\" is not a finite number"},
      {"constant(1e999)", "scale: \"constant(1e999)\": \"1e999\" is not a finite number"},
      {"constant(nan)", "scale: \"constant(nan)\": \"nan\" is not a finite number"},
      {"constant(1 2)", "scale: \"constant(1 2)\": \"1 2\" is not a finite number"},
      {"ssmax(1,)", "scale: \"ssmax(1,)\": \"\" is not a finite number"},
      {"constant(1", "scale: \"constant(1\": the ) is missing, or not the last character"},
      {"constant(1)x", "scale: \"constant(1)x\": the ) is missing, or not the last character"},
      {"sqrt_dk*dk", "scale: \"sqrt_dk*dk\": sqrt_dk and dk both say what c is; one is wanted"},
      {"ssmax(1)*llama4",
       "scale: \"sqrt_dk*ssmax(1, 0)\" has a length rule already, and two would correct for the length twice"},
      {"llama4*llama4",
       "scale: \"sqrt_dk*llama4\" has a length rule already, and two would correct for the length twice"},
      {"yarn(2)*yarn(2)", "scale: \"sqrt_dk*yarn(2)\" has a YaRN factor already"},
  };
  for (const auto& row : table) EXPECT_EQ(said_by([&] { Scale::parse(row.first); }), row.second);
}

TEST(Scale, PlansSayWhatTheScaleIs) {
  const Shape shape{1, 2, 2, 4, 4, 8, 8};
  const std::vector<float> heads = {1, 2};
  const auto explained = [&](const Scale& scale) {
    Problem problem;
    problem.scale = scale;
    const std::string text = make_plan(problem, shape).explain();
    const std::size_t from = text.find("scale ") + 6;
    return text.substr(from, text.find(';', from) - from);
  };
  EXPECT_EQ(explained(Scale::alpha_over_dk(8)), "8/d_k");
  EXPECT_EQ(explained(Scale::unit_variance(0.5, 2)), "1/(√d_k·0.5·2)");
  EXPECT_EQ(explained(Scale::inv_sqrt_dk().with_yarn(4)), "1/√d_k x YaRN 4");
  EXPECT_EQ(explained(Scale::inv_dk().with_ssmax(0.43, 1)), "1/d_k x (0.43 * ln n + 1), n keys");
  EXPECT_EQ(explained(Scale::per_head(heads).with_ssmax(heads, heads)),
            "one per head x (a per head * ln n + b per head), n keys");
  EXPECT_EQ(explained(Scale::none().with_entropy_invariance()), "1 (none) x ln n/ln 512, n keys");
  EXPECT_EQ(explained(Scale::none().with_llama4_temperature()), "1 (none) x Llama 4 temperature");
}

}  // namespace
}  // namespace rootdk::test
