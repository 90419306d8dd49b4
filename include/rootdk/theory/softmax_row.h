// Softmax of one row, step by step and in double: the sums one would do by hand, and what the row's statistics come to.
#pragma once

#include <span>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::theory {

struct SoftmaxRow {
  std::vector<double> exponentials;   ///< e^s as it stands, without a shift: infinite beyond s = 709
  double sum = 0;                     ///< of the exponentials
  std::vector<double> probabilities;  ///< computed relative to the largest score, so always finite
  std::vector<double> complements;    ///< 1 − p, right also where p rounds to 1
  double log_z = 0;                   ///< ln Σ e^s
  double mean_score = 0;              ///< Σ p s
  double entropy = 0;                 ///< −Σ p ln p
  double p_max = 0;
  double sum_p2 = 0;       ///< Σp²; 1/Σp² is one count of effective keys
  double trace_j = 0;      ///< Σ p(1 − p) = 1 − Σp², without its cancellation
  double frobenius_j = 0;  ///< ‖diag(p) − ppᵀ‖_F²
};

/// At least one score; all finite.
ROOTDK_API SoftmaxRow softmax_row(std::span<const double> scores);

}  // namespace rootdk::theory
