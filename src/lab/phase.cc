// Cell by cell of d_k × keys: batches through the fused kernel, then the quadrature beside them.
#include "rootdk/lab/phase.h"

#include <cmath>
#include <functional>

#include "base/parallel.h"
#include "engine/call_bytes.h"
#include "lab/need.h"
#include "lab/normals.h"
#include "rootdk/attention.h"
#include "rootdk/lab/whatif.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::lab {

namespace {

/// One d_k and one number of keys.
struct Cell {
  std::int64_t dk, keys;
  std::uint32_t index;
};

/// [rule][batch]
struct Batches {
  std::vector<std::vector<double>> entropy, p_max, trace;
  explicit Batches(std::size_t rules) : entropy(rules), p_max(rules), trace(rules) {}
};

Problem problem_of(double factor) {
  Problem problem;
  problem.scale = Scale::constant(factor);
  problem.stats = StatsLevel::kFull;
  return problem;
}

// Values are not looked at: one number stands for all of them.
void measure_batch(const PhaseOptions& o, const Cell& cell, std::uint32_t batch, Batches& out) {
  const Stream stream{o.seed, kPhaseStream, cell.index, batch};
  const std::vector<float> q = normals(o.queries * cell.dk, stream.array(0)),
                           k = normals(cell.keys * cell.dk, stream.array(1));
  const float one = 1;
  const Extents values = {1, 1, cell.keys, 1};
  std::vector<float> output(static_cast<std::size_t>(o.queries));
  for (std::size_t r = 0; r < o.rules.size(); ++r) {
    const Stats stats = forward(problem_of(fixed_factor(o.rules[r], cell.dk, cell.keys)),
                                {tensor(q.data(), {1, 1, o.queries, cell.dk}),
                                 tensor(k.data(), {1, 1, cell.keys, cell.dk}), tensor(&one, values, {0, 0, 0, 0})},
                                {tensor(output.data(), {1, 1, o.queries, 1})});
    const WhatifNumbers numbers = numbers_of(stats.at(0, 0));
    out.entropy[r].push_back(numbers.entropy);
    out.p_max[r].push_back(numbers.p_max);
    out.trace[r].push_back(numbers.trace_j);
  }
}

// Quadrature is a pure function: one task for p_max and one for the rest, per rule.
void add_theory(std::vector<PhasePoint>& points) {
  base::parallel_tasks(2 * static_cast<std::int64_t>(points.size()), Machine::here().threads,
                       [&](std::int64_t task, int) {
                         PhasePoint& point = points[static_cast<std::size_t>(task / 2)];
                         const auto keys = static_cast<double>(point.keys);
                         if (task % 2 == 0) {
                           point.p_max.theory = theory::gaussian_p_max(point.sigma, keys, point.dk);
                           return;
                         }
                         const theory::GaussianSoftmax softmax = theory::gaussian_softmax(point.sigma, keys, point.dk);
                         point.entropy.theory = softmax.entropy;
                         point.trace_j.theory = softmax.trace_j;
                       });
}

/// Nothing if it was stopped: goes_on is asked before every batch.
std::vector<PhasePoint> measure_cell(const PhaseOptions& o, const Cell& cell,
                                     const std::function<bool(std::int64_t batch)>& goes_on) {
  Batches batches(o.rules.size());
  std::vector<PhasePoint> points;
  for (std::int64_t b = 0; b < o.batches; ++b) {
    if (!goes_on(b)) return points;
    measure_batch(o, cell, static_cast<std::uint32_t>(b), batches);
  }
  for (std::size_t r = 0; r < o.rules.size(); ++r) {
    PhasePoint point;
    point.rule = o.rules[r].name();
    point.dk = cell.dk;
    point.keys = cell.keys;
    point.sigma = std::sqrt(static_cast<double>(cell.dk)) * std::fabs(fixed_factor(o.rules[r], cell.dk, cell.keys));
    point.critical_sigma = theory::critical_sigma(static_cast<double>(cell.keys));
    point.frozen = point.sigma > point.critical_sigma;
    point.entropy.measured = estimate(batches.entropy[r]);
    point.p_max.measured = estimate(batches.p_max[r]);
    point.trace_j.measured = estimate(batches.trace[r]);
    points.push_back(point);
  }
  add_theory(points);
  return points;
}

// Of the largest cell: q, k, a number for each query, and a call; beside that what is found.
double bytes_of(const PhaseOptions& o) {
  const std::int64_t dk = *std::max_element(o.dk.begin(), o.dk.end()),
                     keys = *std::max_element(o.keys.begin(), o.keys.end());
  const double arrays = sizeof(float) * ((real(o.queries) + real(keys)) * real(dk) + real(o.queries));
  const double call = engine::bytes_of_call(problem_of(1), {1, 1, 1, o.queries, keys, dk, 1, DType::kF32});
  const double rules = real(o.rules.size()), points = real(o.dk.size()) * real(o.keys.size()) * rules;
  return arrays + call + points * sizeof(PhasePoint) + 3 * rules * real(o.batches) * sizeof(double);
}

}  // namespace

MemoryNeed memory_of(const PhaseOptions& options) {
  want_all_between("dk", options.dk, 1, kMostDims);
  want_all_between("keys", options.keys, 2, kMostKeys);
  want_some("rules", options.rules);
  want_between("queries", options.queries, 1, kMostQueries);
  want_between("batches", options.batches, 2, kMostBatches);
  return need_of(
      options, [](const PhaseOptions& o) { return bytes_of(o); }, Size{"keys", &PhaseOptions::keys},
      Size{"dk", &PhaseOptions::dk}, Size{"queries", &PhaseOptions::queries}, Size{"rules", &PhaseOptions::rules},
      Size{"batches", &PhaseOptions::batches});
}

Phase measure_phase(const PhaseOptions& options, const Watch& watch) {
  want_memory(memory_of(options));
  Phase out;
  out.options = options;
  for (const std::int64_t keys : options.keys) out.critical.push_back({keys, 2 * std::log(static_cast<double>(keys))});
  std::uint32_t index = 0;
  // In products of components: a score takes about 128 beside its own, what theory says of a cell 6e8.
  const auto cost_of_batch = [&](std::int64_t dk, std::int64_t keys) {
    return real(options.queries) * real(keys) * real(dk + 128);
  };
  const auto cost = [&](std::int64_t dk, std::int64_t keys) {
    return real(options.batches) * cost_of_batch(dk, keys) + 6e8;
  };
  double all = 0, done = 0;
  for (const std::int64_t dk : options.dk)
    for (const std::int64_t keys : options.keys) all += cost(dk, keys);
  for (const std::int64_t dk : options.dk)
    for (const std::int64_t keys : options.keys) {
      const auto goes_on = [&](std::int64_t batch) {
        if (watch.stopped()) return false;
        watch.report((done + real(batch) * cost_of_batch(dk, keys)) / all, fmt::format("d_k {}, {} keys", dk, keys));
        return true;
      };
      std::vector<PhasePoint> points = measure_cell(options, {dk, keys, index++}, goes_on);
      if (points.empty()) {
        out.complete = false;
        return out;
      }
      for (PhasePoint& point : points) out.points.push_back(std::move(point));
      done += cost(dk, keys);
    }
  watch.report(1);
  return out;
}

}  // namespace rootdk::lab
