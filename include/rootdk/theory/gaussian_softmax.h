// What softmax makes of n independent Gaussian scores of spread σ: Derrida's random-energy model. Beyond σ_c = √(2 ln
// n) a few keys take everything.
//
// The expectations are exact, by quadrature: relative error below 1e-6 (p_max: 1e-4) for every σ and every n ≥ 2.
// `keys` is a real number because the typical number of visible keys under a causal mask is one.
#pragma once

#include <cstdint>

#include "rootdk/export.h"

namespace rootdk::theory {

/// Expectations over rows.
struct GaussianSoftmax {
  double entropy = 0;      ///< of p, in nats
  double log_z = 0;        ///< ln Σ e^s
  double sum_p2 = 0;       ///< Σp²
  double trace_j = 0;      ///< 1 − Σp², without its cancellation
  double frobenius_j = 0;  ///< ‖diag(p) − ppᵀ‖_F²
};

/// Every row has scores of the same standard deviation `sigma`.
ROOTDK_API GaussianSoftmax gaussian_softmax(double sigma, double keys);

/// Row i has the spread of its own query, ‖qᵢ‖ with q Gaussian: σᵢ² = σ²·χ²_d/d. This is what real q and k do, and it
/// differs from the above as long as dim_qk is small. Six (from 256 components on) to seventy times (one component) the
/// work.
ROOTDK_API GaussianSoftmax gaussian_softmax(double sigma, double keys, std::int64_t dim_qk);

/// The largest probability, for one σ and averaged over the spread of ‖q‖.
ROOTDK_API double gaussian_p_max(double sigma, double keys);
ROOTDK_API double gaussian_p_max(double sigma, double keys, std::int64_t dim_qk);

/// Of one σ, within 1e-4, on a coarser lattice: for tables and pictures.
struct RoughSoftmax {
  double entropy = 0, sum_p2 = 0, p_max = 0;
};
ROOTDK_API RoughSoftmax rough_softmax(double sigma, double keys);
/// p_max averaged over the spread of ‖q‖, within 1e-4 (of one component: 1e-3), six to thirty times the work.
ROOTDK_API double rough_p_max(double sigma, double keys, std::int64_t dim_qk);

/// σ_c = √(2 ln n).
ROOTDK_API double critical_sigma(double keys);

/// For σ² ≪ ln n. A limit: wrong elsewhere.
struct SoftLimit {
  double entropy = 0;        ///< ln n − σ²/2
  double participation = 0;  ///< 1/Σp² = n·e^{−σ²}
};
ROOTDK_API SoftLimit soft_limit(double sigma, double keys);

/// For σ > σ_c, with r = σ_c/σ. A limit of large n, poor near σ_c.
struct FrozenLimit {
  double sum_p2 = 0;       ///< 1 − r
  double trace_j = 0;      ///< r
  double frobenius_j = 0;  ///< r(1 − r)/3
};
ROOTDK_API FrozenLimit frozen_limit(double sigma, double keys);

/// Means over rows, as measured.
struct MeasuredRows {
  double score_within_row_variance = 0;  ///< within rows
  double mean_score = 0;                 ///< Σ p s, less the row's own mean score
  double sum_p2 = 0;
};

/// Stein: E[Σ p s] = σ²(1 − E Σp²) for Gaussian scores. The measured left side over the right: 1 if they are Gaussian.
/// NaN where the right side is 0.
ROOTDK_API double stein_ratio(const MeasuredRows& rows);

}  // namespace rootdk::theory
