// Multi-head attention as a layer with weights: self- and cross-attention, forward and backward.
//
//   q = x_q·W_qᵀ + b_q    k = x_kv·W_kᵀ + b_k    v = x_kv·W_vᵀ + b_v     heads side by side in a row
//   q, k turned by their positions, if rotary is on
//   o = attention(q, k, v) per head, as the Problem says; the kernel reads the heads through strides, nothing is moved
//   out = o·W_oᵀ + b_o
//
// On the CPU: float, or double for checking, which runs on the reference kernel. The same bits at any thread count.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rootdk/attention.h"
#include "rootdk/export.h"
#include "rootdk/nn/init.h"
#include "rootdk/nn/linear.h"
#include "rootdk/nn/rotary.h"

namespace rootdk::nn {

struct MultiHeadAttentionOptions {
  std::int64_t width = 0;    ///< D: width of x_q and of the output
  std::int64_t heads_q = 1;  ///< query heads; more heads of fewer dimensions cost the same
  std::int64_t heads_kv =
      0;  ///< key/value heads, a divisor of heads_q: fewer make a smaller cache (GQA; 1 is MQA); 0: heads_q
  std::int64_t dim_qk = 0;            ///< d_k, of a query or key head; 0: width / heads_q
  std::int64_t dim_v = 0;             ///< of a value head; 0: width / heads_q
  std::int64_t width_kv = 0;          ///< width of x_kv, for cross-attention to something of another width; 0: width
  bool bias_qkv = false;              ///< b_q, b_k, b_v; without rotary b_k has no effect, softmax cancels it
  bool bias_out = false;              ///< b_o
  std::optional<Rotary> rotary = {};  ///< turn q and k by their positions; absent: positions are invisible
};

/// The weights, and equally their gradients.
template <class T>
struct BasicAttentionParameters {
  BasicLinear<T> q;  ///< width → heads_q·dim_qk; rows h·dim_qk … (h+1)·dim_qk−1 belong to head h
  BasicLinear<T> k;  ///< width_kv → heads_kv·dim_qk
  BasicLinear<T> v;  ///< width_kv → heads_kv·dim_v
  BasicLinear<T> o;  ///< heads_q·dim_v → width

  std::array<BasicLinear<T>*, 4> each() { return {&q, &k, &v, &o}; }
  std::array<const BasicLinear<T>*, 4> each() const { return {&q, &k, &v, &o}; }
  ROOTDK_API void set_zero();
};
using AttentionParameters = BasicAttentionParameters<float>;

template <class T>
ROOTDK_API BasicAttentionParameters<T> zeros_like(const BasicAttentionParameters<T>& parameters);

/// Whether W_q, W_k and W_v are initialised as three matrices or as one, stacked; matters to rules that look at
/// fan_out.
enum class QkvFans : std::uint8_t {
  kSeparate,  ///< fan_out of each is its own
  kPacked,    ///< fan_out is the sum of the three: torch.nn.MultiheadAttention, GPT-2
};

/// All four weights by one rule, biases zero. Uses streams seed.stream … seed.stream + 3.
template <class T>
ROOTDK_API void initialise(BasicAttentionParameters<T>& parameters, const Init& init, const Seed& seed,
                           QkvFans fans = QkvFans::kSeparate);

/// View of [batch, length, width], row-major. A null `data` means "absent" where one is optional.
template <class Float>
struct BasicSequence {
  Float* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t width = 0;

  constexpr bool present() const { return data != nullptr; }
  constexpr std::int64_t rows() const { return batch * length; }
  constexpr std::span<Float> values() const { return {data, static_cast<std::size_t>(rows() * width)}; }

  /// What may be written can be read.
  constexpr operator BasicSequence<const Float>() const { return {data, batch, length, width}; }
};
using Sequence = BasicSequence<float>;
using ConstSequence = BasicSequence<const float>;

/// What forward keeps for backward, and for anyone who wants to look inside. Reuse one from step to step: memory grows
/// once. The inputs and whatever the Problem points to are not copied: they must stay as they are until backward is
/// done.
template <class T>
struct BasicAttentionSaved {
  Problem problem;
  Shape shape;
  bool self = false;  ///< made by the forward with a single x
  BasicSequence<const T> x_q, x_kv;
  std::vector<T> q;    ///< [batch, len_q, heads_q, dim_qk], after rotary
  std::vector<T> k;    ///< [batch, len_kv, heads_kv, dim_qk], after rotary
  std::vector<T> v;    ///< [batch, len_kv, heads_kv, dim_v]
  std::vector<T> o;    ///< [batch, len_q, heads_q, dim_v]
  std::vector<T> lse;  ///< [batch, heads_q, len_q]

  /// The same as the kernels see them: [batch, heads, length, dim].
  ROOTDK_API ConstTensor q_view() const;
  ROOTDK_API ConstTensor k_view() const;
  ROOTDK_API ConstTensor v_view() const;
  ROOTDK_API ConstTensor o_view() const;
  ROOTDK_API ConstTensor lse_view() const;
};
using AttentionSaved = BasicAttentionSaved<float>;

/// What backward writes. Each is optional; what is absent is not computed. Gradients of inputs are overwritten;
/// gradients of anything learned (weights, biases, scale, sink) are added to what is there.
template <class T>
struct BasicAttentionGradients {
  BasicAttentionParameters<T>* parameters = nullptr;  ///< make it with zeros_like
  BasicSequence<T> d_x_q =
      {};  ///< [batch, len_q, width]; after self-attention the whole gradient of x: query, key and value paths
  BasicSequence<T> d_x_kv = {};   ///< [batch, len_kv, width_kv]; cross-attention only
  std::span<float> d_scale = {};  ///< one per query head: gradient of the scale rule's own factor
  std::span<float> d_sink = {};   ///< one per query head; only if the problem has a sink
  std::span<float> d_log_n_gain = {}, d_log_n_offset = {};  ///< one per query head; only if the scale has SSMax
};
using AttentionGradients = BasicAttentionGradients<float>;

template <class T>
class BasicMultiHeadAttention {
 public:
  using Parameters = BasicAttentionParameters<T>;
  using Sequence = BasicSequence<T>;
  using ConstSequence = BasicSequence<const T>;
  using Saved = BasicAttentionSaved<T>;
  using Gradients = BasicAttentionGradients<T>;

  /// Weights are zero until they are initialised. Throws if the options do not fit each other.
  ROOTDK_API explicit BasicMultiHeadAttention(const MultiHeadAttentionOptions& options);

  /// With every default filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }

  /// Cross-attention: queries from x_q [batch, len_q, width], keys and values from x_kv [batch, len_kv, width_kv];
  /// out [batch, len_q, width] overlaps neither. Rotary positions are those of the mask: key j stands at j and query i
  /// where problem.mask.diagonal puts it (by default the last query on the last key). Without `saved` nothing is kept.
  ROOTDK_API Stats forward(const Problem& problem, const ConstSequence& x_q, const ConstSequence& x_kv,
                           const Sequence& out, Saved* saved = nullptr) const;

  /// Self-attention: queries, keys and values from one x [batch, length, width].
  ROOTDK_API Stats forward(const Problem& problem, const ConstSequence& x, const Sequence& out,
                           Saved* saved = nullptr) const;

  /// From d_out [batch, len_q, width], for what a forward of this layer saved, with the weights it had then.
  ROOTDK_API void backward(const Saved& saved, const ConstSequence& d_out, const Gradients& gradients) const;

 private:
  Stats run(const Problem& problem, const ConstSequence& x_q, const ConstSequence& x_kv, const Sequence& out,
            Saved& saved) const;

  MultiHeadAttentionOptions options_;
  Parameters parameters_;
};
using MultiHeadAttention = BasicMultiHeadAttention<float>;

}  // namespace rootdk::nn
