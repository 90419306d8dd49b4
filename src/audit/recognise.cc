// From names and settings to heads.
#include "rootdk/audit/recognise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "audit/family.h"
#include "audit/named_tensors.h"
#include "audit/network.h"
#include "audit/numbers.h"
#include "audit/rope.h"
#include "audit/settings.h"
#include "audit/suspects.h"
#include "base/memory_errors.h"
#include "base/nearest.h"
#include "base/refuse.h"
#include "rootdk/scale.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

namespace {

constexpr std::int64_t kMostLayers = 100'000, kMostHeads = 1 << 20, kMostDim = 1 << 16;

// All that stays the same from layer to layer of one pattern.
class Recogniser : private NamedTensors {
 public:
  Recogniser(const Checkpoint& file, const Settings& settings, const Hints& hints, const Family& family,
             std::string prefix, std::vector<std::string>& notes)
      : NamedTensors(file, family.name, std::move(prefix)),
        settings_(settings),
        hints_(hints),
        family_(family),
        notes_(notes) {}

  std::vector<Attention> layers_of(const Pattern& pattern);
  Embedding embedding_of(const EmbeddingPattern& pattern) const;
  Network network_of(const Model& model) const;
  const std::string& scale_rule() const { return scale_rule_; }

 private:
  void note(const std::string& text) {
    if (!text.empty() && std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
  }

  NormPlace input_norm(const Pattern& p, std::int64_t layer, std::int64_t width, bool keys) const;

  std::int64_t count_layers(const Pattern& p) const;
  void set_heads(const Pattern& p, std::int64_t layer, Attention& a) const;
  void set_apart(const Pattern& p, std::int64_t layer, Attention& a) const;
  void set_packed(const Pattern& p, std::int64_t layer, Attention& a) const;
  void set_latent(const Pattern& p, std::int64_t layer, Attention& a) const;
  void set_dim(const Pattern& p, std::int64_t rows, std::int64_t heads, const std::string& tensor, std::int64_t layer,
               Attention& a) const;
  void set_rest(const Pattern& p, std::int64_t layer, std::int64_t layers, Attention& a);
  void set_qk_norm(const Pattern& p, std::int64_t layer, Attention& a) const;
  void set_rotary(const Pattern& p, bool local, Attention& a);
  void set_scale(const Pattern& p, std::int64_t layers, Attention& a);
  bool is_local(const Pattern& p, std::int64_t layer) const;

  const Settings& settings_;
  const Hints& hints_;
  const Family& family_;
  std::vector<std::string>& notes_;
  std::string scale_rule_;
  std::string why_not_run_;  // something that was not understood, though scores can be predicted without it
};

NormPlace Recogniser::input_norm(const Pattern& p, std::int64_t layer, std::int64_t width, bool keys) const {
  const theory::Norm::Kind kind = hints_.norm.value_or(p.norm_kind);
  const std::string& pattern = keys && !p.keys_norm.empty()          ? p.keys_norm
                               : layer == 0 && !p.first_norm.empty() ? p.first_norm
                                                                     : p.norm;
  if (pattern.empty()) return {kind, {}, {}, 0};
  return norm_at(name(pattern, layer), kind, p.gain_offset, width);
}

// Heads --------------------------------------------------------------------------------------------------------------

std::int64_t Recogniser::count_layers(const Pattern& p) const {
  const std::string& pattern = !p.kv_latent.empty() ? p.kv_latent : p.qkv.empty() ? p.k : p.qkv;
  const std::int64_t said = whole(settings_, p.layers, 1, 0);
  if (said > kMostLayers) refuse("{}: {} layers, but at most {} are taken", settings_.name(), said, kMostLayers);
  std::int64_t found = 0;
  while (found < kMostLayers && weight_in(file_, name(pattern, found)) != nullptr) ++found;
  if (found > 0 && found < said)
    refuse("{}: the checkpoint has no such tensor, though {} says there are {} layers",
           in_quotes(name(pattern, found) + ".weight"), settings_.name(), said);
  return said > 0 ? std::min(found, said) : found;
}

void Recogniser::set_heads(const Pattern& p, std::int64_t layer, Attention& a) const {
  a.heads_q = hints_.heads ? *hints_.heads : whole(settings_, p.heads, 1, 0, layer);
  if (hints_.heads && *hints_.heads < 1) refuse("heads: {}, but at least 1 is wanted", *hints_.heads);
  if (hints_.kv_heads && *hints_.kv_heads < 1) refuse("kv_heads: {}, but at least 1 is wanted", *hints_.kv_heads);
  if (hints_.head_dim && *hints_.head_dim < 1) refuse("head_dim: {}, but at least 1 is wanted", *hints_.head_dim);
  if (a.heads_q > kMostHeads) refuse("heads: {}, but at most {} are taken", a.heads_q, kMostHeads);
  a.heads_kv = hints_.kv_heads ? *hints_.kv_heads : whole(settings_, p.kv_heads, 1, 0, layer);
}

// d_k from the hints, the settings or what is left: `rows` rows for `heads` heads.
void Recogniser::set_dim(const Pattern& p, std::int64_t rows, std::int64_t heads, const std::string& tensor,
                         std::int64_t layer, Attention& a) const {
  a.dim_qk = hints_.head_dim ? *hints_.head_dim : whole(settings_, p.head_dim, 1, 0, layer);
  if (a.dim_qk == 0) {
    if (rows % heads != 0) refuse("{}: {} rows, which {} heads do not divide", in_quotes(tensor), rows, heads);
    a.dim_qk = rows / heads;
  }
  if (a.dim_qk > kMostDim) refuse("head_dim: {}, but at most {} is taken", a.dim_qk, kMostDim);
  if (rows != heads * a.dim_qk)
    refuse("{}: {} rows, but {} heads of {} would have {}", in_quotes(tensor), rows, heads, a.dim_qk, heads * a.dim_qk);
}

[[noreturn]] void refuse_heads(const Settings& settings) {
  if (settings.empty())
    refuse("heads: there is no config.json to say how many there are; give their number (--heads, heads=)");
  refuse("heads: {} does not say how many there are; give their number (--heads, heads=)", settings.name());
}

void check_groups(const Attention& a) {
  if (a.heads_kv > a.heads_q || a.heads_q % a.heads_kv != 0)
    refuse("kv_heads: {}, which does not divide {} heads", a.heads_kv, a.heads_q);
}

void Recogniser::set_apart(const Pattern& p, std::int64_t layer, Attention& a) const {
  const TensorInfo &q = matrix(name(p.q, layer)), &k = matrix(name(p.k, layer));
  const std::int64_t rows_q = q.shape[p.transposed], rows_k = k.shape[p.transposed];
  const std::int64_t width_q = q.shape[!p.transposed], width_k = k.shape[!p.transposed];
  if (a.heads_q == 0) {
    // A gain of QK-norm has the size of a head.
    const TensorInfo* gain = p.q_norm.empty() ? nullptr : weight_in(file_, name(p.q_norm, layer));
    const std::int64_t dim = hints_.head_dim   ? *hints_.head_dim
                             : gain != nullptr ? gain->width()
                                               : whole(settings_, p.head_dim, 1, 0, layer);
    if (dim < 1 || rows_q % dim != 0) refuse_heads(settings_);
    a.heads_q = rows_q / dim;
  }
  set_dim(p, rows_q, a.heads_q, q.name, layer, a);
  if (a.heads_kv == 0) a.heads_kv = p.kv_heads.given() && rows_k % a.dim_qk == 0 ? rows_k / a.dim_qk : a.heads_q;
  check_groups(a);
  if (rows_k != a.heads_kv * a.dim_qk)
    refuse("{}: {} rows, but {} key heads of {} would have {}", in_quotes(k.name), rows_k, a.heads_kv, a.dim_qk,
           a.heads_kv * a.dim_qk);
  if (width_q != width_k && p.keys_norm.empty())
    refuse("{}: its rows have {} numbers, but those of {} have {}", in_quotes(k.name), width_k, in_quotes(q.name),
           width_q);
  a.q = {{q.name, bias_of(name(p.q, layer), rows_q), p.transposed, a.dim_qk, width_q, 0, 1, a.dim_qk, 0,
          input_norm(p, layer, width_q, false)}};
  a.k = {{k.name, bias_of(name(p.k, layer), rows_k), p.transposed, a.dim_qk, width_k, 0, 1, a.dim_qk, 0,
          input_norm(p, layer, width_k, true)}};
}

void Recogniser::set_packed(const Pattern& p, std::int64_t layer, Attention& a) const {
  const TensorInfo& qkv = matrix(name(p.qkv, layer));
  const std::int64_t rows = qkv.shape[p.transposed], width = qkv.shape[!p.transposed];
  if (a.heads_q == 0) refuse_heads(settings_);
  if (a.heads_kv == 0) a.heads_kv = a.heads_q;
  check_groups(a);
  set_dim(p, rows, a.heads_q + 2 * a.heads_kv, qkv.name, layer, a);
  const std::string bias = bias_of(name(p.qkv, layer), rows);
  const NormPlace norm = input_norm(p, layer, width, false);
  const std::int64_t d = a.dim_qk, share = a.heads_q / a.heads_kv, block = (share + 2) * d;
  if (p.order == Pattern::Order::kHeads && share != 1)
    refuse("{}: packed head by head, but {} heads share {} of keys", in_quotes(qkv.name), a.heads_q, a.heads_kv);
  const bool blocks = p.order == Pattern::Order::kBlocks;
  a.q = {{qkv.name, bias, p.transposed, d, width, 0, blocks ? 1 : share, blocks ? d : block, 0, norm}};
  a.k = {{qkv.name, bias, p.transposed, d, width, blocks ? a.heads_q * d : share * d, 1, blocks ? d : block, 0, norm}};
}

// DeepSeek. q = W_qb·norm(latent), or W_q·norm(x); a head's k is [W_kvb's first rows]·norm(latent), and rotary
// components from x that all heads share. What turns comes first here.
void Recogniser::set_latent(const Pattern& p, std::int64_t layer, Attention& a) const {
  if (a.heads_q == 0) refuse_heads(settings_);
  const std::int64_t turning = whole(settings_, p.rotary_dims, 2, 0);
  if (turning < 2 || turning % 2 != 0)
    refuse("{}: {} rotary components, but an even number is wanted", settings_.name(), turning);
  const bool narrow = weight_in(file_, name(p.q_latent, layer)) != nullptr;
  const std::string q_name = name(narrow ? p.q_latent : p.q, layer);
  const TensorInfo& q = matrix(q_name);
  const TensorInfo &down = matrix(name(p.kv_latent, layer)), &up = matrix(name(p.kv, layer));
  set_dim({}, q.shape[0], a.heads_q, q.name, layer, a);
  a.heads_kv = a.heads_q;
  const std::int64_t still = a.dim_qk - turning, latent = up.shape[1];
  const std::int64_t each = up.shape[0] / a.heads_q, values = whole(settings_, p.value_dim, 1, each - still);
  if (still < 1) refuse("{}: heads of {}, but {} components turn", in_quotes(q.name), a.dim_qk, turning);
  if (up.shape[0] != a.heads_q * (still + values))
    refuse("{}: {} rows, but {} heads of {} and {} would have {}", in_quotes(up.name), up.shape[0], a.heads_q, still,
           values, a.heads_q * (still + values));
  if (down.shape[0] != latent + turning)
    refuse("{}: {} rows, but {} and {} would be {}", in_quotes(down.name), down.shape[0], latent, turning,
           latent + turning);
  const NormPlace input = input_norm(p, layer, down.shape[1], true);
  const auto latent_norm = [&](const std::string& pattern, std::int64_t width) {
    return norm_at(name(pattern, layer), theory::Norm::Kind::kRms, 0, width);
  };
  const std::int64_t d = a.dim_qk, width = q.shape[1];
  a.q = {{q.name, bias_of(q_name, q.shape[0]), false, d, width, 0, 1, d, still,
          narrow ? latent_norm(p.q_latent_norm, width) : input_norm(p, layer, width, false)}};
  a.k = {{down.name, bias_of(name(p.kv_latent, layer), down.shape[0]), false, turning, down.shape[1], latent, 1, 0, 0,
          input},
         {up.name, bias_of(name(p.kv, layer), up.shape[0]), false, still, latent, 0, 1, still + values, 0,
          latent_norm(p.kv_latent_norm, latent)}};
}

// How q and k meet ---------------------------------------------------------------------------------------------------

void Recogniser::set_qk_norm(const Pattern& p, std::int64_t layer, Attention& a) const {
  const auto place = [&](const std::string& pattern) -> NormPlace {
    if (pattern.empty() || weight_in(file_, name(pattern, layer)) == nullptr) return {};
    return norm_at(name(pattern, layer), theory::Norm::Kind::kRms, p.gain_offset, a.dim_qk);
  };
  a.q_norm = place(p.q_norm);
  a.k_norm = place(p.k_norm);
}

bool Recogniser::is_local(const Pattern& p, std::int64_t layer) const {
  if (const Json* types = settings_.find("layer_types");
      types != nullptr && types->is_array() && layer < static_cast<std::int64_t>(types->size())) {
    const auto* type = (*types)[static_cast<std::size_t>(layer)].get_ptr<const std::string*>();
    if (type != nullptr) return *type == "sliding_attention";
  }
  if (layer < whole(settings_, p.window_from, 0, 0)) return false;
  const std::int64_t every = whole(settings_, p.full_every, 1, 0);
  return every == 0 || (layer + 1) % every != 0;
}

void Recogniser::set_rotary(const Pattern& p, bool local, Attention& a) {
  if (!p.rotary || hints_.rotary_base == 0.0) return;
  const bool has_local = local && p.local_rotary_base.given();
  const double base =
      hints_.rotary_base.value_or(real(settings_, has_local ? p.local_rotary_base : p.rotary_base).value_or(10'000));
  if (!(base > 0)) refuse("rotary base: {}, but a number above 0 is wanted", base);
  std::int64_t dims = whole(settings_, p.rotary_dims, 2, 0);
  if (dims == 0) {
    const double share = real(settings_, p.rotary_share).value_or(1);
    if (!(share > 0 && share <= 1))
      refuse("{}: a rotary share of {}, but a number above 0 and up to 1 is wanted", settings_.name(), share);
    dims = static_cast<std::int64_t>(share * static_cast<double>(a.dim_qk));
  }
  if (dims % 2 != 0 || dims < 2 || dims > a.dim_qk)
    refuse("{}: {} of {} components turn, but an even number up to that is wanted", settings_.name(), dims, a.dim_qk);
  a.rotary.pairing = p.pairing;
  if (has_local) {
    a.rotary.frequencies = plain_frequencies(base, dims);
    return;
  }
  Stretched stretched = frequencies_of(settings_, base, dims, a.context);
  note(stretched.note);
  if (!stretched.exact) why_not_run_ = stretched.note;
  a.rotary.frequencies = std::move(stretched.frequencies);
  a.rotary.magnitude = stretched.magnitude;
  a.rotary.short_frequencies = std::move(stretched.short_frequencies);
  a.rotary.short_length = stretched.short_length;
  a.scale *= stretched.scale_factor;
  // GGUF keeps what llama3's stretching divides by in a tensor.
  if (const TensorInfo* divisors = file_.find("rope_freqs.weight"); settings_.is_gguf() && divisors != nullptr) {
    check_vector(divisors->name, dims / 2);
    const std::vector<double> values = file_.read_f64(divisors->name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!(values[i] > 0)) refuse("{}: {}, but numbers above 0 are wanted", in_quotes(divisors->name), values[i]);
      a.rotary.frequencies[i] /= values[i];
    }
  }
}

void Recogniser::set_scale(const Pattern& p, std::int64_t layers, Attention& a) {
  const auto d = static_cast<double>(a.dim_qk);
  const auto constant = [&](double factor) {
    a.scale *= factor;
    scale_rule_ = factor == 1 / std::sqrt(d) ? "sqrt_dk" : fmt::format("constant({})", factor);
  };
  if (hints_.scale) {
    if (!std::isfinite(*hints_.scale) || *hints_.scale == 0)
      refuse("scale: {}, but a finite number other than 0 is wanted", *hints_.scale);
    return constant(*hints_.scale);
  }
  const auto rule = [&](const std::string& text) {
    const Scale scale = Scale::parse(text);
    const double factor = scale.factor(0, a.dim_qk, {a.context, a.context - 1});
    if (!std::isfinite(factor) || factor == 0)
      refuse("scale: {} is {} here, but a finite number other than 0 is wanted", text, factor);
    a.scale *= factor;
    scale_rule_ = text;
    if (scale.by_row())
      note(fmt::format("the scale {} depends on the query: taken for one that sees {} keys", text, a.context));
  };
  if (!hints_.scale_rule.empty()) return rule(hints_.scale_rule);
  if (settings_.find("rootdk.train") != nullptr)
    if (const auto text = settings_.text({"scale"})) return rule(*text);
  if (const auto found = p.scale_divisor_square_by_layers.find(layers); found != p.scale_divisor_square_by_layers.end())
    return constant(1 / std::sqrt(found->second));
  if (const auto square = real(settings_, p.scale_divisor_square)) {
    if (!(*square > 0))
      refuse("{}: the scale's divisor squared is {}, but a number above 0 is wanted", settings_.name(), *square);
    return constant(1 / std::sqrt(*square));
  }
  if (const auto factor = real(settings_, p.scale_factor)) {
    if (*factor == 0) refuse("{}: a scale of 0", settings_.name());
    return constant(*factor);
  }
  a.scale *= Scale::parse(p.scale).factor(0, a.dim_qk);
  scale_rule_ = p.scale;
}

void Recogniser::set_rest(const Pattern& p, std::int64_t layer, std::int64_t layers, Attention& a) {
  a.kind = p.kind;
  a.layer = layer;
  a.causal = p.causal;
  const std::optional<std::int64_t> said = settings_.whole(p.context.settings, 1, 0);
  a.context = said.value_or(static_cast<std::int64_t>(p.context.otherwise.value_or(4096)));
  if (const std::int64_t image = whole(settings_, p.image, 1, 0), patch = whole(settings_, p.patch, 1, 0);
      image > 0 && patch > 0)
    a.context = std::min<std::int64_t>(image / patch, 1 << 15) * std::min<std::int64_t>(image / patch, 1 << 15) + 1;
  else if (!said && !hints_.context)
    note(fmt::format("no configuration says how long its context is: {} was assumed", a.context));
  if (hints_.context) a.context = *hints_.context;
  if (a.context < 2 || a.context > (std::int64_t{1} << 40))
    refuse("context: {}, but a number from 2 to 2^40 is wanted", a.context);
  const bool local = p.window.given() && is_local(p, layer);
  const bool off = !p.window_switch.empty() && settings_.boolean({p.window_switch}) == false;
  if (const std::int64_t window = local && !off ? whole(settings_, p.window, 1, 0) : 0; window > 1) a.window = window;
  if (const auto cap = real(settings_, p.soft_cap)) {
    if (!(*cap > 0)) refuse("{}: a soft-cap of {}, but a number above 0 is wanted", settings_.name(), *cap);
    a.soft_cap = cap;
  }
  set_qk_norm(p, layer, a);
  set_scale(p, layers, a);
  if (!p.scale_by_layer.empty() && settings_.boolean({p.scale_by_layer}).value_or(false))
    a.scale /= static_cast<double>(layer + 1);
  set_rotary(p, local, a);
}

std::vector<Attention> Recogniser::layers_of(const Pattern& pattern) {
  std::vector<Attention> out;
  const std::int64_t layers = count_layers(pattern);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    Attention a;
    set_heads(pattern, layer, a);
    if (!pattern.kv_latent.empty()) set_latent(pattern, layer, a);
    else if (!pattern.qkv.empty()) set_packed(pattern, layer, a);
    else set_apart(pattern, layer, a);
    set_rest(pattern, layer, layers, a);
    out.push_back(std::move(a));
  }
  return out;
}

// Absent tensors leave it unknown: a checkpoint of the layers alone can still be looked at.
Embedding Recogniser::embedding_of(const EmbeddingPattern& p) const {
  Embedding out;
  const TensorInfo* tokens = p.tokens.empty() ? nullptr : weight_in(file_, prefix_ + p.tokens);
  if (tokens == nullptr || tokens->shape.size() != 2 || !checkpoint::traits(tokens->encoding).readable) return out;
  out.vocabulary = tokens->shape[0];
  out.width = tokens->shape[1];
  if (out.vocabulary < 1 || out.width < 1) return out;
  const auto table = [&](const std::string& pattern) -> std::string {
    const TensorInfo* found = pattern.empty() ? nullptr : weight_in(file_, prefix_ + pattern);
    if (found == nullptr) return {};
    if (found->shape.size() != 2 || found->shape[1] != out.width)
      refuse("{}: its shape is [{}], but rows of {} are wanted, as the tokens have", in_quotes(found->name),
             fmt::join(found->shape, ", "), out.width);
    if (!checkpoint::traits(found->encoding).readable)
      refuse("{}: {} numbers, which cannot be read", in_quotes(found->name), checkpoint::traits(found->encoding).name);
    return found->name;
  };
  out.tokens = tokens->name;
  out.positions = table(p.positions);
  out.token_types = table(p.token_types);
  const std::vector<std::string>& types = p.padding_types;
  if (p.padding.given() &&
      (types.empty() || std::find(types.begin(), types.end(), settings_.model_type()) != types.end())) {
    out.padding = whole(settings_, p.padding, 0, 0);
    out.first_position = *out.padding + 1;
  }
  if (p.times_root_width) out.factor = std::sqrt(static_cast<double>(out.width));
  if (!p.norm.empty() && weight_in(file_, prefix_ + p.norm) != nullptr)
    out.norm = norm_at(prefix_ + p.norm, hints_.norm.value_or(family_.attention.front().norm_kind), 0, out.width);
  return out;
}

Network Recogniser::network_of(const Model& model) const {
  const std::vector<std::string>& types = family_.model_types;
  if (hints_.family.empty() && hints_.family_json.empty() &&
      std::find(types.begin(), types.end(), settings_.model_type()) == types.end())
    refuse("its tensors are called as those of {}, but nothing says that it computes as one (--family {}, family=)",
           family_.name, family_.name);
  if (!why_not_run_.empty()) refuse("{}", why_not_run_);
  return audit::network_of(*this, settings_, family_, hints_.norm, model);
}

// Which family -------------------------------------------------------------------------------------------------------

struct Match {
  const Family* family = nullptr;
  std::string prefix;
};

// The prefix under which layer 0 of the first attention is there.
std::optional<std::string> prefix_in(const Checkpoint& file, const Family& family) {
  const Pattern& p = family.attention.front();
  const std::string& key = !p.kv_latent.empty() ? p.kv_latent : p.qkv.empty() ? p.k : p.qkv;
  for (const std::string& prefix : family.prefixes)
    if (weight_in(file, prefix + filled(key, 0)) != nullptr) return prefix;
  return {};
}

class Choice {
 public:
  Choice(const Checkpoint& file, const Settings& settings, const Hints& hints)
      : file_(file), settings_(settings), hints_(hints) {
    if (!hints.family_json.empty()) own_ = parse_families(hints.family_json, "family file");
  }

  Match best(std::vector<std::string>& notes) const {
    if (!hints_.family.empty()) return named();
    for (const Family& family : own_)
      if (const auto prefix = prefix_in(file_, family)) return {&family, *prefix};
    if (!own_.empty()) refuse("family file: the checkpoint has no {}{}", example(own_.front()), suspects_in(file_));
    const std::string& type = settings_.model_type();
    for (const Family& family : built_in_families())
      if (family.gguf == settings_.is_gguf() &&
          std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
        if (const auto prefix = prefix_in(file_, family)) return {&family, *prefix};
    for (const Family& family : built_in_families()) {
      if (family.gguf != settings_.is_gguf()) continue;
      const auto prefix = prefix_in(file_, family);
      if (!prefix) continue;
      notes.push_back(type.empty() ? fmt::format("no configuration says what model this is; its tensors are called as "
                                                 "those of {}, so it was taken for one",
                                                 family.name)
                                   : fmt::format("{} is not a model type that is known; its tensors are called as "
                                                 "those of {}, so it was taken for one",
                                                 in_quotes(type), family.name));
      return {&family, *prefix};
    }
    refuse("{}: not a model that is known{}", type.empty() ? "no configuration" : in_quotes(type), suspects_in(file_));
  }

 private:
  static std::string example(const Family& family) {
    const Pattern& p = family.attention.front();
    return in_quotes(family.prefixes.front() +
                     filled(!p.kv_latent.empty() ? p.kv_latent
                            : p.qkv.empty()      ? p.k
                                                 : p.qkv,
                            0) +
                     ".weight");
  }

  Match named() const {
    for (const std::vector<Family>* all : {&own_, &built_in_families()})
      for (const Family& family : *all) {
        if (family.name != hints_.family) continue;
        const auto prefix = prefix_in(file_, family);
        if (!prefix) refuse("family {}: the checkpoint has no {}{}", family.name, example(family), suspects_in(file_));
        return {&family, *prefix};
      }
    refuse("family: {} is not known; known are {}{}", in_quotes(hints_.family), fmt::join(families(), ", "),
           base::did_you_mean(hints_.family, families()));
  }

  const Checkpoint& file_;
  const Settings& settings_;
  const Hints& hints_;
  std::vector<Family> own_;
};

}  // namespace

Model recognise(const Checkpoint& checkpoint, const Hints& hints) {
  return base::with_memory_errors([&] {
    const Settings settings(checkpoint);
    Model model;
    const Choice choice(checkpoint, settings, hints);
    const Match match = choice.best(model.notes);
    model.family = match.family->name;
    const std::filesystem::path& file = checkpoint.files().front();
    model.name = file.filename().string();
    if (const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
        model.name.starts_with("model") && !folder.empty())
      model.name = folder;
    Recogniser recogniser(checkpoint, settings, hints, *match.family, match.prefix, model.notes);
    for (const Pattern& pattern : match.family->attention) {
      std::vector<Attention> layers = recogniser.layers_of(pattern);
      if (layers.empty()) model.notes.push_back(fmt::format("it has no {} attention", pattern.kind));
      model.layers.insert(model.layers.end(), std::make_move_iterator(layers.begin()),
                          std::make_move_iterator(layers.end()));
    }
    model.scale_rule = recogniser.scale_rule();
    model.embedding = recogniser.embedding_of(match.family->embedding);
    try {
      model.network = recogniser.network_of(model);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kInvalidArgument) throw;
      model.why_not_run = e.what();
    }
    return model;
  });
}

std::vector<std::string> families() {
  std::vector<std::string> out;
  for (const Family& family : built_in_families()) out.push_back(family.name);
  return out;
}

std::string families_json() { return kFamilies; }

}  // namespace rootdk::audit
