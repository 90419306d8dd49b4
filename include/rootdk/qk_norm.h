// Rules that act on q and k before the product: QK-norm, and the factor of cosine attention. Each row of a
// [batch, heads, length, dim] tensor is normalised on its own, before rotary positions.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

/// y = gain·(x − mean)·r with r = 1/√(m + eps).
struct QkNorm {
  enum class Kind : std::uint8_t {
    kRms,    ///< m = mean of x², no mean removed
    kLayer,  ///< m = mean of (x − mean)²
    kL2,     ///< m = Σx², no mean removed: |y| = 1, so q·k is a cosine
  };
  Kind kind = Kind::kRms;
  double eps = 1e-6;                 ///< keeps a row of zeros at zero
  std::span<const float> gain = {};  ///< [dim], or [heads, dim]; empty: ones
};

/// Any strides, f32, f16, bf16 or f64; sums in double. y may be x itself. The same bits at any thread count.
ROOTDK_API void normalise(const QkNorm& norm, const ConstTensor& x, const Tensor& y);

/// Gradients of x and the gain from that of y; x is what normalise was given. Each is optional; d_x may be d_y itself,
/// and d_gain is as long as norm.gain (as [dim] if that is empty).
ROOTDK_API void normalise_backward(const QkNorm& norm, const ConstTensor& x, const ConstTensor& d_y, const Tensor& d_x,
                                   std::span<float> d_gain = {});

/// Cosine attention (Swin v2): normalise q and k with kL2, and take Scale::per_head(factors): c_h = exp(min(w_h, ln
/// 100)).
ROOTDK_API void cosine_factors(std::span<const float> w, std::span<float> factors);

/// d_w from Gradients::d_scale; 0 where w is clamped.
ROOTDK_API void cosine_factors_backward(std::span<const float> w, std::span<const float> d_factors,
                                        std::span<float> d_w);

}  // namespace rootdk
