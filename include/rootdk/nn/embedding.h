// Tokens to vectors: row t of a table for token t, and the gradient of the table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/parameters.h"

namespace rootdk::nn {

template <class T>
struct BasicEmbedding {
  std::int64_t vocabulary = 0;  ///< tokens are 0 … vocabulary − 1
  std::int64_t width = 0;
  std::vector<T> weight;  ///< [vocabulary, width]

  BasicEmbedding() = default;

  /// All zeros.
  ROOTDK_API BasicEmbedding(std::int64_t vocabulary, std::int64_t width);
};
using Embedding = BasicEmbedding<float>;

/// x [tokens, width] ← the rows of these tokens
template <class T>
ROOTDK_API void apply(const BasicEmbedding<T>& embedding, std::span<const std::int32_t> tokens, Values<T> x);

/// Each token's row of the gradient gets its d_x added, tokens ascending.
template <class T>
ROOTDK_API void backward_parameters(std::span<const std::int32_t> tokens, Values<const T> d_x,
                                    BasicEmbedding<T>& gradients);

}  // namespace rootdk::nn
