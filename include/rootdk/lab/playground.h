// One random head under one rule, as quick as a slider moves: what its scores are spread like, what softmax makes of
// them, what gradient gets through, each beside what theory says; and the weights themselves, to look at.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/whatif.h"
#include "rootdk/memory.h"
#include "rootdk/theory/judge.h"

namespace rootdk::lab {

/// Queries and keys are drawn as lab::measure_variance draws pairs: q = mean + σ_q·(√(1−ρ)·a + √ρ·a₀), a₀ shared by the
/// components of a vector.
struct PlaygroundOptions {
  std::int64_t dk = 64, keys = 256, queries = 64;
  Treatment rule = treatment("sqrt_dk");  ///< all but temperature, which looks at the scores twice
  double sigma_q = 1, sigma_k = 1;        ///< of the components
  double mean = 0;                        ///< of every component of both
  double correlation = 0;                 ///< of any two components of a vector, 0 to 1
  std::optional<double> soft_cap = {};    ///< cap·tanh(s/cap), after the scale
  std::optional<double> sink = {};        ///< score of one more key, whose value is 0
  double dropout = 0;                     ///< share of the weights that are dropped
  bool causal = false;                    ///< the last query stands on the last key
  std::uint64_t seed = 1;
  std::int64_t row = 0;  ///< the query to look at
};

/// What theory expects; absent where it has nothing exact to say.
struct PlaygroundTheory {
  double sigma = 0;  ///< of scores within a row
  std::optional<double> entropy, p_max, trace_j, frobenius_j;
};

struct PlaygroundHistogram {
  std::vector<double> edges;         ///< one more than bins
  std::vector<std::int64_t> counts;  ///< of scores as softmax sees them, over all visible pairs
  /// By the normal distribution of the predicted mean and variance; none where there is no prediction
  std::vector<double> expected;
};

/// What multiplies the values: after dropout.
struct PlaygroundWeights {
  std::int64_t queries = 0, keys = 0;  ///< the first of each
  std::vector<double> values;          ///< [queries, keys]
};

struct PlaygroundRow {
  std::int64_t query = 0;
  std::vector<double> scores;  ///< as softmax sees them; NaN where a key is out of sight
  std::vector<double> p;       ///< what multiplies the values: after dropout
  /// Root mean square of what a random gradient of unit variance on each p becomes at the score
  std::vector<double> score_gradient;
};

struct Playground {
  PlaygroundOptions options;
  double factor = 0;          ///< c; of the last query where it differs
  double sigma = 0;           ///< theory's, where there is one
  double critical_sigma = 0;  ///< √(2 ln n), n the geometric mean of the keys in sight
  bool frozen = false;        ///< σ > σ_c
  WhatifNumbers measured;
  double score_mean = 0;
  SoftmaxMeans softmax;  ///< the same rows
  std::optional<PlaygroundTheory> theory;
  PlaygroundHistogram histogram;
  PlaygroundWeights weights;
  PlaygroundRow row;
  theory::Judgement judgement;
};

/// At its peak. Refuses what playing refuses.
ROOTDK_API MemoryNeed memory_of(const PlaygroundOptions& options);

ROOTDK_API Playground play(const PlaygroundOptions& options = {});

}  // namespace rootdk::lab
