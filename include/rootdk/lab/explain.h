// One row of scores, step by step: what each rule divides by, the exponentials, softmax, and the gradient that gets
// through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/memory.h"
#include "rootdk/scale.h"
#include "rootdk/theory/softmax_row.h"

namespace rootdk::lab {

struct ExplainOptions {
  /// Either the raw scores q·k with the d_k they came from …
  std::vector<double> scores = {};
  std::int64_t dk = 0;
  /// … or the vectors: one query, one or more keys, all of length d_k.
  std::vector<double> q = {};
  std::vector<std::vector<double>> keys = {};

  std::vector<Scale> rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  /// Gradient on each probability. Absent: 1 on that of the largest score (the first of them), 0 elsewhere.
  std::vector<double> upstream = {};
};

struct ExplainedRule {
  std::string rule;            ///< Scale::name()
  double divisor = 1;          ///< 1/c
  std::vector<double> scores;  ///< c·q·k
  theory::SoftmaxRow softmax;
  double effective_keys = 0;           ///< e^H
  std::vector<double> jacobian;        ///< [n, n] ∂p_i/∂s_j = p_i(δ_ij − p_j); empty beyond kMostKeys
  std::vector<double> score_gradient;  ///< what `upstream` becomes at the scores
  std::vector<double> raw_gradient;    ///< the same at q·k, before the division

  static constexpr std::size_t kMostKeys = 64;
};

struct Explanation {
  std::int64_t dk = 0;
  std::vector<double> q;
  std::vector<std::vector<double>> keys;  ///< both empty if scores were given
  std::vector<double> raw;                ///< q·k
  std::vector<double> upstream;
  std::vector<ExplainedRule> rules;
};

/// What an explanation of so many scores under so many rules takes, beside the options.
ROOTDK_API MemoryNeed memory_to_explain(std::size_t scores, std::size_t rules);

ROOTDK_API Explanation explain(const ExplainOptions& options);

}  // namespace rootdk::lab
