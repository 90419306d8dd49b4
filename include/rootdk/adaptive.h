// Scales that look at the data first. They give numbers to put into a Problem; they are constants in backward.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "rootdk/export.h"
#include "rootdk/problem.h"
#include "rootdk/tensor.h"

namespace rootdk {

/// How much the scores q·k vary within a row, per query head, and the factor that makes that variance 1.
struct UnitVariance {
  /// Mean over rows and batch of the variance of q·k over the keys, which are a population
  std::vector<double> variance;
  std::vector<float> factors;  ///< 1/√variance; 1/√d_k for a head whose scores do not vary. For Scale::per_head
  bool exact = true;           ///< false: masks leave pairs out that were counted here
  std::string why;             ///< which masks; empty if exact
};

/// From Gram matrices, ⟨QᵀQ/len_q, Cov(K)⟩, in O((len_q + len_kv)·dim²): no score is computed. Of the problem it uses
/// the page table and, to say whether the result is exact, the masks; its scale is not in it. The same bits at any
/// thread count.
ROOTDK_API UnitVariance adaptive_unit_variance(const Problem& problem, const ConstTensor& q, const ConstTensor& k);

/// The same over many batches: variances, not factors, are averaged, with weight 1 − decay for the newest; the first
/// stands for itself.
class RunningUnitVariance {
 public:
  ROOTDK_API explicit RunningUnitVariance(double decay = 0.99);

  /// Takes a batch in, and returns the averages so far with their factors; `exact` only if every batch was.
  ROOTDK_API const UnitVariance& update(const UnitVariance& batch, std::int64_t dim_qk);
  const UnitVariance& average() const { return average_; }

 private:
  double decay_;
  UnitVariance average_;
};

/// Adaptive temperature (arXiv 2410.01104), inference only: what the scores of a row whose probabilities have this
/// entropy, in nats, are multiplied by, before softmax is taken again. 1 up to an entropy of 0.5.
ROOTDK_API double adaptive_temperature(double entropy);

/// Attention twice: the first pass measures each row's entropy, the second runs with the row's scores times
/// adaptive_temperature of it. Takes what leaves s = c·q·k: a problem with soft-cap, transform, bias, ALiBi, sink or
/// dropout is refused. f32 and f64 only, because q is scaled in its own dtype. `temperatures`, if present, is [batch,
/// heads_q, len_q, 1] and gets them. Returns the second pass's statistics.
ROOTDK_API Stats forward_adaptive_temperature(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                                              const Tensor& temperatures = {});

}  // namespace rootdk
