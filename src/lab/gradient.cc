// Fused backward passes over random heads; lengths of dS, dQ and dK gathered by row.
#include "rootdk/lab/gradient.h"

#include <algorithm>
#include <cmath>

#include "engine/call_bytes.h"
#include "lab/need.h"
#include "lab/normals.h"
#include "rootdk/attention.h"
#include "rootdk/lab/whatif.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::lab {

namespace {

/// What one kind of gradient gave, over all batches.
struct Lengths {
  std::vector<double> all;           ///< of every row
  std::vector<double> mean_squares;  ///< of every batch

  /// rows [rows.size()/width, width]
  void add(const std::vector<float>& rows, std::int64_t width) {
    double total = 0;
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t first = 0; first < rows.size(); first += w) {
      double square = 0;
      for (std::size_t i = first; i < first + w; ++i)
        square += static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
      all.push_back(std::sqrt(square));
      total += square;
    }
    mean_squares.push_back(total / static_cast<double>(rows.size() / w));
  }
};

// Between the two nearest of the sorted values.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

GradientRows summary(Lengths lengths) {
  GradientRows out;
  out.mean_square = estimate(lengths.mean_squares);
  for (const double x : lengths.all) out.mean += x / static_cast<double>(lengths.all.size());
  std::vector<double>& sorted = lengths.all;
  std::sort(sorted.begin(), sorted.end());
  out.length = {quantile(sorted, 0.01), quantile(sorted, 0.05), quantile(sorted, 0.25), quantile(sorted, 0.5),
                quantile(sorted, 0.75), quantile(sorted, 0.95), quantile(sorted, 0.99)};
  return out;
}

/// One rule at one d_k.
struct Gathered {
  Lengths scores, queries, keys;
  std::vector<double> trace_means, traces, share_trace_j_under_1pct;
};

constexpr float kZero = 0;

// The gradient of a bias of zeros is the gradient of the scores.
Problem problem_of(const GradientOptions& o, double factor) {
  Problem problem;
  problem.scale = Scale::constant(factor);
  problem.stats = StatsLevel::kFull;
  problem.mask.bias = tensor(&kZero, {1, 1, o.queries, o.keys}, {0, 0, 0, 0});
  return problem;
}

void backward_pass(const GradientOptions& o, std::int64_t dk, double factor, const std::vector<float>& q,
                   const std::vector<float>& k, const std::vector<float>& v, const std::vector<float>& d_o,
                   Gathered& out) {
  const Extents of_q = {1, 1, o.queries, dk}, of_k = {1, 1, o.keys, dk}, of_scores = {1, 1, o.queries, o.keys},
                of_rows = {1, 1, o.queries, 1};
  const auto rows = static_cast<std::size_t>(o.queries);
  std::vector<float> output(q.size()), lse(rows), sum_p2(rows), d_q(q.size()), d_k(k.size());
  std::vector<float> d_scores(rows * static_cast<std::size_t>(o.keys));
  const Problem problem = problem_of(o, factor);
  Outputs outputs{tensor(output.data(), of_q), tensor(lse.data(), of_rows), {}};
  outputs.rows.sum_p2 = tensor(sum_p2.data(), of_rows);
  const ConstTensor q_in = tensor(q.data(), of_q), k_in = tensor(k.data(), of_k), v_in = tensor(v.data(), of_k);
  const Stats stats = forward(problem, {q_in, k_in, v_in}, outputs);
  Gradients gradients;
  gradients.d_q = tensor(d_q.data(), of_q);
  gradients.d_k = tensor(d_k.data(), of_k);
  gradients.d_bias = tensor(d_scores.data(), of_scores);
  backward(problem, {q_in, k_in, v_in, outputs.o, outputs.lse, tensor(d_o.data(), of_q)}, gradients);

  out.scores.add(d_scores, o.keys);
  out.queries.add(d_q, dk);
  out.keys.add(d_k, dk);
  for (const float p2 : sum_p2) out.traces.push_back(1 - static_cast<double>(p2));
  const WhatifNumbers numbers = numbers_of(stats.at(0, 0));
  out.trace_means.push_back(numbers.trace_j);
  out.share_trace_j_under_1pct.push_back(numbers.share_trace_j_under_1pct);
}

GradientPoint point_of(const Scale& rule, std::int64_t dk, std::int64_t keys, Gathered gathered) {
  GradientPoint point;
  point.rule = rule.name();
  point.dk = dk;
  point.factor = fixed_factor(rule, dk, keys);
  point.scores = summary(std::move(gathered.scores));
  point.queries = summary(std::move(gathered.queries));
  point.keys = summary(std::move(gathered.keys));
  point.trace_j = estimate(gathered.trace_means);
  std::sort(gathered.traces.begin(), gathered.traces.end());
  point.trace_median = quantile(gathered.traces, 0.5);
  for (const double share : gathered.share_trace_j_under_1pct)
    point.share_trace_j_under_1pct += share / static_cast<double>(gathered.share_trace_j_under_1pct.size());
  const double sigma = std::sqrt(static_cast<double>(dk)) * std::fabs(point.factor);
  const theory::GaussianSoftmax theory = theory::gaussian_softmax(sigma, static_cast<double>(keys), dk);
  point.scores_theory = theory.frobenius_j;
  point.trace_theory = theory.trace_j;
  return point;
}

// At the largest d_k: q, k, v, d_o, o, d_q, d_k, the gradient of every score, and a call; beside that the lengths of
// all rows, under each rule, in vectors that grow by doubling.
double bytes_of(const GradientOptions& o) {
  const std::int64_t dk = *std::max_element(o.dk.begin(), o.dk.end());
  const double queries = real(o.queries), keys = real(o.keys);
  const double arrays = sizeof(float) * ((4 * queries + 3 * keys) * real(dk) + queries * keys + 2 * queries);
  const Shape shape = {1, 1, 1, o.queries, o.keys, dk, dk, DType::kF32};
  const Problem problem = problem_of(o, 1);
  const double call =
      std::max(engine::bytes_of_call(problem, shape), engine::bytes_of_call(problem, shape, Pass::kBackward));
  const double lengths = 1.5 * sizeof(double) * real(o.rules.size()) * real(o.batches) * (3 * queries + keys);
  return arrays + call + lengths + real(o.dk.size()) * real(o.rules.size()) * sizeof(GradientPoint);
}

}  // namespace

MemoryNeed memory_of(const GradientOptions& options) {
  want_all_between("dk", options.dk, 1, kMostDims);
  want_some("rules", options.rules);
  want_between("keys", options.keys, 2, kMostKeys);
  want_between("queries", options.queries, 1, kMostQueries);
  want_between("batches", options.batches, 2, kMostBatches);
  return need_of(
      options, [](const GradientOptions& o) { return bytes_of(o); }, Size{"keys", &GradientOptions::keys},
      Size{"queries", &GradientOptions::queries}, Size{"dk", &GradientOptions::dk},
      Size{"batches", &GradientOptions::batches}, Size{"rules", &GradientOptions::rules});
}

Gradient measure_gradient(const GradientOptions& o, const Watch& watch) {
  want_memory(memory_of(o));
  Gradient out;
  out.options = o;
  const auto cost = [](std::int64_t dk) {
    return static_cast<double>(dk + 64);
  };  // what is done with a score is as 64 products
  double all = 0, done = 0;
  for (const std::int64_t dk : o.dk) all += static_cast<double>(o.batches) * cost(dk);
  for (std::size_t n = 0; n < o.dk.size(); ++n) {
    const std::int64_t dk = o.dk[n];
    std::vector<Gathered> gathered(o.rules.size());
    for (std::int64_t b = 0; b < o.batches; ++b) {
      if (watch.stopped()) {
        out.complete = false;
        return out;
      }
      watch.report(done / all, fmt::format("d_k {}, batch {} of {}", dk, b + 1, o.batches));
      const Stream stream{o.seed, kGradientStream, static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(b)};
      const std::vector<float> q = normals(o.queries * dk, stream.array(0)), k = normals(o.keys * dk, stream.array(1)),
                               v = normals(o.keys * dk, stream.array(2)),
                               d_o = normals(o.queries * dk, stream.array(3), 1 / std::sqrt(static_cast<double>(dk)));
      for (std::size_t r = 0; r < o.rules.size(); ++r)
        backward_pass(o, dk, fixed_factor(o.rules[r], dk, o.keys), q, k, v, d_o, gathered[r]);
      done += cost(dk);
    }
    for (std::size_t r = 0; r < o.rules.size(); ++r)
      out.points.push_back(point_of(o.rules[r], dk, o.keys, std::move(gathered[r])));
  }
  watch.report(1);
  return out;
}

}  // namespace rootdk::lab
