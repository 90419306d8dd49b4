// From the weights of a head to the variance of its scores, without running a token through it.
//
// A score is s = scale·(q·R k), with q = W_q x + b_q, k = W_k x' + b_k, independent inputs x and x', and R the rotation
// by the distance between their positions, where there is one. Unless a covariance was measured, inputs are isotropic:
// each component of the normalised input has variance 1 and they do not correlate. Real tokens are neither independent
// nor isotropic; say so beside the number.
//
// All matrices are row-major. Nothing is owned; empty spans are absent. Computed in double, O(dim_qk²·width) a
// projection. Nothing here is threaded: every function is pure, so callers thread over heads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::theory {

/// A normalisation: y = gain·normalised(x) + bias.
struct Norm {
  enum class Kind : std::uint8_t {
    kNone,
    kRms,    ///< x/√(mean x²)
    kLayer,  ///< the mean is removed, too
  };

  Kind kind = Kind::kNone;
  std::span<const double> gain = {};  ///< absent: 1
  std::span<const double> bias = {};  ///< absent: 0
  double gain_offset = 0;  ///< added to every gain; 1 for models that store it as a difference from 1 (Gemma)
};

/// One head's part of W_q or W_k, and what feeds it.
struct Projection {
  std::span<const double> weight = {};  ///< [dim_qk, width]
  std::span<const double> bias = {};    ///< [dim_qk]
  Norm norm = {};                       ///< just before the projection; folded into it
  // Of the input, normalised but before gain and bias.
  std::span<const double> mean = {};  ///< [width]; absent: 0
  std::span<const double> covariance =
      {};  ///< [width, width]; absent: identity, which kLayer frees of the mean direction
};

/// What a projection makes of its inputs. Heads of a group share that of their keys.
struct Projected {
  std::int64_t dim = 0;
  std::vector<double> covariance;     ///< G [dim, dim] = W Σ Wᵀ, norm folded
  std::vector<double> mean;           ///< [dim]: W μ + b, norm folded
  std::vector<double> gram;           ///< [dim, dim]: W Wᵀ, norm folded, whatever the covariance
  std::vector<double> offset;         ///< [dim]: b, norm folded
  std::vector<double> norm_gain;      ///< [dim]: |γ| of a QK-norm; empty otherwise
  std::optional<double> input_bound;  ///< largest length of the folded input, known after a norm
};

ROOTDK_API Projected project(const Projection& projection, std::int64_t dim_qk);

/// What QK-norm makes of any q or k, taken as isotropic: the projection before it no longer matters.
ROOTDK_API Projected normalised(const Norm& norm, std::int64_t dim_qk);

/// Pair i of the leading components turns by position·frequencies[i].
struct Rotation {
  enum class Pairing : std::uint8_t {
    kHalfSplit,    ///< i and i + pairs: GPT-NeoX, Hugging Face LLaMA
    kInterleaved,  ///< 2i and 2i + 1: the RoFormer paper, GPT-J, GGUF LLaMA
  };

  Pairing pairing = Pairing::kHalfSplit;
  std::span<const double> frequencies = {};  ///< radians per position; absent: nothing turns
};

/// How q and k meet.
struct Meeting {
  double scale = 1;  ///< what the model multiplies q·k with
  Rotation rotation = {};
  std::int64_t context = 4096;             ///< averages are over distances 0 … context−1, equally likely
  std::span<const double> distances = {};  ///< where to evaluate the curve
};

/// At a distance of query position − key position.
struct AtDistance {
  double distance = 0;
  double mean = 0;      ///< of q·k
  double variance = 0;  ///< of q·k over the keys at this distance
};

/// Means and variances are of q·k, before the scale; sigma and bound are of the score, after it.
struct HeadTheory {
  double mean = 0;
  double within_row_variance = 0;  ///< over the keys of one query, then averaged over queries: what softmax can see
  double total_variance = 0;
  double divisor = 0;                ///< √(within-row variance): dividing by it gives this head unit variance
  double divisor_over_sqrt_dim = 0;  ///< 1 where the familiar √d_k is right
  double sigma = 0;                  ///< divisor·|scale|
  std::optional<double> bound;       ///< |s| cannot exceed it; absent without a norm
  /// (Σσᵢ²)²/Σσᵢ⁴ of W_qᵀW_k. Without bias and rotation, Gaussian inputs give scores of excess kurtosis 6 over this.
  double effective_rank = 0;

  // Why it is what it is.
  double sigma_q = 0;  ///< root mean variance of a component of q
  double sigma_k = 0;
  double query_mean_norm = 0;  ///< length of the mean q
  double key_mean_norm = 0;
  double alignment = 0;  ///< variance without means over dim·σ_q²·σ_k²: 1 if q and k spread in unrelated directions
  std::optional<double> phase_average;  ///< variance without means if all phases were met equally often; rotation only
  /// The same with them: what within_row_variance is in an endless context
  std::optional<double> phase_within_row_variance;
  std::vector<AtDistance> curve;  ///< one entry per distance asked for
};

ROOTDK_API HeadTheory head_theory(const Projected& q, const Projected& k, const Meeting& meeting = {});

/// √(λ_max): the largest singular value of W, from Projected::gram.
ROOTDK_API double spectral_norm(const Projected& projected);

}  // namespace rootdk::theory
