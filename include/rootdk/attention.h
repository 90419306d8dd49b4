// Attention, forward and backward: one function each way.
//
// q [batch, heads_q, len_q, dim_qk], k [batch, heads_kv, len_kv, dim_qk], v [batch, heads_kv, len_kv, dim_v], any
// strides. q, k, v, o and their gradients share one dtype; lse is f32 (f64 for f64). Everything is checked before
// anything is written. The result has the same bits at any thread count, alone or in a batch.
#pragma once

#include <cstddef>
#include <span>

#include "rootdk/error.h"
#include "rootdk/export.h"
#include "rootdk/plan.h"
#include "rootdk/problem.h"
#include "rootdk/stats.h"
#include "rootdk/tensor.h"

namespace rootdk {

struct Inputs {
  ConstTensor q, k, v;
};

struct Outputs {
  Tensor o;              ///< [batch, heads_q, len_q, dim_v]
  Tensor lse = {};       ///< optional [batch, heads_q, len_q, 1], natural log; backward wants it
  RowTensors rows = {};  ///< optional per-row statistics
  Tensor key_mass =
      {};  ///< [batch, heads_q, len_kv, 1] f32 (f64 for f64): Σ over queries of p, if stats_options.key_mass
};

struct BackwardInputs {
  ConstTensor q, k, v;
  ConstTensor o, lse;      ///< as forward returned them
  ConstTensor d_o;         ///< gradient of o
  ConstTensor d_lse = {};  ///< optional gradient of lse (z-loss, merges)
};

/// Each is optional; what is absent is not computed. With paged K/V, d_k and d_v are still [batch, heads_kv, len_kv,
/// dim].
struct Gradients {
  Tensor d_q = {}, d_k = {}, d_v = {};
  std::span<float> d_scale =
      {};              ///< one per query head: gradient of the scale rule's own factor (Scale::head_values, say)
  Tensor d_bias = {};  ///< shaped as mask.bias, summed over its broadcast axes; f32 or the bias dtype
  std::span<float> d_sink = {};                             ///< one per query head
  std::span<float> d_log_n_gain = {}, d_log_n_offset = {};  ///< one per query head: of SSMax's a and b
};

/// The sizes that these tensors have. Throws if they do not fit each other.
ROOTDK_API Shape shape_of(const Inputs& inputs, const Problem& problem = {});

/// Plans, allocates a workspace and runs.
ROOTDK_API Stats forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs);
ROOTDK_API GradientStats backward(const Problem& problem, const BackwardInputs& inputs, const Gradients& gradients);

/// Runs a plan in a workspace of at least plan.workspace_bytes, aligned to 64.
ROOTDK_API Stats forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                         std::span<std::byte> workspace);
ROOTDK_API GradientStats backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients,
                                  std::span<std::byte> workspace);

/// Attention over keys A and over keys B, merged into attention over both: (o, lse) ← (o, lse) ⊕ (other_o, other_lse).
/// For results without dropout whose sink, if any, is in only one of the two.
ROOTDK_API void merge(const Tensor& o, const Tensor& lse, const ConstTensor& other_o, const ConstTensor& other_lse);

/// The same with statistics: o, lse and all row tensors of both are there. The keys of `other` are numbered from
/// `other_first_key`.
ROOTDK_API void merge(const Outputs& into, const Outputs& other, std::int64_t other_first_key);

/// Per-head statistics from row tensors, which are all there: of keys that several calls or ranks have shared. Without
/// causes and what the second pass finds. Of the options first_query, by_keys and sampling count.
ROOTDK_API Stats stats_of_rows(const RowTensors& rows, const ConstTensor& lse, const StatsOptions& options = {});

}  // namespace rootdk
