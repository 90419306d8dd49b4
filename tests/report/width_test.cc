// Everything that verbs print, in terminals from 40 to 200 columns: no line is wider, unless a single word is; and one
// of 80 columns shows what files and pipes get.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "report/audit.h"
#include "report/experiments.h"
#include "report/text.h"
#include "rootdk/attention.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/nn/init.h"

namespace rootdk::report {
namespace {

using Text = std::function<std::string(const Layout&)>;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

bool is_one_word(const std::string& line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first != line.npos && line.find(' ', first) == line.npos;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (!word.starts_with("─")) out.push_back(word.ends_with(',') ? word.substr(0, word.size() - 1) : word);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void expect_fits(const Text& text) {
  const std::string plain = text({});
  const std::vector<std::string> all = words_of(plain);
  for (std::size_t columns = 40; columns <= 200; ++columns) {
    const std::string shown = text(Layout::of_terminal(columns));
    for (const std::string& line : lines_of(shown)) {
      ASSERT_TRUE(display_width(line) <= columns || is_one_word(line)) << columns << ": " << line << "\n\n" << shown;
      ASSERT_TRUE(line.empty() || line.back() != ' ') << columns << ": " << line;
    }
    const std::vector<std::string> words = words_of(shown);
    for (const std::string& word : all)
      ASSERT_TRUE(std::binary_search(words.begin(), words.end(), word) ||
                  word.starts_with("+#"))  // the map is cut as it has to be
          << columns << ": " << word << " is gone\n"
          << shown;
  }
  bool fits = true;
  for (const std::string& line : lines_of(plain)) fits = fits && display_width(line) <= kLineWidth;
  if (fits) {
    EXPECT_EQ(text(Layout::of_terminal(kLineWidth)), plain);
  }
}

template <class Result>
void expect_result_fits(const Result& result) {
  for (const Detail detail : {Detail::kAll, Detail::kShort})
    expect_fits([&](Layout layout) {
      layout.detail = detail;
      return text_of(result, layout);
    });
}

TEST(Width, Explain) {
  expect_result_fits(lab::explain({.scores = {14, 10, 12}, .dk = 64}));
  expect_result_fits(lab::explain({.scores = {-1000, 10.123456, 12, 1e9, 3, 4}, .dk = 64}));
  expect_result_fits(lab::explain({.scores = std::vector<double>(100, 1.5), .dk = 4}));
  expect_result_fits(lab::explain({.q = std::vector<double>(16, 0.123456),
                                   .keys = {std::vector<double>(16, 1e-7), std::vector<double>(16, 123456)},
                                   .rules = {Scale::parse("unit_variance(0.123, 4.567)*ssmax(0.43, 1)")}}));
}

TEST(Width, Variance) {
  lab::VarianceOptions options;
  options.pairs = 5'000;
  lab::Variance variance = lab::measure_variance(options);
  expect_result_fits(variance);
  variance.complete = false;
  expect_result_fits(variance);
  options.mean = 0.5, options.correlation = 0.2;
  expect_result_fits(lab::measure_variance(options));
}

TEST(Width, PhaseAndGradient) {
  lab::PhaseOptions phase;
  phase.dk = {4, 64}, phase.keys = {16, 64, 128, 256, 512, 1024, 2048, 4096}, phase.queries = 2, phase.batches = 2;
  expect_result_fits(lab::measure_phase(phase));
  lab::GradientOptions gradient;
  gradient.keys = 64, gradient.queries = 8, gradient.batches = 2;
  expect_result_fits(lab::measure_gradient(gradient));
}

TEST(Width, PrecisionAndInitialisation) {
  lab::PrecisionOptions precision;
  precision.keys = 64, precision.queries = 8;
  expect_result_fits(lab::measure_precision(precision));
  lab::InitialisationOptions init;
  init.widths = {64, 1024}, init.dk = {16, 128}, init.tokens = 8, init.batches = 2;
  expect_result_fits(lab::measure_initialisation(init));
}

TEST(Width, Train) {
  lab::TrainOptions o;
  o.rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::parse("sqrt_dk*ssmax(0.43)*yarn(4)")};
  o.dk = {4, 16}, o.learning_rates = {0.01, 0.1}, o.seeds = 2;
  o.run.model.width = 8, o.run.model.heads = 2;
  o.run.steps = 3, o.run.sequences = 4, o.run.evaluation_batches = 1;
  const lab::RecallTask task({.pairs = 2, .asked = 2, .keys = 4, .values = 4});
  lab::TrainResult result = lab::train_rules(task, o);
  expect_result_fits(result);
  result.complete = false;
  expect_result_fits(result);
}

TEST(Width, WhatifAndAttend) {
  const std::int64_t len = 20, dim = 16;
  std::vector<float> x(static_cast<std::size_t>(2 * len * dim)), o(x.size());
  nn::fill(x, nn::Init::normal(2), {}, {1, 1});
  const Extents shape = {1, 2, len, dim};
  const ConstTensor view = tensor<float>(static_cast<const float*>(x.data()), shape);
  lab::WhatifOptions options;
  options.q = options.k = options.v = view;
  expect_result_fits(lab::try_rules(options));
  for (float& f : x) f *= 1e30f;
  expect_result_fits(lab::try_rules(options));
  for (const StatsLevel level : {StatsLevel::kNone, StatsLevel::kBasic, StatsLevel::kFull}) {
    Problem problem;
    problem.stats = level;
    Attended attended{{40, 2, 2, len, len, dim, dim, DType::kF32}, "sqrt_dk", true, "fused", "AVX3_BF16", {}};
    attended.stats = forward(problem, {view, view, view}, {tensor(o.data(), shape)});
    for (int i = 0; i < 5; ++i) {
      const std::vector<HeadStats> again = attended.stats.per_head;
      attended.stats.per_head.insert(attended.stats.per_head.end(), again.begin(), again.end());
    }
    expect_result_fits(attended);
  }
}

TEST(Width, MachineAndRules) {
  expect_result_fits(lab::examine());
  lab::TimingOptions options;
  options.cases = {{2, 64, 16}, {16, 128, 64, true}};
  options.rounds = 1;
  expect_result_fits(lab::time_forward(options));
  expect_result_fits(lab::all_rules());
}

audit::Audit many_heads(std::size_t heads) {
  audit::Audit out;
  out.model.name = "注意力モデル";
  out.model.family = "llama";
  out.model.scale_rule = "sqrt_dk";
  out.model.notes = {"no configuration says what model this is; its tensors are called as those of llama"};
  out.contexts = {512};
  out.judged_at = 512;
  out.layers.resize(3);
  for (std::size_t l = 0; l < 3; ++l) {
    audit::Layer& layer = out.layers[l];
    layer.attention.layer = static_cast<std::int64_t>(l);
    layer.attention.heads_q = static_cast<std::int64_t>(heads);
    layer.heads.resize(heads);
    for (std::size_t h = 0; h < heads; ++h) {
      audit::Head& head = layer.heads[h];
      head.head = static_cast<std::int64_t>(h);
      head.d_k = 64;
      head.sigma = head.ratio = head.unit_divisor = 0.01 + static_cast<double>(h) / 3;
      head.contexts = {{512, 512, 0.3, 5.7, 200, 0.02, theory::Verdict::kSoft}};
      head.judgement.verdict = h % 2 == 0 ? theory::Verdict::kSharp : theory::Verdict::kFrozen;
      head.judgement.words = "Frozen: σ = 16.9 is 7.35 times σ_c = 2.29, where 13.9 keys freeze.";
      head.judgement.fix = "Divide the scores by 16.9 for unit variance.";
      head.not_finite = 0;
    }
  }
  return out;
}

TEST(Width, Audit) {
  for (const std::size_t heads : {1u, 4u, 32u, 33u, 96u, 200u})
    for (const int more : {0, 1, 2}) {
      audit::Audit audit = many_heads(heads);
      for (audit::Layer& layer : audit.layers)
        for (audit::Head& head : layer.heads) {
          if (more > 0) head.on_embeddings = {64, 8, 64, 8, 1.6};
          if (more > 1) head.measured = audit::Measured{{100, 12.5, 10, 12.5, 2.5}, 40, 39, 1};
        }
      if (more == 2) audit.layers[1].attention.kind = "encoder-cross";
      expect_fits([&](const Layout& layout) { return text_of(audit, {.worst = 5, .layout = layout}); });
    }
}

// A head is one letter, wherever its line was broken; a colour changes no letter.
TEST(Width, TheMapHasEveryHead) {
  for (std::size_t columns = 40; columns <= 200; columns += 7) {
    const std::size_t heads = 96;
    const Layout layout = Layout::of_terminal(columns);
    const std::string plain = text_of(many_heads(heads), {.worst = 0, .layout = layout});
    EXPECT_EQ(std::count(plain.begin(), plain.end(), '#'), 3 * heads / 2 + 1) << plain << "and one in the legend";
    std::string coloured = text_of(many_heads(heads), {.colour = true, .worst = 0, .layout = layout});
    for (std::size_t at; (at = coloured.find('\x1b')) != coloured.npos;)
      coloured.erase(at, coloured.find('m', at) + 1 - at);
    EXPECT_EQ(coloured, plain);
  }
}

TEST(Width, DriftAndClip) {
  std::vector<audit::HeadDrift> drift(3);
  for (audit::HeadDrift& d : drift)
    d.kind = "self", d.sigma_before = 1.25, d.sigma_after = 1234.5, d.growth = 987,
    d.verdict_after = theory::Verdict::kNotFinite;
  drift[1].kind = "encoder-decoder";
  expect_fits([&](const Layout& layout) { return text_of(drift, 0, layout); });
  audit::Clipped clipped;
  clipped.heads.resize(2);
  clipped.tensors = {"a"};
  const std::string out = "a folder/of some length/with spaces  in it/model.safetensors";
  const auto text = [&](const Layout& layout) { return text_of(clipped, audit::Clip{100, false}, out, layout); };
  for (std::size_t columns = 40; columns <= 200; ++columns) {
    const std::string shown = text(Layout::of_terminal(columns));
    EXPECT_NE(shown.find(out + ":"), shown.npos) << "a name stays whole";
    for (const std::string& line : lines_of(shown))
      EXPECT_TRUE(display_width(line) <= columns || line == out + ":") << columns << ": " << line;
  }
}

}  // namespace
}  // namespace rootdk::report
