// Draw q and k, run the engine, then one row and one small map of weights by hand, for the eye.
#include "rootdk/lab/playground.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/dropout.h"
#include "base/parallel.h"
#include "engine/call_bytes.h"
#include "lab/draws.h"
#include "lab/need.h"
#include "lab/want.h"
#include "rootdk/adaptive.h"
#include "rootdk/attention.h"
#include "rootdk/lab/variance.h"
#include "rootdk/nn/linear.h"
#include "rootdk/qk_norm.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::lab {

namespace {

constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kBins = 64;
constexpr double kReach = 4;  // predicted standard deviations that a histogram shows at least
constexpr std::int64_t kShownQueries = 32, kShownKeys = 64;
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 26;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void want_positive(const char* name, double value) {
  if (!(value > 0 && value <= 1e6)) refuse("{}: {}, but a number above 0, at most 1e6, is wanted", name, value);
}

void want_room(const char* name, std::int64_t numbers) {
  if (numbers > kMostNumbers) refuse("{}: {} numbers, but at most {} are wanted", name, numbers, kMostNumbers);
}

void check(const PlaygroundOptions& o) {
  want_between("dk", o.dk, 1, kMostDims);
  want_between("keys", o.keys, 2, kMostKeys);
  want_between("queries", o.queries, 1, kMostQueries);
  want_between("row", o.row, 0, o.queries - 1);
  want_room("keys × dk", o.keys * o.dk);
  want_room("queries × dk", o.queries * o.dk);
  want_room("queries × keys", o.queries * o.keys);
  if (o.rule.on == Treatment::On::kTemperature) refuse("rule: temperature looks at the scores twice; whatif has it");
  want_positive("sigma_q", o.sigma_q);
  want_positive("sigma_k", o.sigma_k);
  if (!(std::fabs(o.mean) <= 1e6)) refuse("mean: {}, but a number from -1e6 to 1e6 is wanted", o.mean);
  if (!(o.correlation >= 0 && o.correlation <= 1))
    refuse("correlation: {}, but a number from 0 to 1 is wanted", o.correlation);
  if (o.soft_cap) want_positive("soft_cap", *o.soft_cap);
  if (o.sink && !(std::fabs(*o.sink) <= 1e6)) refuse("sink: {}, but a number from -1e6 to 1e6 is wanted", *o.sink);
  if (!(o.dropout >= 0 && o.dropout < 1)) refuse("dropout: {}, but a number from 0 to below 1 is wanted", o.dropout);
}

/// The rows that the options ask for, as they meet.
struct Head {
  std::vector<float> q, k;  ///< [queries, dk], [keys, dk]
  Scale scale;

  ConstTensor queries(const PlaygroundOptions& o) const { return tensor(q.data(), {1, 1, o.queries, o.dk}); }
  ConstTensor keys(const PlaygroundOptions& o) const { return tensor(k.data(), {1, 1, o.keys, o.dk}); }
};

// Query i is that of pair i, key j that of pair j.
void draw(const PlaygroundOptions& o, Head& head) {
  const PairLaw law = {Component::kNormal,         static_cast<float>(o.sigma_q),     static_cast<float>(o.sigma_k),
                       static_cast<float>(o.mean), static_cast<float>(o.correlation), o.seed};
  const auto block = static_cast<std::int64_t>(kPairsPerBlock);
  head.q.resize(at(o.queries * o.dk));
  head.k.resize(at(o.keys * o.dk));
  const auto blocks = (std::max(o.queries, o.keys) + block - 1) / block;
  base::parallel_tasks(blocks, base::free_threads(), [&](std::int64_t task, int) {
    std::vector<float> q(at(o.dk * block)), k(q.size());  // [dk, block]
    const std::int64_t first = task * block;
    draw_kernels().front().components(law, static_cast<std::uint64_t>(first), o.dk, q.data(), k.data());
    const auto keep = [&](const std::vector<float>& from, std::vector<float>& into, std::int64_t rows) {
      for (std::int64_t r = 0; r < std::min(block, rows - first); ++r)
        for (std::int64_t d = 0; d < o.dk; ++d) into[at((first + r) * o.dk + d)] = from[at(d * block + r)];
    };
    keep(q, head.q, o.queries);
    keep(k, head.k, o.keys);
  });
}

void treat(const PlaygroundOptions& o, Head& head) {
  head.scale = o.rule.scale;
  if (o.rule.on == Treatment::On::kUnitVariance) {
    head.scale =
        Scale::constant(static_cast<double>(adaptive_unit_variance({}, head.queries(o), head.keys(o)).factors.front()));
  }
  if (o.rule.on != Treatment::On::kQkNorm && o.rule.on != Treatment::On::kCosine) return;
  QkNorm norm;
  norm.kind = o.rule.on == Treatment::On::kQkNorm ? QkNorm::Kind::kRms : QkNorm::Kind::kL2;
  std::vector<float> q(head.q.size()), k(head.k.size());
  normalise(norm, head.queries(o), tensor(q.data(), {1, 1, o.queries, o.dk}));
  normalise(norm, head.keys(o), tensor(k.data(), {1, 1, o.keys, o.dk}));
  head.q = std::move(q), head.k = std::move(k);
}

std::optional<double> cap_of(const PlaygroundOptions& o) {
  if (o.soft_cap) return o.soft_cap;
  if (o.rule.soft_cap) return static_cast<double>(*o.rule.soft_cap);
  return {};
}

double capped(double s, const std::optional<double>& cap) { return cap ? *cap * std::tanh(s / *cap) : s; }

Dropout dropout_of(const PlaygroundOptions& o) { return {static_cast<float>(o.dropout), o.seed}; }

/// But for the sink, which is a view.
Problem problem_of(const PlaygroundOptions& o, const Scale& scale) {
  Problem problem;
  problem.scale = scale;
  problem.mask.causal = o.causal;
  problem.dropout = dropout_of(o);
  if (const auto cap = cap_of(o)) problem.soft_cap = static_cast<float>(*cap);
  problem.stats = StatsLevel::kFull;
  return problem;
}

Stats measure(const PlaygroundOptions& o, const Head& head) {
  // Values are not looked at: one number stands for all of them.
  const float one = 1, sink = static_cast<float>(o.sink.value_or(0));
  std::vector<float> output(at(o.queries));
  Problem problem = problem_of(o, head.scale);
  if (o.sink) problem.sink = {&sink, 1};
  return forward(problem, {head.queries(o), head.keys(o), tensor(&one, {1, 1, o.keys, 1}, {0, 0, 0, 0})},
                 {tensor(output.data(), {1, 1, o.queries, 1})});
}

/// The scores themselves, which the fused pass never keeps.
class Scores {
 public:
  Scores(const PlaygroundOptions& o, const Head& head)
      : o_(o), scale_(head.scale), cap_(cap_of(o)), products_(at(o.queries * o.keys)) {
    nn::Linear keys;  // q·Kᵀ is what a layer does whose weights are the keys
    keys.in = o.dk, keys.out = o.keys, keys.weight = head.k;
    nn::apply<float>(keys, head.q, products_);
  }

  /// Keys that query i sees: the first so many.
  std::int64_t visible(std::int64_t i) const {
    return o_.causal ? std::clamp<std::int64_t>(position(i) + 1, 0, o_.keys) : o_.keys;
  }
  double factor(std::int64_t i) const { return scale_.factor(0, o_.dk, {visible(i), position(i)}); }

  double raw(std::int64_t i, std::int64_t j) const { return static_cast<double>(products_[at(i * o_.keys + j)]); }
  double score(double factor, std::int64_t i, std::int64_t j) const { return capped(factor * raw(i, j), cap_); }

  std::vector<double> row(std::int64_t i) const {
    std::vector<double> out(at(o_.keys), kUnseen);
    const double c = factor(i);
    for (std::int64_t j = 0; j < visible(i); ++j) out[at(j)] = score(c, i, j);
    return out;
  }

 private:
  std::int64_t position(std::int64_t i) const { return i + o_.keys - o_.queries; }

  const PlaygroundOptions& o_;
  const Scale& scale_;
  std::optional<double> cap_;
  std::vector<float> products_;  ///< [queries, keys]
};

/// Softmax of a row, with the sink; 0 where a key is out of sight.
std::vector<double> softmax(const PlaygroundOptions& o, const std::vector<double>& scores) {
  double top = o.sink.value_or(-std::numeric_limits<double>::infinity());
  for (const double s : scores)
    if (s > top) top = s;
  double sum = o.sink ? std::exp(*o.sink - top) : 0;
  std::vector<double> p(scores.size());
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (!std::isnan(scores[j])) p[j] = std::exp(scores[j] - top);
    sum += p[j];
  }
  for (double& x : p) x = sum > 0 ? x / sum : 0;
  return p;
}

void drop(const PlaygroundOptions& o, std::int64_t query, std::vector<double>& p) {
  const Dropout dropout = dropout_of(o);
  if (dropout.p == 0) return;
  for (std::size_t j = 0; j < p.size(); ++j)
    p[j] = base::keeps(dropout, 0, 0, query, static_cast<std::int64_t>(j)) ? p[j] * base::keep_gain(dropout) : 0;
}

PlaygroundWeights weights_of(const PlaygroundOptions& o, const Scores& scores) {
  PlaygroundWeights out{std::min(o.queries, kShownQueries), std::min(o.keys, kShownKeys), {}};
  for (std::int64_t i = 0; i < out.queries; ++i) {
    std::vector<double> p = softmax(o, scores.row(i));
    drop(o, i, p);
    out.values.insert(out.values.end(), p.begin(), p.begin() + out.keys);
  }
  return out;
}

// dS_j = Σ_i J_ji dP_i, J = diag(p) − ppᵀ: for independent dP of variance 1 the mean square is p_j²·(1 − 2p_j + Σp²).
PlaygroundRow row_of(const PlaygroundOptions& o, const Scores& scores) {
  PlaygroundRow out{o.row, scores.row(o.row), {}, {}};
  out.p = softmax(o, out.scores);
  double sum_p2 = 0;
  for (const double p : out.p) sum_p2 += p * p;
  for (const double p : out.p)
    out.score_gradient.push_back(p * std::sqrt(std::max(0.0, (1 - p) * (1 - p) + sum_p2 - p * p)));
  drop(o, o.row, out.p);
  return out;
}

/// What is known of scores before any is computed: mean and variance of all of them, and within a row.
struct Prediction {
  double mean = 0, variance = 0, within = 0;
};

std::optional<Prediction> predict(const PlaygroundOptions& o, double factor) {
  const auto d = static_cast<double>(o.dk);
  const double c2 = factor * factor;
  const bool centred = o.mean == 0 && o.correlation == 0;
  switch (o.rule.on) {
    case Treatment::On::kScores: {
      VarianceOptions law;
      law.sigma_q = o.sigma_q, law.sigma_k = o.sigma_k, law.mean = o.mean, law.correlation = o.correlation;
      // Of μ²·1ᵀ(Σ_q + Σ_k)1 the part with Σ_q tells rows apart, not keys.
      const double between = o.mean * o.mean * o.sigma_q * o.sigma_q * (d + d * (d - 1) * o.correlation);
      const double variance = expected_variance(law, o.dk);
      return Prediction{factor * d * o.mean * o.mean, c2 * variance, c2 * (variance - between)};
    }
    case Treatment::On::kUnitVariance: {  // made 1 over keys, not over keys − 1
      const double n = static_cast<double>(o.keys), within = n / (n - 1);
      return centred ? std::optional(Prediction{0, within, within}) : std::nullopt;
    }
    case Treatment::On::kQkNorm: return centred ? std::optional(Prediction{0, c2 * d, c2 * d}) : std::nullopt;
    case Treatment::On::kCosine: return centred ? std::optional(Prediction{0, c2 / d, c2 / d}) : std::nullopt;
    case Treatment::On::kTemperature: break;
  }
  return {};
}

double normal_below(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

std::optional<PlaygroundTheory> theory_of(const PlaygroundOptions& o, const std::optional<Prediction>& prediction) {
  if (!prediction || cap_of(o)) return {};
  PlaygroundTheory out;
  out.sigma = std::sqrt(prediction->within);
  const bool exact = o.rule.on == Treatment::On::kScores && o.mean == 0 && o.correlation == 0 && !o.sink && !o.causal;
  if (!exact || !(out.sigma <= 1e100)) return out;
  const auto keys = static_cast<double>(o.keys);
  const theory::GaussianSoftmax softmax = theory::gaussian_softmax(out.sigma, keys, o.dk);
  out.entropy = softmax.entropy;
  out.trace_j = softmax.trace_j;
  out.frobenius_j = softmax.frobenius_j;
  out.p_max = theory::rough_p_max(out.sigma, keys, o.dk);
  return out;
}

PlaygroundHistogram histogram_of(const PlaygroundOptions& o, const Scores& scores, const Spread& seen,
                                 const std::optional<Prediction>& prediction) {
  PlaygroundHistogram out;
  if (!(seen.pairs > 0) || !std::isfinite(seen.max - seen.min)) return out;
  const auto cap = cap_of(o);
  const double sigma = prediction ? std::sqrt(prediction->variance) : 0, middle = prediction ? prediction->mean : 0;
  const auto end = [&](double sign) { return capped(middle + sign * kReach * sigma, cap); };
  const double low = prediction ? std::min(seen.min, end(-1)) : seen.min,
               high = prediction ? std::max(seen.max, end(1)) : seen.max;
  const double width = high > low ? (high - low) / kBins : 1;
  for (std::size_t i = 0; i <= kBins; ++i) out.edges.push_back(low + static_cast<double>(i) * width);
  out.counts.assign(kBins, 0);
  std::int64_t all = 0;
  for (std::int64_t i = 0; i < o.queries; ++i) {
    const double c = scores.factor(i);
    for (std::int64_t j = 0; j < scores.visible(i); ++j) {
      const double place = (scores.score(c, i, j) - low) / width;
      if (!std::isfinite(place)) continue;
      ++out.counts[static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(kBins - 1)))];
      ++all;
    }
  }
  if (!prediction || !(sigma > 0)) return out;
  // The share below an edge, through the cap and back.
  const auto below = [&](double edge) {
    if (cap && std::fabs(edge) >= *cap) return edge > 0 ? 1.0 : 0.0;
    return normal_below(((cap ? *cap * std::atanh(edge / *cap) : edge) - middle) / sigma);
  };
  for (std::size_t i = 0; i < kBins; ++i)
    out.expected.push_back(static_cast<double>(all) * (below(out.edges[i + 1]) - below(out.edges[i])));
  return out;
}

theory::Judgement judgement_of(const HeadStats& stats, const std::optional<PlaygroundTheory>& theory) {
  theory::Evidence evidence = theory::evidence_of(stats);
  if (theory && theory->entropy) evidence.predicted_entropy = *theory->entropy;
  else if (evidence.keys >= 2 && evidence.sigma >= 0 && evidence.sigma <= 1e100)  // of one spread for all rows: quick
    evidence.predicted_entropy = theory::gaussian_softmax(evidence.sigma, evidence.keys).entropy;
  return theory::judge(evidence);
}

// q and k; then in turn the blocks that they are drawn in, the same once more as they are normalised, a call, or all
// scores with the keys that they are made of, once more, and a few rows in double.
double bytes_of(const PlaygroundOptions& o) {
  const double dk = real(o.dk), queries = real(o.queries), keys = real(o.keys);
  const bool normalised = o.rule.on == Treatment::On::kQkNorm || o.rule.on == Treatment::On::kCosine;
  const double vectors = sizeof(float) * dk * (queries + keys);
  const double blocks = 2 * sizeof(float) * dk * real(kPairsPerBlock) * base::free_threads();
  const double call =
      engine::bytes_of_call(problem_of(o, Scale::none()), {1, 1, 1, o.queries, o.keys, o.dk, 1, DType::kF32});
  const double scores = sizeof(float) * (queries * keys + keys * dk) + 5 * sizeof(double) * keys;
  return vectors + std::max({blocks, normalised ? vectors : 0, call, scores});
}

}  // namespace

MemoryNeed memory_of(const PlaygroundOptions& options) {
  check(options);
  return need_of(
      options, [](const PlaygroundOptions& o) { return bytes_of(o); }, Size{"keys", &PlaygroundOptions::keys},
      Size{"dk", &PlaygroundOptions::dk}, Size{"queries", &PlaygroundOptions::queries});
}

Playground play(const PlaygroundOptions& options) {
  want_memory(memory_of(options));
  Playground out;
  out.options = options;
  const PlaygroundOptions& o = out.options;
  Head head;
  draw(o, head);
  treat(o, head);
  const Stats stats = measure(o, head);
  const HeadStats& measured = stats.at(0, 0);
  const Scores scores(o, head);

  out.factor = scores.factor(o.queries - 1);
  bool one_factor = true;
  for (std::int64_t i = 0; i < o.queries; ++i)
    one_factor = one_factor && (scores.visible(i) == 0 || scores.factor(i) == out.factor);
  const std::optional<Prediction> prediction = one_factor ? predict(o, out.factor) : std::nullopt;
  out.measured = numbers_of(measured);
  out.score_mean = measured.score.mean;
  out.softmax = measured.softmax;
  out.theory = theory_of(o, prediction);
  out.sigma = out.theory ? out.theory->sigma : out.measured.sigma;
  out.critical_sigma =
      out.measured.rows > 0 ? theory::critical_sigma(std::max(2.0, std::exp(measured.softmax.log_keys))) : kUnseen;
  out.frozen = out.sigma > out.critical_sigma;
  out.histogram = histogram_of(o, scores, measured.score, prediction);
  out.weights = weights_of(o, scores);
  out.row = row_of(o, scores);
  out.judgement = judgement_of(measured, out.theory);
  return out;
}

}  // namespace rootdk::lab
