// A block of a decoder, norm first:
//
//   middle = x + attention(norm₁(x))    y = middle + mlp(norm₂(middle))
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/nn/mlp.h"
#include "rootdk/nn/multi_head_attention.h"
#include "rootdk/nn/parameters.h"
#include "rootdk/nn/rms_norm.h"

namespace rootdk::nn {

/// The weights, and equally their gradients.
template <class T>
struct BasicBlock {
  BasicRmsNorm<T> attention_norm;
  BasicMultiHeadAttention<T> attention;
  BasicRmsNorm<T> mlp_norm;
  BasicMlp<T> mlp;

  ROOTDK_API BasicBlock(const MultiHeadAttentionOptions& options, std::int64_t mlp_hidden, double norm_epsilon);

  /// Adds its learned arrays to the list, named as in LLaMA: "<prefix>self_attn.q_proj.weight", …
  ROOTDK_API void list(const std::string& prefix, std::vector<Parameter<T>>& parameters);
};
using Block = BasicBlock<float>;

/// What forward keeps for backward. Row-major [rows, width] unless said otherwise.
template <class T>
struct BasicBlockSaved {
  BasicSequence<const T> x;            ///< not copied
  std::vector<T> normed, inverse_rms;  ///< of x; inverse_rms is [rows]
  BasicAttentionSaved<T> attention;
  std::vector<T> middle;
  std::vector<T> mlp_normed, mlp_inverse_rms;
  BasicMlpSaved<T> mlp;
  Stats stats;  ///< what the scores did, per sequence and head
};

/// x and y are [batch, length, width] and do not overlap.
template <class T>
ROOTDK_API void apply(const BasicBlock<T>& block, const Problem& problem, const BasicSequence<const T>& x,
                      const BasicSequence<T>& y, BasicBlockSaved<T>& saved);

/// d_x is overwritten and is not d_y; gradients of weights are added to what is there.
template <class T>
ROOTDK_API void backward(const BasicBlock<T>& block, const BasicBlockSaved<T>& saved, const BasicSequence<const T>& d_y,
                         const BasicSequence<T>& d_x, BasicBlock<T>& gradients);

}  // namespace rootdk::nn
