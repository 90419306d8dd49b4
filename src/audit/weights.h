// One layer's weights: read as they are needed, norms folded in, and what a projection makes of isotropic inputs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rootdk/audit/model.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/theory/head.h"

namespace rootdk::audit {

/// A head's rows of one part [rows, stride], as stored; rows that turn come first.
struct HeadRows {
  std::int64_t rows = 0, width = 0, stride = 0;
  std::vector<float> weight;  ///< beyond the width: 0
  std::vector<double> bias;   ///< [rows]
};

/// q or k of one head.
struct Side {
  theory::Projected projected;  ///< empty where something is not finite
  std::int64_t not_finite = 0;  ///< NaN or Inf among its weights
  bool overflows = false;       ///< they are finite, but sums of their products are not

  bool finite() const { return not_finite == 0 && !overflows; }
};

enum class Which : std::uint8_t { kQueries, kKeys };

/// Threads share one of these. Small tensors (norms, biases) are read here, and those that are stored transposed; rows
/// of the others when they are asked for.
class LayerWeights {
 public:
  LayerWeights(const checkpoint::Checkpoint& checkpoint, const Attention& attention);

  /// What the head's q or k is for isotropic inputs: QK-norm and YaRN's magnitude included.
  Side side(Which which, std::int64_t head) const;

  HeadRows rows_of(const Part& part, std::int64_t head) const;
  /// A tensor that was read before: a norm's gain or bias.
  const std::vector<double>& vector(const std::string& tensor) const { return vectors_.at(tensor); }
  const std::vector<Part>& parts(Which which) const { return which == Which::kQueries ? attention_.q : attention_.k; }
  const NormPlace& qk_norm(Which which) const {
    return which == Which::kQueries ? attention_.q_norm : attention_.k_norm;
  }
  const Rotary& rotary() const { return attention_.rotary; }

 private:
  void keep(const std::string& tensor);
  theory::Projected projected(const Part& part, std::int64_t head, std::int64_t& not_finite) const;

  const checkpoint::Checkpoint& checkpoint_;
  const Attention& attention_;
  std::map<std::string, std::vector<double>> vectors_;
  std::map<std::string, std::vector<float>> transposed_;  // whole tensors [in, out]
};

/// The second moment of √d·q/‖q‖ for q ~ N(0, G): what QK-norm makes of a head, before its gain. Exact: E[qqᵀ/‖q‖²] has
/// G's eigenvectors, and λᵢ∫(1+2tλᵢ)⁻¹ Π(1+2tλⱼ)^(−½) dt for eigenvalues.
std::vector<double> normalised_moment(const std::vector<double>& covariance, std::int64_t dim);

}  // namespace rootdk::audit
