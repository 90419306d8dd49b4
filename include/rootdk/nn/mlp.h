// The other half of a block, as LLaMA has it (SwiGLU, Shazeer 2020):
//
//   hidden = silu(x·W_gateᵀ) ∘ (x·W_upᵀ)    y = hidden·W_downᵀ    silu(g) = g·σ(g)
#pragma once

#include <cstdint>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/linear.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

/// The weights, and equally their gradients.
template <class T>
struct BasicMlp {
  BasicLinear<T> gate, up;  ///< width → hidden
  BasicLinear<T> down;      ///< hidden → width

  BasicMlp() = default;

  /// All zeros, without biases.
  ROOTDK_API BasicMlp(std::int64_t width, std::int64_t hidden);
};
using Mlp = BasicMlp<float>;

/// What forward keeps for backward; each is [rows, hidden].
template <class T>
struct BasicMlpSaved {
  std::vector<T> gate, sigmoid, up, hidden;
};

/// x and y are [rows, width].
template <class T>
ROOTDK_API void apply(const BasicMlp<T>& mlp, Values<const T> x, Values<T> y, BasicMlpSaved<T>& saved);

/// d_x is overwritten; gradients of weights are added to what is there.
template <class T>
ROOTDK_API void backward(const BasicMlp<T>& mlp, Values<const T> x, const BasicMlpSaved<T>& saved, Values<const T> d_y,
                         Values<T> d_x, BasicMlp<T>& gradients);

}  // namespace rootdk::nn
