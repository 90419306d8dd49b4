// AdamW (Loshchilov & Hutter 2019): steps of about the learning rate in every component, whatever its gradient's size,
// and weights of matrices pulled towards zero apart from that.
//
//   m ← β₁m + (1−β₁)g    v ← β₂v + (1−β₂)g²
//   w ← w − rate·(weight_decay·w + m̂/(√v̂ + ε)),   m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;  ///< nearer to 1 averages gradients' squares longer
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of matrices only
};

/// All of what it remembers, so that it can be stored: make two of the same and they go the same way, bit for bit.
struct AdamWState {
  std::int64_t steps = 0;
  std::vector<float> m, v;  ///< of every parameter, in the order of the list
};

class AdamW {
 public:
  ROOTDK_API AdamW(const AdamWOptions& options, std::span<const Parameter<float>> parameters);

  /// One step down `gradients`, which lists the same arrays; each is multiplied by gradient_factor first (clipping).
  ROOTDK_API void step(std::span<const Parameter<float>> parameters, std::span<const Parameter<float>> gradients,
                       double learning_rate, double gradient_factor = 1);

  const AdamWState& state() const { return state_; }
  /// Throws if it is of another size.
  ROOTDK_API void restore(AdamWState state);

 private:
  AdamWOptions options_;
  AdamWState state_;
};

/// √Σg² over all of them, in double and in a fixed order.
ROOTDK_API double norm_of(std::span<const Parameter<float>> gradients);

}  // namespace rootdk::nn
