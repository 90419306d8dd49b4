// y = x·Wᵀ + b: the one layer with weights that attention is built from, and its gradients.
//
// Weights are plain row-major arrays, [out, in] as in torch.nn.Linear, so that anything can read, write or initialise
// them. A gradient is a Linear of the same sizes: an optimiser walks both side by side.
//
// T is float, or double for checking: plain loops then, and no hurry.
#pragma once

#include <cstdint>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

template <class T>
struct BasicLinear {
  std::int64_t in = 0;    ///< width of x
  std::int64_t out = 0;   ///< width of y
  std::vector<T> weight;  ///< [out, in], row-major
  std::vector<T> bias;    ///< [out], or empty for none

  BasicLinear() = default;

  /// All zeros. init.h fills in something better.
  ROOTDK_API BasicLinear(std::int64_t in, std::int64_t out, bool has_bias);

  bool has_bias() const { return !bias.empty(); }
  ROOTDK_API void set_zero();
};
using Linear = BasicLinear<float>;

/// Same sizes, all zeros: where gradients are gathered.
template <class T>
ROOTDK_API BasicLinear<T> zeros_like(const BasicLinear<T>& layer);

/// Whether a result replaces what was there or is added to it.
enum class Write : std::uint8_t { kReplace, kAdd };

// Below, x is [rows, in] and y is [rows, out], row-major and not overlapping; rows is what x or d_y holds. Every
// element is one sum over a fixed axis in an order that depends on the sizes only: the same bits at any thread count.

/// y ← x·Wᵀ + b
template <class T>
ROOTDK_API void apply(const BasicLinear<T>& layer, Values<const T> x, Values<T> y);

/// d_x ← d_y·W, or d_x ← d_x + d_y·W
template <class T>
ROOTDK_API void backward_input(const BasicLinear<T>& layer, Values<const T> d_y, Values<T> d_x,
                               Write write = Write::kReplace);

/// gradients.weight ← gradients.weight + d_yᵀ·x, and the bias, if there is one, likewise. Always adds: several uses of
/// a layer, or several small batches, gather in one gradient until set_zero().
template <class T>
ROOTDK_API void backward_parameters(Values<const T> x, Values<const T> d_y, BasicLinear<T>& gradients);

}  // namespace rootdk::nn
