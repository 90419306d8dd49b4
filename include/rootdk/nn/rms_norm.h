// RMSNorm (Zhang & Sennrich 2019): every row divided by its root mean square, times a learned gain. What comes out has
// unit variance, so that W_q and W_k of LeCun's variance give q and k of unit variance: the assumption behind 1/√d_k.
#pragma once

#include <cstdint>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/linear.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

template <class T>
struct BasicRmsNorm {
  std::vector<T> gain;    ///< [width]
  double epsilon = 1e-5;  ///< added to the mean square: a row of zeros stays zero

  BasicRmsNorm() = default;

  /// Gains of one.
  ROOTDK_API explicit BasicRmsNorm(std::int64_t width, double epsilon = 1e-5);

  std::int64_t width() const { return static_cast<std::int64_t>(gain.size()); }
};
using RmsNorm = BasicRmsNorm<float>;

/// y ← x / √(mean of x² + ε) · gain for every row of x [rows, width]; inverse_rms [rows] is kept for backward.
template <class T>
ROOTDK_API void apply(const BasicRmsNorm<T>& norm, Values<const T> x, Values<T> y, Values<T> inverse_rms);

/// d_x ← or + the gradient of x; gradients.gain gets its own added.
template <class T>
ROOTDK_API void backward(const BasicRmsNorm<T>& norm, Values<const T> x, Values<const T> inverse_rms,
                         Values<const T> d_y, Values<T> d_x, BasicRmsNorm<T>& gradients, Write write = Write::kReplace);

}  // namespace rootdk::nn
