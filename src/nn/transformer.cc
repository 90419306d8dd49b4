// Embedding, blocks, final norm and logits in order, saved for backward, under LLaMA's names.
#include "rootdk/nn/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "nn/buffer.h"
#include "nn/sizes.h"
#include "rootdk/nn/init.h"

namespace rootdk::nn {

namespace {

MultiHeadAttentionOptions attention_options(const TransformerOptions& o) {
  MultiHeadAttentionOptions options;
  options.width = o.width;
  options.heads_q = o.heads;
  options.dim_qk = o.dim_qk;
  options.dim_v = o.dim_v;
  options.rotary = Rotary{.base = o.rotary_base};
  return options;
}

}  // namespace

TransformerOptions with_defaults(TransformerOptions o) {
  check_size("vocabulary", o.vocabulary);
  check_size("width", o.width);
  check_size("layers", o.layers);
  check_size("heads", o.heads);
  if (o.dim_qk < 2 || o.dim_qk % 2 != 0)
    base::refuse("dim_qk: {}, but an even number of at least 2 is wanted", o.dim_qk);
  if (o.dim_v == 0 && o.width % o.heads != 0)
    base::refuse("heads: {}, which does not divide the width {}; give dim_v, or another number", o.heads, o.width);
  if (o.dim_v == 0) o.dim_v = o.width / o.heads;
  if (o.mlp_hidden == 0) o.mlp_hidden = (o.width * 8 / 3 + 7) / 8 * 8;
  check_size("dim_v", o.dim_v);
  check_size("mlp_hidden", o.mlp_hidden);
  return o;
}

template <class T>
BasicTransformer<T>::BasicTransformer(const TransformerOptions& options)
    : options_(with_defaults(options)),
      embedding_(options_.vocabulary, options_.width),
      blocks_(static_cast<std::size_t>(options_.layers),
              BasicBlock<T>(attention_options(options_), options_.mlp_hidden, options_.norm_epsilon)),
      norm_(options_.width, options_.norm_epsilon),
      head_(options_.width, options_.vocabulary, false) {}

template <class T>
std::vector<Parameter<T>> BasicTransformer<T>::parameters() {
  std::vector<Parameter<T>> all;
  all.push_back({"model.embed_tokens.weight", {embedding_.vocabulary, embedding_.width}, embedding_.weight});
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    blocks_[layer].list("model.layers." + std::to_string(layer) + ".", all);
  all.push_back({"model.norm.weight", {norm_.width()}, norm_.gain});
  all.push_back({"lm_head.weight", {head_.out, head_.in}, head_.weight});
  return all;
}

template <class T>
void BasicTransformer<T>::set_zero() {
  for (const Parameter<T>& p : parameters()) std::fill(p.values.begin(), p.values.end(), T(0));
}

template <class T>
void BasicTransformer<T>::forward(const Problem& problem, std::int64_t length, std::span<const std::int32_t> tokens,
                                  Saved& saved) const {
  check_size("length", length);
  saved.batch = rows_in("tokens", tokens.size(), length);
  saved.length = length;
  saved.tokens.assign(tokens.begin(), tokens.end());
  saved.blocks.resize(blocks_.size());
  saved.stream.resize(blocks_.size() + 1);
  const std::int64_t rows = saved.batch * length;
  for (std::vector<T>& x : saved.stream) x.resize(static_cast<std::size_t>(rows * options_.width));
  saved.normed.resize(static_cast<std::size_t>(rows * options_.width));
  saved.inverse_rms.resize(static_cast<std::size_t>(rows));
  saved.logits.resize(static_cast<std::size_t>(rows * options_.vocabulary));

  Problem causal = problem;
  causal.mask.causal = true;
  apply(embedding_, tokens, saved.stream[0]);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    apply(blocks_[layer], causal,
          BasicSequence<const T>{saved.stream[layer].data(), saved.batch, length, options_.width},
          BasicSequence<T>{saved.stream[layer + 1].data(), saved.batch, length, options_.width}, saved.blocks[layer]);
  apply(norm_, saved.stream.back(), saved.normed, saved.inverse_rms);
  apply(head_, saved.normed, saved.logits);
}

template <class T>
void BasicTransformer<T>::backward(const Saved& saved, std::span<const T> d_logits, BasicTransformer& gradients) const {
  if (saved.blocks.size() != blocks_.size() ||
      saved.normed.size() != saved.tokens.size() * static_cast<std::size_t>(options_.width))
    base::refuse("saved: not made by the forward pass of a transformer with these options");
  if (gradients.options_ != options_) base::refuse("gradients: a transformer of other options");
  check_rows("d_logits", d_logits.size(), saved.batch * saved.length, options_.vocabulary);

  const std::int64_t count = saved.batch * saved.length * options_.width;
  const Buffer<T> ours(count), other(count);
  const std::span<T> d_normed = other.values();
  backward_parameters(saved.normed, d_logits, gradients.head_);
  backward_input(head_, d_logits, d_normed);
  nn::backward(norm_, saved.stream.back(), saved.inverse_rms, d_normed, ours.values(), gradients.norm_);

  BasicSequence<T> d_y = {ours.data(), saved.batch, saved.length, options_.width}, d_x = d_y;
  d_x.data = other.data();
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    nn::backward(blocks_[layer], saved.blocks[layer], BasicSequence<const T>(d_y), d_x, gradients.blocks_[layer]);
    std::swap(d_x, d_y);
  }
  backward_parameters(saved.tokens, d_y.values(), gradients.embedding_);
}

template <class T>
void initialise(BasicTransformer<T>& model, std::uint64_t seed) {
  std::uint64_t stream = 0;  // one per array, whether it draws from it or not: a gain more does not move the rest
  const double branch = 1 / std::sqrt(2 * static_cast<double>(model.options_.layers));
  fill(model.embedding_.weight, Init::normal(1), {}, {seed, stream++});
  for (BasicBlock<T>& block : model.blocks_) {
    for (BasicLinear<T>* layer : block.attention.parameters().each())
      initialise(*layer, Init::lecun_normal(layer == &block.attention.parameters().o ? branch : 1), {seed, stream++});
    for (BasicLinear<T>* layer : {&block.mlp.gate, &block.mlp.up, &block.mlp.down})
      initialise(*layer, Init::lecun_normal(layer == &block.mlp.down ? branch : 1), {seed, stream++});
    std::fill(block.attention_norm.gain.begin(), block.attention_norm.gain.end(), T(1));
    std::fill(block.mlp_norm.gain.begin(), block.mlp_norm.gain.end(), T(1));
  }
  std::fill(model.norm_.gain.begin(), model.norm_.gain.end(), T(1));
  initialise(model.head_, Init::lecun_normal(), {seed, stream++});
}

#define ROOTDK_INSTANTIATE(T)         \
  template class BasicTransformer<T>; \
  template void initialise(BasicTransformer<T>&, std::uint64_t);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
