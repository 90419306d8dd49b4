// A decoder-only transformer: what the laboratory trains. LLaMA's parts in LLaMA's order and under LLaMA's names:
//
//   tokens → embedding → blocks (RMSNorm, attention with rotary positions; RMSNorm, SwiGLU) → RMSNorm → logits
//
// d_k is free: width and d_v stay as they are while it changes, so that only the scores change with it. T is float, or
// double for checking gradients, which runs attention on the reference kernel. The same bits at any thread count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/block.h"
#include "rootdk/nn/embedding.h"
#include "rootdk/nn/linear.h"
#include "rootdk/nn/parameters.h"
#include "rootdk/nn/rms_norm.h"

namespace rootdk::nn {

struct TransformerOptions {
  std::int64_t vocabulary = 0;  ///< tokens are 0 … vocabulary − 1
  std::int64_t width = 64;      ///< of the residual stream
  std::int64_t layers = 2;      ///< blocks; recall takes two: one to look one token back, one to find the key
  std::int64_t heads = 1;       ///< per block
  std::int64_t dim_qk = 64;     ///< d_k; an even number, rotary turns pairs
  std::int64_t dim_v = 0;       ///< of a value head; 0: width / heads
  std::int64_t mlp_hidden = 0;  ///< 0: 8/3 of the width, up to a multiple of 8
  double rotary_base = 10000;
  double norm_epsilon = 1e-5;

  bool operator==(const TransformerOptions&) const = default;
};

/// With every default filled in. Throws if they do not fit each other.
ROOTDK_API TransformerOptions with_defaults(TransformerOptions options);

/// What forward keeps for backward. Reuse one from step to step: memory grows once.
template <class T>
struct BasicTransformerSaved {
  std::int64_t batch = 0, length = 0;
  std::vector<std::int32_t> tokens;  ///< [batch, length]
  /// Layers + 1 arrays [batch, length, width]: before each block, and after the last
  std::vector<std::vector<T>> stream;
  std::vector<BasicBlockSaved<T>> blocks;  ///< blocks[layer].stats says what the scores did
  std::vector<T> normed, inverse_rms;      ///< of the last
  std::vector<T> logits;                   ///< [batch, length, vocabulary]: at every place, of the token after it
};

/// The weights, and equally their gradients.
template <class T>
class BasicTransformer {
 public:
  using Saved = BasicTransformerSaved<T>;

  /// Weights are zero, gains one, until they are initialised. Throws if the options do not fit each other.
  ROOTDK_API explicit BasicTransformer(const TransformerOptions& options);

  /// With every default filled in.
  const TransformerOptions& options() const { return options_; }

  /// Every learned array, in a fixed order: two transformers of the same options list the same names.
  ROOTDK_API std::vector<Parameter<T>> parameters();

  /// Also the gains: how gradients start.
  ROOTDK_API void set_zero();

  /// Scale and statistics are the problem's; its mask is made causal here. Rows of `tokens` are sequences of this
  /// length.
  ROOTDK_API void forward(const Problem& problem, std::int64_t length, std::span<const std::int32_t> tokens,
                          Saved& saved) const;

  /// From d_logits, shaped as saved.logits; adds to `gradients`, another transformer of the same options.
  ROOTDK_API void backward(const Saved& saved, std::span<const T> d_logits, BasicTransformer& gradients) const;

 private:
  template <class U>
  friend void initialise(BasicTransformer<U>& model, std::uint64_t seed);

  TransformerOptions options_;
  BasicEmbedding<T> embedding_;
  std::vector<BasicBlock<T>> blocks_;
  BasicRmsNorm<T> norm_;
  BasicLinear<T> head_;
};
using Transformer = BasicTransformer<float>;

/// Embeddings of unit variance, LeCun normal weights, and those that write to the stream smaller by √(2·layers), so
/// that its variance does not grow with depth. q and k start with unit variance: here 1/√d_k is the divisor that makes
/// scores so, too.
template <class T>
ROOTDK_API void initialise(BasicTransformer<T>& model, std::uint64_t seed);

}  // namespace rootdk::nn
