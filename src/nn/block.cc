// The two halves in order, and their gradients back through the two residual sums.
#include "rootdk/nn/block.h"

#include <cstddef>

#include "nn/buffer.h"

namespace rootdk::nn {

namespace {

template <class T>
void add_to(std::span<T> sum, std::span<const T> part) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
}

template <class T>
void list_linear(const std::string& name, BasicLinear<T>& layer, std::vector<Parameter<T>>& parameters) {
  parameters.push_back({name + ".weight", {layer.out, layer.in}, layer.weight});
  if (layer.has_bias()) parameters.push_back({name + ".bias", {layer.out}, layer.bias});
}

}  // namespace

template <class T>
BasicBlock<T>::BasicBlock(const MultiHeadAttentionOptions& options, std::int64_t mlp_hidden, double norm_epsilon)
    : attention_norm(options.width, norm_epsilon),
      attention(options),
      mlp_norm(options.width, norm_epsilon),
      mlp(options.width, mlp_hidden) {}

template <class T>
void BasicBlock<T>::list(const std::string& prefix, std::vector<Parameter<T>>& parameters) {
  parameters.push_back({prefix + "input_layernorm.weight", {attention_norm.width()}, attention_norm.gain});
  list_linear(prefix + "self_attn.q_proj", attention.parameters().q, parameters);
  list_linear(prefix + "self_attn.k_proj", attention.parameters().k, parameters);
  list_linear(prefix + "self_attn.v_proj", attention.parameters().v, parameters);
  list_linear(prefix + "self_attn.o_proj", attention.parameters().o, parameters);
  parameters.push_back({prefix + "post_attention_layernorm.weight", {mlp_norm.width()}, mlp_norm.gain});
  list_linear(prefix + "mlp.gate_proj", mlp.gate, parameters);
  list_linear(prefix + "mlp.up_proj", mlp.up, parameters);
  list_linear(prefix + "mlp.down_proj", mlp.down, parameters);
}

template <class T>
void apply(const BasicBlock<T>& block, const Problem& problem, const BasicSequence<const T>& x,
           const BasicSequence<T>& y, BasicBlockSaved<T>& saved) {
  const auto rows = static_cast<std::size_t>(x.rows());
  const std::size_t count = x.values().size();
  saved.x = x;
  for (std::vector<T>* array : {&saved.normed, &saved.middle, &saved.mlp_normed}) array->resize(count);
  for (std::vector<T>* array : {&saved.inverse_rms, &saved.mlp_inverse_rms}) array->resize(rows);

  apply(block.attention_norm, x.values(), saved.normed, saved.inverse_rms);
  const BasicSequence<const T> normed = {saved.normed.data(), x.batch, x.length, x.width};
  const BasicSequence<T> middle = {saved.middle.data(), x.batch, x.length, x.width};
  saved.stats = block.attention.forward(problem, normed, middle, &saved.attention);
  add_to<T>(saved.middle, x.values());

  apply(block.mlp_norm, saved.middle, saved.mlp_normed, saved.mlp_inverse_rms);
  apply(block.mlp, saved.mlp_normed, y.values(), saved.mlp);
  add_to<T>(y.values(), saved.middle);
}

template <class T>
void backward(const BasicBlock<T>& block, const BasicBlockSaved<T>& saved, const BasicSequence<const T>& d_y,
              const BasicSequence<T>& d_x, BasicBlock<T>& gradients) {
  const BasicSequence<const T>& x = saved.x;
  const auto count = static_cast<std::int64_t>(x.values().size());
  const Buffer<T> d_middle(count), d_normed(count);

  // y = middle + mlp(norm₂(middle))
  backward(block.mlp, saved.mlp_normed, saved.mlp, d_y.values(), d_normed.values(), gradients.mlp);
  backward(block.mlp_norm, saved.middle, saved.mlp_inverse_rms, d_normed.values(), d_middle.values(),
           gradients.mlp_norm);
  add_to<T>(d_middle.values(), d_y.values());

  // middle = x + attention(norm₁(x))
  BasicAttentionGradients<T> attention;
  attention.parameters = &gradients.attention.parameters();
  attention.d_x_q = {d_normed.data(), x.batch, x.length, x.width};
  block.attention.backward(saved.attention, {d_middle.data(), x.batch, x.length, x.width}, attention);
  backward(block.attention_norm, x.values(), saved.inverse_rms, d_normed.values(), d_x.values(),
           gradients.attention_norm);
  add_to<T>(d_x.values(), d_middle.values());
}

#define ROOTDK_INSTANTIATE(T)                                                                                       \
  template struct BasicBlock<T>;                                                                                    \
  template void apply(const BasicBlock<T>&, const Problem&, const BasicSequence<const T>&, const BasicSequence<T>&, \
                      BasicBlockSaved<T>&);                                                                         \
  template void backward(const BasicBlock<T>&, const BasicBlockSaved<T>&, const BasicSequence<const T>&,            \
                         const BasicSequence<T>&, BasicBlock<T>&);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
