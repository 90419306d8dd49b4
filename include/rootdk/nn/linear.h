// y = x·Wᵀ + b: the one layer with weights that attention is built from, and its gradients.
//
// Weights are plain row-major arrays, [out, in] as in torch.nn.Linear, so that anything can read, write or initialise
// them. A gradient is a Linear of the same sizes: an optimiser walks both side by side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::nn {

struct Linear {
  std::int64_t in = 0;        ///< width of x
  std::int64_t out = 0;       ///< width of y
  std::vector<float> weight;  ///< [out, in], row-major
  std::vector<float> bias;    ///< [out], or empty for none

  Linear() = default;

  /// All zeros. init.h fills in something better.
  ROOTDK_API Linear(std::int64_t in, std::int64_t out, bool has_bias);

  bool has_bias() const { return !bias.empty(); }
  ROOTDK_API void set_zero();
};

/// Same sizes, all zeros: where gradients are gathered.
ROOTDK_API Linear zeros_like(const Linear& layer);

/// Whether a result replaces what was there or is added to it.
enum class Write : std::uint8_t { kReplace, kAdd };

// Below, x is [rows, in] and y is [rows, out], row-major and not overlapping; rows is what x or d_y holds. Every element
// is one sum over a fixed axis in an order that depends on the sizes only: the same bits at any thread count.

/// y ← x·Wᵀ + b
ROOTDK_API void apply(const Linear& layer, std::span<const float> x, std::span<float> y);

/// d_x ← d_y·W, or d_x ← d_x + d_y·W
ROOTDK_API void backward_input(const Linear& layer, std::span<const float> d_y, std::span<float> d_x,
                               Write write = Write::kReplace);

/// gradients.weight ← gradients.weight + d_yᵀ·x, and the bias, if there is one, likewise. Always adds: several uses of a
/// layer, or several small batches, gather in one gradient until set_zero().
ROOTDK_API void backward_parameters(std::span<const float> x, std::span<const float> d_y, Linear& gradients);

}  // namespace rootdk::nn
