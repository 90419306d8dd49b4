// What a backward pass brings to the scores, to Q and to K, by rule and d_k: means, quantiles and tails.
//
// q, k and v are standard normal, and so is the gradient of the output over √dim_v, so that every probability receives
// a gradient of unit variance. Then the expected squared gradient at a row's scores is ‖J‖², J being softmax's
// Jacobian.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/estimate.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"
#include "rootdk/scale.h"

namespace rootdk::lab {

struct GradientOptions {
  std::vector<std::int64_t> dk = {16, 64, 256, 512};
  std::vector<Scale> rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  std::int64_t keys = 1024;
  std::int64_t queries = 128;  ///< in a batch; they share its keys
  std::int64_t batches = 8;    ///< independent
  std::uint64_t seed = 1;
};

/// Of the lengths of many rows.
struct Quantiles {
  double p1 = 0, p5 = 0, p25 = 0, median = 0, p75 = 0, p95 = 0, p99 = 0;
};

/// Lengths of the rows of a gradient.
struct GradientRows {
  Estimate mean_square;  ///< of the length
  double mean = 0;
  Quantiles length;
};

struct GradientPoint {
  std::string rule;
  std::int64_t dk = 0;
  double factor = 1;         ///< c
  GradientRows scores;       ///< rows of dS: at what softmax sees
  double scores_theory = 0;  ///< E‖J‖², which scores.mean_square estimates
  GradientRows queries;      ///< rows of dQ
  GradientRows keys;         ///< rows of dK
  Estimate trace_j;          ///< mean over rows
  double trace_theory = 0;
  double trace_median = 0;
  double share_trace_j_under_1pct = 0;  ///< share of rows with tr J < 0.01
};

struct Gradient {
  GradientOptions options;
  std::vector<GradientPoint> points;
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const GradientOptions& options);

ROOTDK_API Gradient measure_gradient(const GradientOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
