// Rules that act on weights rather than on scores: QK-clip after a training step, σ-reparametrisation inside one.
//
// Weights are tensors [1, heads, rows, columns] with any strides, so one projection matrix [heads·dim, width] is a view
// of itself, and so is its transpose. Any dtype but bool; sums are double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/stats.h"
#include "rootdk/tensor.h"

namespace rootdk {

// QK-clip (Kimi K2) --------------------------------------------------------------------------------------------------

/// A head whose largest raw score S_h passed τ has its weights shrunk by γ_h = τ/S_h, so that the same inputs would
/// give τ.
struct QkClip {
  double threshold = 100;  ///< τ
  double alpha = 0.5;      ///< W_q shrinks by γ^α and W_k by γ^(1−α)
  bool log_only = false;   ///< say what γ would be, and change nothing
};

/// What to shrink; what is absent stays. Heads are the second axis: w_q [1, heads_q, dim, width], w_k [1, heads_kv,
/// dim, width], biases [1, heads, 1, dim]. Under QK-norm weights do not reach the scores, so pass the gains in place of
/// the biases.
struct QkWeights {
  Tensor w_q = {}, b_q = {}, w_k = {}, b_k = {};
};

/// Returns γ_h for every query head: min(1, τ/S_h), and 1 where S_h ≤ 0. Where query heads share a key head (heads_kv <
/// heads_q) one head's γ must not reach the others, so W_q and b_q take all of it, whatever alpha is.
ROOTDK_API std::vector<double> qk_clip(const QkClip& clip, std::span<const float> max_raw, std::int64_t heads_kv,
                                       const QkWeights& weights = {});

/// S_h, the largest raw score of each query head over the batch: what qk_clip takes.
ROOTDK_API std::vector<float> max_raw_of(const Stats& stats);

// σ-reparametrisation (arXiv 2303.06296) -----------------------------------------------------------------------------

struct PowerIteration {
  double tolerance = 1e-9;  ///< on ‖WᵀW·v − σ²·v‖/σ²: σ² is so close to σ² of a true singular value, relatively
  std::int64_t most_steps = 1000;  ///< gives up after these; `converged` says so
};

/// The largest singular value and its vectors: σ·u = W·v, |u| = |v| = 1.
struct SingularTriple {
  double sigma = 0;
  std::vector<double> u, v;
  std::int64_t steps = 0;
  bool converged = false;
};

/// w [1, 1, rows, columns]. `start`, a v from an earlier call, saves steps while weights move slowly.
ROOTDK_API SingularTriple largest_singular_value(const ConstTensor& w, const PowerIteration& options = {},
                                                 std::span<const double> start = {});

/// out = gain·W/σ₁(W); out may be w itself. Refuses a W that is all zero.
ROOTDK_API SingularTriple sigma_reparam(const ConstTensor& w, double gain, const Tensor& out,
                                        const PowerIteration& options = {}, std::span<const double> start = {});

/// Gradients, through σ₁ as well: dW = gain/σ·(dOut − (⟨dOut, W⟩/σ)·u·vᵀ) and d_gain = ⟨dOut, W⟩/σ, which is returned.
/// `d_w` may be absent. `triple` is what sigma_reparam returned.
ROOTDK_API double sigma_reparam_backward(const ConstTensor& w, double gain, const SingularTriple& triple,
                                         const ConstTensor& d_out, const Tensor& d_w);

}  // namespace rootdk
