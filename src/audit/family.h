// A family of models: how its tensors are called, and which settings say how large its heads are. Families are written
// in JSON (docs/audit.md); this is what is made of that.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "audit/json.h"
#include "rootdk/theory/head.h"

namespace rootdk::audit {

/// A number: the first of these settings that is there, else this one.
struct Number {
  std::vector<std::string> settings;
  std::optional<double> otherwise;

  bool given() const { return !settings.empty() || otherwise; }
};

/// Names of tensors have no ".weight" and ".bias" here; {layer} and {previous} stand for numbers.
struct Pattern {
  enum class Order {
    kBlocks,
    kHeads,
    kGroups
  };  // of a packed projection: q, k, v · q₀, k₀, v₀, q₁ … · (q₀ … q_r, k₀, v₀), …

  std::string kind = "self";
  std::string q, k, qkv;
  Order order = Order::kBlocks;
  bool transposed = false;
  // DeepSeek: q and k through narrow latents, and rotary components of their own.
  std::string q_latent, q_latent_norm, kv_latent, kv_latent_norm, kv;
  std::string norm;            // of the input, and so of what keys are made from unless there is …
  std::string first_norm;      // … of layer 0, where that is another (post-norm models)
  std::string keys_norm;       // … of what keys are made from (cross-attention)
  std::string q_norm, k_norm;  // QK-norm, where the checkpoint has it
  theory::Norm::Kind norm_kind = theory::Norm::Kind::kNone;
  double gain_offset = 0;
  bool causal = true;

  Number layers, heads, kv_heads, head_dim, value_dim, context, image, patch, soft_cap;

  bool rotary = false;
  theory::Rotation::Pairing pairing = theory::Rotation::Pairing::kHalfSplit;
  Number rotary_base, local_rotary_base, rotary_dims, rotary_share;

  std::string scale = "sqrt_dk";  // a rule of Scale::parse, unless one of these is there:
  Number scale_divisor_square;    // 1/√ of it
  Number scale_factor;            // it
  // By the number of layers, where only that tells two models apart
  std::map<std::int64_t, double> scale_divisor_square_by_layers;
  std::string scale_by_layer;  // a switch: divided by layer + 1, too

  Number window, full_every;  // every n-th layer sees all keys; 0: none does
  std::string window_switch;  // a setting that must not be false
  Number window_from;         // layers before see all keys
};

/// What a layer does beside its scores (rootdk/audit/model.h, Block), so that a model of the family can be run. Names
/// as in Pattern.
struct BlockPattern {
  std::string v, o;                     // v only where it is not packed with q and k
  std::string gate, up, down, gate_up;  // gate_up: packed, the gate first
  std::string mlp_norm, attention_out_norm, mlp_out_norm, attention_sum_norm, mlp_sum_norm, final_norm;
  std::string activation;  // its name in transformers, unless one of these settings says another
  std::vector<std::string> activation_settings;
  std::map<std::string, std::string> activation_means;  // names that stand for another one in this family
  Number epsilon;
  std::string parallel_switch;    // a setting: attention and MLP side by side unless it is false
  Json only_if = Json::object();  // settings that must have this value where they are there
};

/// Names of tensors, as in Pattern; empty: the family has none.
struct EmbeddingPattern {
  std::string tokens, positions, token_types, norm;
  Number padding;                          // positions begin behind it, and tokens that are it are not counted
  std::vector<std::string> padding_types;  // model types that this is so for; empty: all
  bool times_root_width = false;
};

struct Family {
  std::string name;
  std::vector<std::string> model_types;  // of config.json, or GGUF's architectures
  bool gguf = false;
  std::vector<std::string> prefixes;  // that names may begin with
  EmbeddingPattern embedding;
  std::optional<BlockPattern> block;
  std::vector<Pattern> attention;
};

/// One family, or {"families": […]}. Refuses what it does not know, by name.
std::vector<Family> parse_families(std::string_view text, std::string_view name);

/// The built-in table.
extern const char* const kFamilies;
const std::vector<Family>& built_in_families();

}  // namespace rootdk::audit
