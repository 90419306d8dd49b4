// The mean and variance of all len_q·len_kv products q·k, without computing one of them: two d×d matrices are enough.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"

namespace rootdk::theory {

/// Of q·k over all pairs; populations, not estimates of something larger.
struct ScoreMoments {
  double mean = 0;                 ///< q̄·k̄
  double second_moment = 0;        ///< ⟨QᵀQ/T, KᵀK/S⟩
  double total_variance = 0;       ///< second moment − mean²
  double within_row_variance = 0;  ///< ⟨QᵀQ/T, Cov(K)⟩: the part softmax can see
};

/// q [len_q, dim_qk] and k [len_kv, dim_qk], row-major. O((len_q + len_kv)·dim_qk²).
ROOTDK_API ScoreMoments score_moments(std::span<const double> q, std::span<const double> k, std::int64_t dim_qk);

}  // namespace rootdk::theory
