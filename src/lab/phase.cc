#include "rootdk/lab/phase.h"

#include <cmath>

#include "cpu/parallel.h"
#include "lab/normals.h"
#include "lab/want.h"
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

// Values are not looked at: one number stands for all of them.
void measure_batch(const PhaseOptions& o, const Cell& cell, std::uint32_t batch, Batches& out) {
  const Stream stream{o.seed, kPhaseStream, cell.index, batch};
  const std::vector<float> q = normals(o.queries * cell.dk, stream.array(0)),
                           k = normals(cell.keys * cell.dk, stream.array(1));
  const float one = 1;
  const Extents values = {1, 1, cell.keys, 1};
  std::vector<float> output(static_cast<std::size_t>(o.queries));
  for (std::size_t r = 0; r < o.rules.size(); ++r) {
    Problem problem;
    problem.scale = Scale::constant(fixed_factor(o.rules[r], cell.dk, cell.keys));
    problem.stats = StatsLevel::kFull;
    const Stats stats = forward(problem,
                                {tensor(q.data(), {1, 1, o.queries, cell.dk}),
                                 tensor(k.data(), {1, 1, cell.keys, cell.dk}), tensor(&one, values, {0, 0, 0, 0})},
                                {tensor(output.data(), {1, 1, o.queries, 1})});
    const WhatifNumbers numbers = numbers_of(stats.at(0, 0));
    out.entropy[r].push_back(numbers.entropy);
    out.p_max[r].push_back(numbers.p_max);
    out.trace[r].push_back(numbers.trace_jacobian);
  }
}

// Quadrature is a pure function: one task for p_max and one for the rest, per rule.
void add_theory(std::vector<PhasePoint>& points) {
  cpu::parallel_tasks(2 * static_cast<std::int64_t>(points.size()), Machine::here().threads,
                      [&](std::int64_t task, int) {
                        PhasePoint& point = points[static_cast<std::size_t>(task / 2)];
                        const auto keys = static_cast<double>(point.keys);
                        if (task % 2 == 0) {
                          point.p_max.theory = theory::gaussian_p_max(point.sigma, keys, point.dk);
                          return;
                        }
                        const theory::GaussianSoftmax softmax = theory::gaussian_softmax(point.sigma, keys, point.dk);
                        point.entropy.theory = softmax.entropy;
                        point.trace_jacobian.theory = softmax.trace_jacobian;
                      });
}

std::vector<PhasePoint> measure_cell(const PhaseOptions& o, const Cell& cell) {
  Batches batches(o.rules.size());
  for (std::int64_t b = 0; b < o.batches; ++b) measure_batch(o, cell, static_cast<std::uint32_t>(b), batches);
  std::vector<PhasePoint> points;
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
    point.trace_jacobian.measured = estimate(batches.trace[r]);
    points.push_back(point);
  }
  add_theory(points);
  return points;
}

}  // namespace

Phase measure_phase(const PhaseOptions& options, const Watch& watch) {
  want_all_between("dk", options.dk, 1, kMostDims);
  want_all_between("keys", options.keys, 2, kMostKeys);
  want_some("rules", options.rules);
  want_between("queries", options.queries, 1, kMostQueries);
  want_between("batches", options.batches, 2, kMostBatches);
  Phase out;
  out.options = options;
  for (const std::int64_t keys : options.keys) out.critical.push_back({keys, 2 * std::log(static_cast<double>(keys))});
  std::uint32_t index = 0;
  const auto cells = static_cast<double>(options.dk.size() * options.keys.size());
  for (const std::int64_t dk : options.dk)
    for (const std::int64_t keys : options.keys) {
      if (watch.stopped()) {
        out.complete = false;
        return out;
      }
      for (PhasePoint& point : measure_cell(options, {dk, keys, index++})) out.points.push_back(std::move(point));
      watch.report(index / cells);
    }
  return out;
}

}  // namespace rootdk::lab
