// The table of fields that a family may have, and the JSON that fills them, checked field by field.
#include "audit/family.h"

#include <cmath>
#include <functional>
#include <utility>

#include "audit/json.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;

namespace {

[[noreturn]] void refuse_value(const std::string& where, const Json& value, const char* wanted) {
  refuse("{}: {}, but {} is wanted", where, in_short(value), wanted);
}

std::string text_of(const std::string& where, const Json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  if (text == nullptr) refuse_value(where, value, "text");
  return *text;
}

bool flag_of(const std::string& where, const Json& value) {
  if (!value.is_boolean()) refuse_value(where, value, "true or false");
  return value.get<bool>();
}

double number_of(const std::string& where, const Json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse_value(where, value, "a number");
  return value.get<double>();
}

std::vector<std::string> texts_of(const std::string& where, const Json& value) {
  if (value.is_string()) return {text_of(where, value)};
  if (!value.is_array()) refuse_value(where, value, "text or an array of it");
  std::vector<std::string> out;
  for (const Json& element : value) out.push_back(text_of(where, element));
  return out;
}

// "n_head", ["n_head", "num_heads"], 12, or ["n_head", 12].
Number setting_of(const std::string& where, const Json& value) {
  Number out;
  for (const Json& element : value.is_array() ? value : Json::array({value})) {
    if (element.is_number()) out.otherwise = number_of(where, element);
    else out.settings.push_back(text_of(where, element));
  }
  return out;
}

theory::Norm::Kind kind_of(const std::string& where, const Json& value) {
  const std::string text = text_of(where, value);
  if (text == "rms") return theory::Norm::Kind::kRms;
  if (text == "layer") return theory::Norm::Kind::kLayer;
  if (text == "none") return theory::Norm::Kind::kNone;
  refuse_value(where, value, "rms, layer or none");
}

Pattern::Order order_of(const std::string& where, const Json& value) {
  const std::string text = text_of(where, value);
  if (text == "blocks") return Pattern::Order::kBlocks;
  if (text == "heads") return Pattern::Order::kHeads;
  if (text == "groups") return Pattern::Order::kGroups;
  refuse_value(where, value, "blocks, heads or groups");
}

theory::Rotation::Pairing pairing_of(const std::string& where, const Json& value) {
  const std::string text = text_of(where, value);
  if (text == "half") return theory::Rotation::Pairing::kHalfSplit;
  if (text == "interleaved") return theory::Rotation::Pairing::kInterleaved;
  refuse_value(where, value, "half or interleaved");
}

std::map<std::int64_t, double> by_layers_of(const std::string& where, const Json& value) {
  if (!value.is_object()) refuse_value(where, value, "an object");
  std::map<std::int64_t, double> out;
  for (const auto& [layers, number] : value.items()) {
    if (layers.empty() || layers.size() > 4 || layers.find_first_not_of("0123456789") != layers.npos)
      refuse_value(where, layers, "a number of layers");
    out[std::stoll(layers)] = number_of(where, number);
  }
  return out;
}

// Every field of the language: what it is called, and what it sets.
using Setter = std::function<void(Pattern&, const std::string& where, const Json&)>;
struct Field {
  const char* name;
  Setter set;
};

Field text_field(const char* name, std::string Pattern::*member) {
  return {name, [member](Pattern& p, const std::string& where, const Json& v) { p.*member = text_of(where, v); }};
}
Field flag_field(const char* name, bool Pattern::*member) {
  return {name, [member](Pattern& p, const std::string& where, const Json& v) { p.*member = flag_of(where, v); }};
}
Field setting_field(const char* name, Number Pattern::*member) {
  return {name, [member](Pattern& p, const std::string& where, const Json& v) { p.*member = setting_of(where, v); }};
}

const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      text_field("kind", &Pattern::kind),
      text_field("q", &Pattern::q),
      text_field("k", &Pattern::k),
      text_field("qkv", &Pattern::qkv),
      {"order", [](Pattern& p, const std::string& where, const Json& v) { p.order = order_of(where, v); }},
      flag_field("transposed", &Pattern::transposed),
      text_field("q_latent", &Pattern::q_latent),
      text_field("q_latent_norm", &Pattern::q_latent_norm),
      text_field("kv_latent", &Pattern::kv_latent),
      text_field("kv_latent_norm", &Pattern::kv_latent_norm),
      text_field("kv", &Pattern::kv),
      text_field("norm", &Pattern::norm),
      text_field("first_norm", &Pattern::first_norm),
      text_field("keys_norm", &Pattern::keys_norm),
      text_field("q_norm", &Pattern::q_norm),
      text_field("k_norm", &Pattern::k_norm),
      {"norm_kind", [](Pattern& p, const std::string& where, const Json& v) { p.norm_kind = kind_of(where, v); }},
      {"gain_offset", [](Pattern& p, const std::string& where, const Json& v) { p.gain_offset = number_of(where, v); }},
      flag_field("causal", &Pattern::causal),
      setting_field("layers", &Pattern::layers),
      setting_field("heads", &Pattern::heads),
      setting_field("kv_heads", &Pattern::kv_heads),
      setting_field("head_dim", &Pattern::head_dim),
      setting_field("value_dim", &Pattern::value_dim),
      setting_field("context", &Pattern::context),
      setting_field("image", &Pattern::image),
      setting_field("patch", &Pattern::patch),
      setting_field("soft_cap", &Pattern::soft_cap),
      flag_field("rotary", &Pattern::rotary),
      {"pairing", [](Pattern& p, const std::string& where, const Json& v) { p.pairing = pairing_of(where, v); }},
      setting_field("rotary_base", &Pattern::rotary_base),
      setting_field("local_rotary_base", &Pattern::local_rotary_base),
      setting_field("rotary_dims", &Pattern::rotary_dims),
      setting_field("rotary_share", &Pattern::rotary_share),
      text_field("scale", &Pattern::scale),
      setting_field("scale_divisor_square", &Pattern::scale_divisor_square),
      setting_field("scale_factor", &Pattern::scale_factor),
      {"scale_divisor_square_by_layers",
       [](Pattern& p, const std::string& where, const Json& v) {
         p.scale_divisor_square_by_layers = by_layers_of(where, v);
       }},
      text_field("scale_by_layer", &Pattern::scale_by_layer),
      setting_field("window", &Pattern::window),
      setting_field("full_every", &Pattern::full_every),
      text_field("window_switch", &Pattern::window_switch),
      setting_field("window_from", &Pattern::window_from),
  };
  return all;
}

// False where there is no such field.
bool set_field(Pattern& pattern, const std::string& where, const std::string& key, const Json& value) {
  for (const Field& field : fields())
    if (field.name == key) {
      field.set(pattern, where + "." + key, value);
      return true;
    }
  return false;
}

void check(const Pattern& p, const std::string& where) {
  const bool latent = !p.kv_latent.empty();
  if (latent ? p.kv.empty() || p.q.empty() : p.qkv.empty() && (p.q.empty() || p.k.empty()))
    refuse("{}: q and k, or qkv, or q, kv_latent and kv are wanted", where);
  if (!p.qkv.empty() && (!p.q.empty() || !p.k.empty() || latent))
    refuse("{}: qkv came with others that say the same", where);
}

EmbeddingPattern embedding_of(const std::string& where, const Json& node) {
  if (!node.is_object()) refuse_value(where, node, "an object");
  EmbeddingPattern out;
  for (const auto& [key, value] : node.items()) {
    const std::string at = where + "." + key;
    if (key == "tokens") out.tokens = text_of(at, value);
    else if (key == "positions") out.positions = text_of(at, value);
    else if (key == "token_types") out.token_types = text_of(at, value);
    else if (key == "norm") out.norm = text_of(at, value);
    else if (key == "padding") out.padding = setting_of(at, value);
    else if (key == "padding_types") out.padding_types = texts_of(at, value);
    else if (key == "times_root_width") out.times_root_width = flag_of(at, value);
    else refuse("{}: the field {} is not known", where, in_quotes(key));
  }
  if (out.tokens.empty()) refuse("{}: the field \"tokens\" is wanted", where);
  return out;
}

BlockPattern block_of(const std::string& where, const Json& node) {
  if (!node.is_object()) refuse_value(where, node, "an object");
  using Text = std::string BlockPattern::*;
  static const std::map<std::string, Text> texts = {
      {"v", &BlockPattern::v},
      {"o", &BlockPattern::o},
      {"gate", &BlockPattern::gate},
      {"up", &BlockPattern::up},
      {"down", &BlockPattern::down},
      {"gate_up", &BlockPattern::gate_up},
      {"mlp_norm", &BlockPattern::mlp_norm},
      {"attention_out_norm", &BlockPattern::attention_out_norm},
      {"mlp_out_norm", &BlockPattern::mlp_out_norm},
      {"attention_sum_norm", &BlockPattern::attention_sum_norm},
      {"mlp_sum_norm", &BlockPattern::mlp_sum_norm},
      {"final_norm", &BlockPattern::final_norm},
      {"activation", &BlockPattern::activation},
      {"parallel_switch", &BlockPattern::parallel_switch},
  };
  BlockPattern out;
  for (const auto& [key, value] : node.items()) {
    const std::string at = where + "." + key;
    if (const auto text = texts.find(key); text != texts.end()) {
      out.*text->second = text_of(at, value);
    } else if (key == "activation_settings") {
      out.activation_settings = texts_of(at, value);
    } else if (key == "activation_means") {
      if (!value.is_object()) refuse_value(at, value, "an object");
      for (const auto& [name, meant] : value.items()) out.activation_means[name] = text_of(at + "." + name, meant);
    } else if (key == "epsilon") {
      out.epsilon = setting_of(at, value);
    } else if (key == "only_if") {
      if (!value.is_object()) refuse_value(at, value, "an object");
      out.only_if = value;
    } else {
      refuse("{}: the field {} is not known", where, in_quotes(key));
    }
  }
  for (const auto& [name, text] : {std::pair{"o", &out.o}, {"down", &out.down}, {"activation", &out.activation}})
    if (text->empty()) refuse("{}: the field \"{}\" is wanted", where, name);
  if (out.up.empty() == out.gate_up.empty()) refuse("{}: up or gate_up is wanted", where);
  return out;
}

Family family_of(const Json& node, const std::string& where) {
  if (!node.is_object()) refuse_value(where, node, "an object");
  Family family;
  Pattern common;
  const Json* attention = nullptr;
  for (const auto& [key, value] : node.items()) {
    if (key == "name") family.name = text_of(where + ".name", value);
    else if (key == "model_type") family.model_types = texts_of(where + ".model_type", value);
    else if (key == "gguf") family.gguf = flag_of(where + ".gguf", value);
    else if (key == "prefixes") family.prefixes = texts_of(where + ".prefixes", value);
    else if (key == "embedding") family.embedding = embedding_of(where + ".embedding", value);
    else if (key == "block") family.block = block_of(where + ".block", value);
    else if (key == "attention") attention = &value;
    else if (!set_field(common, where, key, value)) refuse("{}: the field {} is not known", where, in_quotes(key));
  }
  if (family.name.empty()) refuse("{}: it has no name", where);
  if (family.prefixes.empty()) family.prefixes = {""};
  const std::string at = where + " " + in_quotes(family.name);
  if (attention == nullptr) {
    check(common, at);
    family.attention.push_back(common);
    return family;
  }
  if (!attention->is_array() || attention->empty()) refuse_value(at + ".attention", *attention, "an array of objects");
  for (const Json& one : *attention) {
    if (!one.is_object()) refuse_value(at + ".attention", one, "an object");
    Pattern pattern = common;
    for (const auto& [key, value] : one.items())
      if (!set_field(pattern, at + ".attention", key, value))
        refuse("{}.attention: the field {} is not known", at, in_quotes(key));
    check(pattern, at + ".attention");
    family.attention.push_back(std::move(pattern));
  }
  return family;
}

}  // namespace

std::vector<Family> parse_families(std::string_view text, std::string_view name) {
  const Json tree = parse_json(text, name);
  std::vector<Family> out;
  if (tree.is_object() && tree.contains("families")) {
    const Json& all = tree["families"];
    if (!all.is_array() || tree.size() != 1) refuse("{}: families is to be an array, and alone", name);
    for (const Json& one : all) out.push_back(family_of(one, std::string(name)));
    return out;
  }
  out.push_back(family_of(tree, std::string(name)));
  return out;
}

const std::vector<Family>& built_in_families() {
  static const std::vector<Family> all = parse_families(kFamilies, "the built-in families");
  return all;
}

}  // namespace rootdk::audit
