// The whole model: gradients in double with the reference kernel, f32 against that, causality, the same bits at any
// thread count.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "nn/slope.h"
#include "rootdk/nn/cross_entropy.h"
#include "rootdk/nn/transformer.h"
#include "support/message.h"

namespace rootdk::nn::testing {
namespace {

using test::message_of;

constexpr std::int64_t kLength = 9;

TransformerOptions small() {
  TransformerOptions o;
  o.vocabulary = 11, o.width = 12, o.layers = 2, o.heads = 2, o.dim_qk = 8, o.mlp_hidden = 10;
  return o;
}

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary, int salt = 0) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((i * i * 7 + i * 3 + salt) % vocabulary));
  return tokens;
}

/// A model with tokens and targets (every third place has none), its loss and its gradients.
template <class T>
struct Trial {
  explicit Trial(const TransformerOptions& options, const Problem& how, std::int64_t sequences = 3,
                 std::int64_t len = kLength)
      : problem(how),
        length(len),
        model(options),
        gradients(options),
        tokens(some_tokens(sequences * len, options.vocabulary)),
        targets(some_tokens(sequences * len, options.vocabulary, 5)) {
    initialise(model, 3);
    for (std::size_t i = 0; i < targets.size(); i += 3) targets[i] = kNoTarget;
  }

  double loss() {
    model.forward(problem, length, tokens, saved);
    return cross_entropy<T>(model.options().vocabulary, saved.logits, targets, {}).loss;
  }

  std::vector<Parameter<T>> gradient() {
    gradients.set_zero();
    model.forward(problem, length, tokens, saved);
    std::vector<T> d_logits(saved.logits.size());
    cross_entropy<T>(model.options().vocabulary, saved.logits, targets, d_logits);
    model.backward(saved, d_logits, gradients);
    return gradients.parameters();
  }

  Problem problem;
  std::int64_t length;
  BasicTransformer<T> model, gradients;
  std::vector<std::int32_t> tokens, targets;
  BasicTransformerSaved<T> saved;
};

// Every parameter array by itself, under each rule; and all of them at once.
TEST(Transformer, Gradients) {
  for (const Scale& scale : {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()}) {
    SCOPED_TRACE(scale.describe());
    Trial<double> t(small(), {.scale = scale});
    const auto slopes = t.gradient();
    const auto arrays = t.model.parameters();
    expect_slopes(arrays, slopes, [&] { return t.loss(); });

    std::vector<std::vector<double>> start, direction;
    double slope = 0;
    for (std::size_t n = 0; n < arrays.size(); ++n) {
      start.emplace_back(arrays[n].values.begin(), arrays[n].values.end());
      direction.push_back(normal_doubles(start[n].size(), 500 + n));
      slope += dot(slopes[n].values, direction[n]);
    }
    expect_slope("everything", slope, [&](double step) {
      for (std::size_t n = 0; n < arrays.size(); ++n)
        for (std::size_t i = 0; i < start[n].size(); ++i) arrays[n].values[i] = start[n][i] + step * direction[n][i];
      return t.loss();
    });
  }
}

std::vector<double> flat(std::span<const Parameter<double>> list) {
  std::vector<double> all;
  for (const auto& p : list) all.insert(all.end(), p.values.begin(), p.values.end());
  return all;
}

double distance(std::span<const double> a, std::span<const double> b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

// The f32 model is the f64 model with roundings. A rounding of something is a relative change of at most u of it; along
// any path from token to loss and back there are at most `chain` of them (the inner sizes of all products, and a few
// dozen for each norm, softmax, silu and rotation), and changing the weights themselves by that much moves the gradient
// about as far.
TEST(Transformer, SingleIsDoubleRounded) {
  for (const Scale& scale : {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()}) {
    SCOPED_TRACE(scale.describe());
    Trial<float> single(small(), {.scale = scale});
    Trial<double> exact(small(), {.scale = scale});
    const TransformerOptions o = single.model.options();
    const auto from = single.model.parameters();
    const auto to = exact.model.parameters();
    for (std::size_t n = 0; n < to.size(); ++n)
      std::copy(from[n].values.begin(), from[n].values.end(), to[n].values.begin());
    const std::vector<double> want = flat(exact.gradient());
    const double want_loss = exact.loss();

    const double chain =
        2.0 * static_cast<double>(o.layers * (3 * o.width + o.mlp_hidden + o.dim_qk + kLength + 100) + o.width);
    for (std::size_t n = 0; n < to.size(); ++n) {
      const std::vector<double> sign = normal_doubles(to[n].values.size(), 900 + n);
      for (std::size_t i = 0; i < sign.size(); ++i) to[n].values[i] *= 1 + (sign[i] > 0 ? 1 : -1) * chain * 0x1p-24;
    }
    const double reach = distance(flat(exact.gradient()), want), loss_reach = std::fabs(exact.loss() - want_loss);
    std::vector<double> got;
    for (const auto& p : single.gradient()) got.insert(got.end(), p.values.begin(), p.values.end());
    EXPECT_LT(distance(got, want), reach);
    EXPECT_GT(distance(got, want), 0);
    EXPECT_LT(reach, 1e-2 * distance(want, std::vector<double>(want.size())))
        << "a tolerance that lets anything through";
    EXPECT_NEAR(single.loss(), want_loss, loss_reach);
  }
}

// What a place sees are the tokens up to it: others change nothing there, to the bit.
TEST(Transformer, LooksBackOnly) {
  Trial<float> t(small(), {});
  t.loss();
  const std::vector<float> before = t.saved.logits;
  const std::size_t vocabulary = 11, changed = 5, length = kLength;
  t.tokens[length + changed] = (t.tokens[length + changed] + 1) % 11;  // in the second sequence
  t.loss();
  for (std::size_t place = 0; place < t.tokens.size(); ++place) {
    const bool same =
        std::memcmp(&before[place * vocabulary], &t.saved.logits[place * vocabulary], vocabulary * sizeof(float)) == 0;
    EXPECT_EQ(same, place < length + changed || place >= 2 * length) << place;
  }
}

// A head of zeros says nothing. The loss is then ln of the vocabulary, to within the roundings of exp, sum, log and
// mean.
TEST(Transformer, StartsKnowingNothing) {
  Trial<double> t(small(), {});
  for (const auto& p : t.model.parameters())
    if (p.name == "lm_head.weight") std::fill(p.values.begin(), p.values.end(), 0.0);
  EXPECT_NEAR(t.loss(), std::log(11.0), 16 * 0x1p-53);
}

// Initialised as it says, scores under 1/√d_k have unit variance within a row: measured over the first layer of a wide
// model. The variance is that of about rows·keys/2 products, but keys are shared, so what counts as independent are
// some 32 × 64 tokens and 2 heads of random weights, d_k·width of them: relative standard error √(2/64) at worst over
// three seeds.
TEST(Transformer, ScoresStartWithUnitVariance) {
  TransformerOptions o;
  o.vocabulary = 512, o.width = 128, o.layers = 1, o.heads = 2, o.dim_qk = 64;
  double sum = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Transformer model(o);
    initialise(model, seed);
    BasicTransformerSaved<float> saved;
    model.forward({.stats = StatsLevel::kFull}, 64, some_tokens(32 * 64, 512), saved);
    for (std::int64_t b = 0; b < 32; ++b)
      for (std::int64_t h = 0; h < 2; ++h)
        sum += saved.blocks[0].stats.at(b, h).score.within_row_variance() / (3 * 32 * 2);
  }
  EXPECT_NEAR(sum, 1, 4 * std::sqrt(2.0 / 64 / 6));
}

TEST(Transformer, SameBitsAtAnyThreadCount) {
  TransformerOptions o;
  o.vocabulary = 40, o.width = 96, o.heads = 3, o.dim_qk = 32;
  std::vector<float> first;
  double first_loss = 0;
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3, 7}) {
    omp_set_num_threads(threads);
    Trial<float> t(o, {.stats = StatsLevel::kFull}, 11, 50);
    std::vector<float> all;
    for (const auto& p : t.gradient()) all.insert(all.end(), p.values.begin(), p.values.end());
    const double loss = t.loss();
    if (threads == 1) first = all, first_loss = loss;
    EXPECT_EQ(loss, first_loss) << threads;
    EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0) << threads;
  }
  omp_set_num_threads(before);
}

TEST(Transformer, GradientsGather) {
  Trial<double> t(small(), {});
  const std::vector<double> once = flat(t.gradient());
  std::vector<double> d_logits(t.saved.logits.size());
  cross_entropy<double>(11, t.saved.logits, t.targets, d_logits);
  t.model.backward(t.saved, d_logits, t.gradients);
  const std::vector<double> twice = flat(t.gradients.parameters());
  // Each element is twice a sum of at most 27 rows: that many roundings of what is no larger than the sum of absolute
  // terms, which is bounded here by the norm of the whole gradient.
  const double bound = 27 * 2 * 0x1p-53 * distance(once, std::vector<double>(once.size()));
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], 2 * once[i], bound) << i;
}

TEST(Transformer, RefusesWhatDoesNotFit) {
  const auto with = [](auto change) {
    TransformerOptions o = small();
    change(o);
    return message_of([&] { Transformer model(o); });
  };
  EXPECT_EQ(with([](auto& o) { o.vocabulary = 0; }), "vocabulary: 0, but 1 to 2147483647 is wanted");
  EXPECT_EQ(with([](auto& o) { o.dim_qk = 7; }), "dim_qk: 7, but an even number of at least 2 is wanted");
  EXPECT_EQ(with([](auto& o) { o.heads = 5; }),
            "heads: 5, which does not divide the width 12; give dim_v, or another number");
  EXPECT_EQ(with([](auto& o) { o.norm_epsilon = -1; }), "epsilon: -1, but a finite number of at least 0 is wanted");

  Trial<float> t(small(), {});
  TransformerOptions deeper = small();
  deeper.layers = 3;
  Transformer other(deeper);
  t.loss();
  const std::vector<float> d(t.saved.logits.size());
  EXPECT_EQ(message_of([&] { t.model.forward({}, 4, t.tokens, t.saved); }),
            "tokens: 27 values, which is not a whole number of rows of 4");
  EXPECT_EQ(message_of([&] { t.model.backward(t.saved, d, other); }), "gradients: a transformer of other options");
  EXPECT_EQ(message_of([&] { other.backward(t.saved, d, other); }),
            "saved: not made by the forward pass of a transformer with these options");
  t.tokens[3] = 11;
  EXPECT_EQ(message_of([&] { t.loss(); }), "tokens[3]: 11, but 0 to 10 is wanted");
}

}  // namespace
}  // namespace rootdk::nn::testing
