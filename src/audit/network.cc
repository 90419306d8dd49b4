// Blocks, norms, MLPs and embeddings of a family looked up in a checkpoint; what cannot be run is refused by name.
#include "audit/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "audit/numbers.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::TensorInfo;

namespace {

Activation activation_of(const Settings& settings, const BlockPattern& p) {
  std::string name = settings.text(p.activation_settings).value_or(p.activation);
  if (const auto meant = p.activation_means.find(name); meant != p.activation_means.end()) name = meant->second;
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"silu", Activation::kSilu},          {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},          {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},          {"quick_gelu", Activation::kQuickGelu}};
  for (const auto& [known, activation] : kNames)
    if (name == known) return activation;
  refuse("the activation {} is not known", in_quotes(name));
}

double epsilon_of(const Settings& settings, const BlockPattern& p) {
  const auto epsilon = real(settings, p.epsilon);
  if (!epsilon) refuse("{}: says no epsilon of the norms", settings.name());
  if (!(*epsilon >= 0)) refuse("{}: an epsilon of {}, but a number of at least 0 is wanted", settings.name(), *epsilon);
  return *epsilon;
}

void check_settings(const Settings& settings, const BlockPattern& p) {
  for (const auto& [name, wanted] : p.only_if.items())
    if (const Json* found = settings.find(name); found != nullptr && *found != wanted)
      refuse("{}: {} is {}, and only models where it is {} are run", settings.name(), name, in_short(*found),
             in_short(wanted));
}

void check_experts(const checkpoint::Checkpoint& file) {
  for (const TensorInfo& tensor : file.tensors())
    for (const char* mark : {".experts.", "_exps.", "block_sparse_moe"})
      if (tensor.name.find(mark) != tensor.name.npos)
        refuse("a mixture of experts is not run ({})", in_quotes(tensor.name));
}

// What the table names and the checkpoint has not.
void check_embedding(const NamedTensors& tensors, const EmbeddingPattern& p, const Embedding& embedding) {
  if (!embedding.known()) return;
  for (const auto& [pattern, found] : {std::pair{&p.positions, &embedding.positions},
                                       {&p.token_types, &embedding.token_types},
                                       {&p.norm, &embedding.norm.gain}})
    if (!pattern->empty() && found->empty())
      refuse("{}: the checkpoint has no such tensor, which a {} model has",
             in_quotes(tensors.name(*pattern, 0) + ".weight"), tensors.family_name());
}

class Builder {
 public:
  Builder(const NamedTensors& tensors, const Pattern& attention, const BlockPattern& block, theory::Norm::Kind norm,
          std::int64_t width)
      : tensors_(tensors), attention_(attention), block_(block), norm_(norm), width_(width) {}

  NormPlace norm(const std::string& pattern, std::int64_t layer) const {
    if (pattern.empty()) return {};
    return tensors_.norm_at(tensors_.name(pattern, layer), norm_, attention_.gain_offset, width_);
  }

  Block block_of(const Attention& a, std::int64_t layer) const {
    Block out;
    out.v = values_of(a, layer);
    out.o = dense(block_.o, layer, a.heads_q * out.v.rows, width_);
    out.attention_out_norm = norm(block_.attention_out_norm, layer);
    out.attention_sum_norm = norm(block_.attention_sum_norm, layer);
    // Where the sum is normed, so is what comes in: that is the norm that scores are predicted with.
    if (block_.attention_sum_norm.empty()) out.attention_norm = a.q.front().norm;
    out.mlp_norm = norm(block_.mlp_norm, layer);
    out.mlp_out_norm = norm(block_.mlp_out_norm, layer);
    out.mlp_sum_norm = norm(block_.mlp_sum_norm, layer);
    set_mlp(layer, out);
    return out;
  }

 private:
  // As it is, checked against one extent that is known; 0: none is.
  Dense dense(const std::string& pattern, std::int64_t layer, std::int64_t in, std::int64_t out) const {
    const std::string name = tensors_.name(pattern, layer);
    const TensorInfo& found = tensors_.matrix(name);
    const bool transposed = attention_.transposed;
    const std::int64_t rows = found.shape[transposed], columns = found.shape[!transposed];
    if ((in != 0 && columns != in) || (out != 0 && rows != out)) {
      const auto wanted = [](std::int64_t extent) { return extent != 0 ? std::to_string(extent) : std::string("any"); };
      refuse("{}: its shape is [{}, {}], but [{}, {}] is wanted", in_quotes(found.name), found.shape[0], found.shape[1],
             wanted(transposed ? in : out), wanted(transposed ? out : in));
    }
    return {found.name, tensors_.bias_of(name, rows), transposed, columns, rows, 0};
  }

  Part values_of(const Attention& a, std::int64_t layer) const {
    Part v = a.k.front();
    if (block_.v.empty()) {
      v.first += attention_.order == Pattern::Order::kBlocks ? a.heads_kv * a.dim_qk : a.dim_qk;
      return v;
    }
    const Dense found = dense(block_.v, layer, width_, 0);
    if (found.out % a.heads_kv != 0)
      refuse("{}: {} rows, which {} key heads do not divide", in_quotes(found.weight), found.out, a.heads_kv);
    const std::int64_t rows = found.out / a.heads_kv;
    return {found.weight, found.bias, found.transposed, rows, width_, 0, 1, rows, 0, v.norm};
  }

  void set_mlp(std::int64_t layer, Block& out) const {
    if (!block_.gate_up.empty()) {
      out.gate = out.up = dense(block_.gate_up, layer, width_, 0);
      if (out.gate.out % 2 != 0)
        refuse("{}: {} rows, which are not two halves", in_quotes(out.gate.weight), out.gate.out);
      out.gate.out = out.up.out = out.up.first = out.gate.out / 2;
    } else {
      out.up = dense(block_.up, layer, width_, 0);
      if (!block_.gate.empty()) out.gate = dense(block_.gate, layer, width_, out.up.out);
    }
    out.down = dense(block_.down, layer, out.up.out, width_);
  }

  const NamedTensors& tensors_;
  const Pattern& attention_;
  const BlockPattern& block_;
  theory::Norm::Kind norm_;
  std::int64_t width_;
};

}  // namespace

Network network_of(const NamedTensors& tensors, const Settings& settings, const Family& family,
                   std::optional<theory::Norm::Kind> norm_kind, const Model& model) {
  if (!family.block) refuse("how a {} model computes is not in the table of families", family.name);
  if (family.attention.size() != 1 || model.layers.empty()) refuse("a model of one kind of attention is wanted");
  const Pattern& attention = family.attention.front();
  const BlockPattern& block = *family.block;
  if (block.v.empty() == attention.qkv.empty()) refuse("family {}: block.v or a packed qkv is wanted", family.name);
  check_settings(settings, block);
  check_experts(tensors.file());
  check_embedding(tensors, family.embedding, model.embedding);
  const std::int64_t width = model.layers.front().q.front().width;
  if (model.embedding.known() && model.embedding.width != width)
    refuse("{}: its rows have {} numbers, but the layers take {}", in_quotes(model.embedding.tokens),
           model.embedding.width, width);

  Network out;
  out.epsilon = epsilon_of(settings, block);
  const Activation activation = activation_of(settings, block);
  const bool parallel = !block.parallel_switch.empty() && settings.boolean({block.parallel_switch}).value_or(true);
  const Builder builder(tensors, attention, block, norm_kind.value_or(attention.norm_kind), width);
  for (const Attention& a : model.layers) {
    if (a.q.size() != 1 || a.k.size() != 1) refuse("heads of several parts are not run");
    for (const Part* part : {&a.q.front(), &a.k.front()})
      if (part->width != width)
        refuse("{}: its rows have {} numbers, but those of the first layer {}", in_quotes(part->weight), part->width,
               width);
    if (!settings.is_gguf())
      for (const auto& [pattern, place] : {std::pair{&attention.q_norm, &a.q_norm}, {&attention.k_norm, &a.k_norm}})
        if (!pattern->empty() && place->kind == theory::Norm::Kind::kNone)
          refuse("{}: the checkpoint has no such tensor, which a {} model has",
                 in_quotes(tensors.name(*pattern, a.layer) + ".weight"), family.name);
    Block next = builder.block_of(a, a.layer);
    next.activation = activation;
    next.parallel = parallel;
    out.blocks.push_back(std::move(next));
  }
  out.final_norm = builder.norm(block.final_norm, 0);
  return out;
}

}  // namespace rootdk::audit
