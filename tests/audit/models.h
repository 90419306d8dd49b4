// Tiny models in the layouts that real ones have, and what each computes, written down a second time: naively, in
// double.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rootdk/checkpoint/safetensors.h"
#include "support/rng.h"

namespace rootdk::audit {

using Json = nlohmann::ordered_json;
using test::Rng;
using Vector = std::vector<double>;

/// [rows, width], row-major.
struct Matrix {
  std::int64_t rows = 0, width = 0;
  Vector values;

  double& at(std::int64_t r, std::int64_t i) { return values[static_cast<std::size_t>(r * width + i)]; }
  double at(std::int64_t r, std::int64_t i) const { return values[static_cast<std::size_t>(r * width + i)]; }
};

/// As f32 has them: files keep them so.
inline double rounded(double x) { return static_cast<double>(static_cast<float>(x)); }

inline Vector random_vector(Rng& rng, std::int64_t size, double mean, double spread) {
  Vector out;
  for (std::int64_t i = 0; i < size; ++i) out.push_back(rounded(mean + spread * rng.normal()));
  return out;
}

/// Rows differ in size, so that heads and components do.
inline Matrix random_matrix(Rng& rng, std::int64_t rows, std::int64_t width) {
  Matrix out{rows, width, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const double size = (0.5 + 1.5 * rng.uniform()) / std::sqrt(static_cast<double>(width));
    for (std::int64_t i = 0; i < width; ++i) out.values.push_back(rounded(size * rng.normal()));
  }
  return out;
}

/// W x + b; b may be empty.
inline Vector times(const Matrix& w, const Vector& x, const Vector& b = {}) {
  Vector out;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    double sum = b.empty() ? 0 : b[static_cast<std::size_t>(r)];
    for (std::int64_t i = 0; i < w.width; ++i) sum += w.at(r, i) * x[static_cast<std::size_t>(i)];
    out.push_back(sum);
  }
  return out;
}

inline Vector rms_normalised(Vector x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v *= std::sqrt(static_cast<double>(x.size()) / squares);
  return x;
}

enum class Kind { kNone, kRms, kLayer };

/// Gains as they act: Gemma's 1 is in them.
struct NaiveNorm {
  Kind kind = Kind::kNone;
  Vector gain = {}, bias = {};

  Vector operator()(Vector x) const {
    if (kind == Kind::kLayer) {
      double mean = 0;
      for (const double v : x) mean += v / static_cast<double>(x.size());
      for (double& v : x) v -= mean;
    }
    if (kind != Kind::kNone) x = rms_normalised(std::move(x));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = x[i] * (gain.empty() ? 1 : gain[i]) + (bias.empty() ? 0 : bias[i]);
    return x;
  }
};

inline NaiveNorm random_norm(Rng& rng, Kind kind, std::int64_t width, bool has_bias) {
  return {kind, random_vector(rng, width, 1, 0.3), has_bias ? random_vector(rng, width, 0, 0.3) : Vector{}};
}

inline Vector normal_vector(Rng& rng, std::int64_t size) {
  Vector x;
  for (std::int64_t i = 0; i < size; ++i) x.push_back(rng.normal());
  return x;
}

/// One attention layer: how to draw the q of all heads, and the k.
struct Naive {
  std::string kind = "self";
  std::int64_t heads = 0, kv_heads = 0, dim = 0;
  double scale = 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;  ///< components that turn together …
  Vector frequencies;                                        ///< … and how fast
  std::int64_t context = 64;
  std::function<Vector(Rng&)> queries, keys;
};

struct Projections {
  std::int64_t heads = 4, kv_heads = 4, dim = 8, width = 24;
  Matrix q = {}, k = {};
  Vector q_bias = {}, k_bias = {};
  NaiveNorm norm = {}, keys_norm = {};  ///< of what queries and of what keys are made from
  Vector q_gain = {}, k_gain = {};      ///< of QK-norm; empty: none
};

inline Projections random_projections(Rng& rng, Projections p, bool biases) {
  p.q = random_matrix(rng, p.heads * p.dim, p.width);
  p.k = random_matrix(rng, p.kv_heads * p.dim, p.width);
  if (biases) {
    p.q_bias = random_vector(rng, p.heads * p.dim, 0, 0.5);
    p.k_bias = random_vector(rng, p.kv_heads * p.dim, 0, 0.5);
  }
  return p;
}

inline void normalise_heads(Vector& x, std::int64_t dim, const Vector& gain) {
  if (gain.empty()) return;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(dim)) {
    Vector head(x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(begin) + dim);
    head = rms_normalised(std::move(head));
    for (std::size_t i = 0; i < head.size(); ++i) x[begin + i] = head[i] * gain[i];
  }
}

inline Naive naive_of(const Projections& p, double scale) {
  Naive out;
  out.heads = p.heads;
  out.kv_heads = p.kv_heads;
  out.dim = p.dim;
  out.scale = scale;
  out.queries = [p](Rng& rng) {
    Vector q = times(p.q, p.norm(normal_vector(rng, p.width)), p.q_bias);
    normalise_heads(q, p.dim, p.q_gain);
    return q;
  };
  out.keys = [p](Rng& rng) {
    Vector k = times(p.k, p.keys_norm(normal_vector(rng, p.width)), p.k_bias);
    normalise_heads(k, p.dim, p.k_gain);
    return k;
  };
  return out;
}

/// Rotary positions on the leading `dims` components.
inline void set_rotary(Naive& n, std::int64_t dims, double base, bool interleaved) {
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    n.pairs.emplace_back(interleaved ? 2 * i : i, interleaved ? 2 * i + 1 : i + dims / 2);
    n.frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
}

/// A checkpoint in the making.
struct Made {
  std::vector<std::pair<std::string, Matrix>> tensors;
  Json config = Json::object();
  std::vector<Naive> layers;

  void add(const std::string& name, const Matrix& m) { tensors.emplace_back(name, m); }
  void add(const std::string& name, const Vector& v) {
    if (!v.empty()) tensors.emplace_back(name, Matrix{0, static_cast<std::int64_t>(v.size()), v});  // no rows: a vector
  }
  void add_norm(const std::string& name, const NaiveNorm& norm, double offset = 0) {
    Vector gain = norm.gain;
    for (double& g : gain) g = rounded(g - offset);
    add(name + ".weight", gain);
    add(name + ".bias", norm.bias);
  }
};

/// model.safetensors and config.json.
inline void write(const Made& made, const std::filesystem::path& folder,
                  const std::map<std::string, std::string>& metadata = {}) {
  std::vector<std::vector<float>> values;
  for (const auto& [name, m] : made.tensors) values.emplace_back(m.values.begin(), m.values.end());
  std::vector<checkpoint::NewTensor> tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [name, m] = made.tensors[i];
    tensors.push_back(checkpoint::new_tensor(name, m.rows > 0 ? std::vector{m.rows, m.width} : std::vector{m.width},
                                             std::span<const float>(values[i])));
  }
  checkpoint::write_safetensors(folder / "model.safetensors", tensors, metadata);
  if (!made.config.empty()) std::ofstream(folder / "config.json") << made.config;
}

/// What is below, one behind the other.
inline Matrix stacked(const std::vector<const Matrix*>& parts) {
  Matrix out = {0, parts.front()->width, {}};
  for (const Matrix* part : parts) {
    out.rows += part->rows;
    out.values.insert(out.values.end(), part->values.begin(), part->values.end());
  }
  return out;
}
inline Vector stacked(const std::vector<const Vector*>& parts) {
  Vector out;
  for (const Vector* part : parts) out.insert(out.end(), part->begin(), part->end());
  return out;
}
inline Matrix transposed(const Matrix& m) {
  Matrix out{m.width, m.rows, Vector(m.values.size())};
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t i = 0; i < m.width; ++i) out.at(i, r) = m.at(r, i);
  return out;
}
inline Matrix rows_of(const Matrix& m, std::int64_t first, std::int64_t count) {
  return {count, m.width, Vector(m.values.begin() + first * m.width, m.values.begin() + (first + count) * m.width)};
}
inline Vector rows_of(const Vector& v, std::int64_t first, std::int64_t count) {
  return {v.begin() + first, v.begin() + first + count};
}

// Families -----------------------------------------------------------------------------------------------------------

inline double inv_sqrt(std::int64_t d) { return 1 / std::sqrt(static_cast<double>(d)); }

inline Made make_bert(Rng& rng, const std::string& prefix = "") {
  Made made;
  Projections shape{.heads = 3, .kv_heads = 3};
  NaiveNorm before = random_norm(rng, Kind::kLayer, shape.width, true);
  made.add_norm(prefix + "embeddings.LayerNorm", before);
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, shape, true);
    p.norm = p.keys_norm = before;
    const std::string at = prefix + "encoder.layer." + std::to_string(layer) + ".";
    made.add(at + "attention.self.query.weight", p.q);
    made.add(at + "attention.self.query.bias", p.q_bias);
    made.add(at + "attention.self.key.weight", p.k);
    made.add(at + "attention.self.key.bias", p.k_bias);
    before = random_norm(rng, Kind::kLayer, shape.width, true);  // post-norm: the next layer's input
    made.add_norm(at + "output.LayerNorm", before);
    made.layers.push_back(naive_of(p, inv_sqrt(p.dim)));
  }
  made.config = {{"model_type", "bert"},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 3},
                 {"hidden_size", 24},
                 {"max_position_embeddings", 64}};
  return made;
}

inline Made make_gpt2(Rng& rng) {
  Made made;
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, {.heads = 3, .kv_heads = 3}, true);
    p.norm = p.keys_norm = random_norm(rng, Kind::kLayer, p.width, true);
    const Matrix v = random_matrix(rng, 24, 24);
    const Vector v_bias = random_vector(rng, 24, 0, 0.5);
    const std::string at = "transformer.h." + std::to_string(layer) + ".";
    made.add(at + "attn.c_attn.weight", transposed(stacked({&p.q, &p.k, &v})));  // Conv1D: [in, out]
    made.add(at + "attn.c_attn.bias", stacked({&p.q_bias, &p.k_bias, &v_bias}));
    made.add_norm(at + "ln_1", p.norm);
    made.layers.push_back(naive_of(p, inv_sqrt(p.dim) / (layer + 1)));
  }
  made.config = {{"model_type", "gpt2"}, {"n_layer", 2},      {"n_head", 3},
                 {"n_embd", 24},         {"n_positions", 64}, {"scale_attn_by_inverse_layer_idx", true}};
  return made;
}

// q₀, k₀, v₀, q₁, …; a quarter of each head turns.
inline Made make_gpt_neox(Rng& rng) {
  Made made;
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, {.heads = 3, .kv_heads = 3, .dim = 16}, true);
    p.norm = p.keys_norm = random_norm(rng, Kind::kLayer, p.width, true);
    Matrix packed{0, p.width, {}};
    Vector bias;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Matrix q = rows_of(p.q, h * p.dim, p.dim), k = rows_of(p.k, h * p.dim, p.dim),
                   v = random_matrix(rng, p.dim, p.width);
      const Vector bq = rows_of(p.q_bias, h * p.dim, p.dim), bk = rows_of(p.k_bias, h * p.dim, p.dim),
                   bv = random_vector(rng, p.dim, 0, 1);
      packed = stacked({&packed, &q, &k, &v});
      bias = stacked({&bias, &bq, &bk, &bv});
    }
    const std::string at = "gpt_neox.layers." + std::to_string(layer) + ".";
    made.add(at + "attention.query_key_value.weight", packed);
    made.add(at + "attention.query_key_value.bias", bias);
    made.add_norm(at + "input_layernorm", p.norm);
    made.layers.push_back(naive_of(p, inv_sqrt(p.dim)));
    set_rotary(made.layers.back(), 4, 10'000, false);
  }
  made.config = {{"model_type", "gpt_neox"}, {"num_hidden_layers", 2},   {"num_attention_heads", 3},
                 {"rotary_pct", 0.25},       {"rotary_emb_base", 10000}, {"max_position_embeddings", 64}};
  return made;
}

struct Llama {
  std::string type = "llama", prefix = "model.";
  bool biases = false, qk_norm = false;
  double gain_offset = 0, base = 10'000;
  std::optional<double> divisor_square = {};
};

inline Made make_llama(Rng& rng, const Llama& o = {}) {
  Made made;
  const Projections shape{.heads = 4, .kv_heads = 2, .dim = 8, .width = 24};  // width is not heads·dim
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, shape, o.biases);
    p.norm = p.keys_norm = random_norm(rng, Kind::kRms, p.width, false);
    const std::string at = o.prefix + "layers." + std::to_string(layer) + ".";
    if (o.qk_norm) {
      p.q_gain = random_vector(rng, p.dim, 1.5, 0.4);
      p.k_gain = random_vector(rng, p.dim, 1.5, 0.4);
      made.add_norm(at + "self_attn.q_norm", {Kind::kRms, p.q_gain, {}}, o.gain_offset);
      made.add_norm(at + "self_attn.k_norm", {Kind::kRms, p.k_gain, {}}, o.gain_offset);
    }
    made.add(at + "self_attn.q_proj.weight", p.q);
    made.add(at + "self_attn.q_proj.bias", p.q_bias);
    made.add(at + "self_attn.k_proj.weight", p.k);
    made.add(at + "self_attn.k_proj.bias", p.k_bias);
    made.add_norm(at + "input_layernorm", p.norm, o.gain_offset);
    made.layers.push_back(naive_of(p, o.divisor_square ? 1 / std::sqrt(*o.divisor_square) : inv_sqrt(p.dim)));
    set_rotary(made.layers.back(), p.dim, o.base, false);
  }
  made.config = {
      {"model_type", o.type}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"head_dim", 8},        {"hidden_size", 24},      {"rope_theta", o.base},     {"max_position_embeddings", 64}};
  if (o.divisor_square) made.config["query_pre_attn_scalar"] = *o.divisor_square;
  return made;
}

inline Made make_phi3(Rng& rng) {
  Made made;
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, {.heads = 4, .kv_heads = 2, .dim = 8}, false);
    p.norm = p.keys_norm = random_norm(rng, Kind::kRms, p.width, false);
    const Matrix v = random_matrix(rng, 16, p.width);
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    made.add(at + "self_attn.qkv_proj.weight", stacked({&p.q, &p.k, &v}));
    made.add_norm(at + "input_layernorm", p.norm);
    made.layers.push_back(naive_of(p, inv_sqrt(p.dim)));
    set_rotary(made.layers.back(), 6, 10'000, false);
  }
  made.config = {{"model_type", "phi3"},     {"num_hidden_layers", 2},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"hidden_size", 24},        {"partial_rotary_factor", 0.75},
                 {"rope_theta", 10000.0},    {"max_position_embeddings", 64}};
  return made;
}

inline Made make_vit(Rng& rng) {
  Made made;
  for (int layer = 0; layer < 2; ++layer) {
    Projections p = random_projections(rng, {.heads = 3, .kv_heads = 3}, true);
    p.norm = p.keys_norm = random_norm(rng, Kind::kLayer, p.width, true);
    const std::string at = "vit.encoder.layer." + std::to_string(layer) + ".";
    made.add(at + "attention.attention.query.weight", p.q);
    made.add(at + "attention.attention.query.bias", p.q_bias);
    made.add(at + "attention.attention.key.weight", p.k);
    made.add(at + "attention.attention.key.bias", p.k_bias);
    made.add_norm(at + "layernorm_before", p.norm);
    made.layers.push_back(naive_of(p, inv_sqrt(p.dim)));
  }
  made.config = {{"model_type", "vit"},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 3},
                 {"image_size", 32},
                 {"patch_size", 4}};
  return made;
}

// Keys have no bias; cross-attention's come from the encoder's last norm.
inline Made make_whisper(Rng& rng) {
  Made made;
  const Projections shape{.heads = 3, .kv_heads = 3};
  const NaiveNorm encoded = random_norm(rng, Kind::kLayer, shape.width, true);
  made.add_norm("model.encoder.layer_norm", encoded);
  std::map<std::string, std::vector<Naive>> by_kind;
  for (int layer = 0; layer < 2; ++layer)
    for (const std::string kind : {"encoder", "decoder", "cross"}) {
      Projections p = random_projections(rng, shape, true);
      p.k_bias.clear();
      p.norm = random_norm(rng, Kind::kLayer, p.width, true);
      p.keys_norm = kind == "cross" ? encoded : p.norm;
      const std::string at = std::string("model.") + (kind == "encoder" ? "encoder" : "decoder") + ".layers." +
                             std::to_string(layer) + ".";
      const std::string name = kind == "cross" ? "encoder_attn" : "self_attn";
      made.add(at + name + ".q_proj.weight", p.q);
      made.add(at + name + ".q_proj.bias", p.q_bias);
      made.add(at + name + ".k_proj.weight", p.k);
      made.add_norm(at + name + "_layer_norm", p.norm);
      by_kind[kind].push_back(naive_of(p, inv_sqrt(p.dim)));
      by_kind[kind].back().kind = kind;
    }
  for (const std::string kind : {"encoder", "decoder", "cross"})
    made.layers.insert(made.layers.end(), by_kind[kind].begin(), by_kind[kind].end());
  made.config = {{"model_type", "whisper"},      {"encoder_layers", 2},          {"decoder_layers", 2},
                 {"encoder_attention_heads", 3}, {"decoder_attention_heads", 3}, {"max_source_positions", 64},
                 {"max_target_positions", 32}};
  return made;
}

// Nothing is divided: the scale is 1.
inline Made make_t5(Rng& rng) {
  Made made;
  const Projections shape{.heads = 3, .kv_heads = 3};
  const NaiveNorm encoded = random_norm(rng, Kind::kRms, shape.width, false);
  made.add_norm("encoder.final_layer_norm", encoded);
  std::map<std::string, std::vector<Naive>> by_kind;
  for (int layer = 0; layer < 2; ++layer)
    for (const std::string kind : {"encoder", "decoder", "cross"}) {
      Projections p = random_projections(rng, shape, false);
      p.norm = random_norm(rng, Kind::kRms, p.width, false);
      p.keys_norm = kind == "cross" ? encoded : p.norm;
      const std::string at = std::string(kind == "encoder" ? "encoder" : "decoder") + ".block." +
                             std::to_string(layer) + ".layer." + (kind == "cross" ? "1." : "0.");
      const std::string name = kind == "cross" ? "EncDecAttention" : "SelfAttention";
      made.add(at + name + ".q.weight", p.q);
      made.add(at + name + ".k.weight", p.k);
      made.add_norm(at + "layer_norm", p.norm);
      by_kind[kind].push_back(naive_of(p, 1));
      by_kind[kind].back().kind = kind;
    }
  for (const std::string kind : {"encoder", "decoder", "cross"})
    made.layers.insert(made.layers.end(), by_kind[kind].begin(), by_kind[kind].end());
  made.config = {{"model_type", "t5"}, {"num_layers", 2}, {"num_heads", 3},
                 {"d_kv", 8},          {"d_model", 24},   {"n_positions", 64}};
  return made;
}

/// Orthonormal rows, by Gram and Schmidt: what they make of a normalised vector is isotropic, and rows do not
/// correlate.
inline Matrix orthonormal(Rng& rng, std::int64_t rows, std::int64_t width) {
  Matrix out{rows, width, Vector(static_cast<std::size_t>(rows * width))};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) out.at(r, i) = rng.normal();
    for (int again = 0; again < 2; ++again)
      for (std::int64_t s = 0; s < r; ++s) {
        double along = 0;
        for (std::int64_t i = 0; i < width; ++i) along += out.at(r, i) * out.at(s, i);
        for (std::int64_t i = 0; i < width; ++i) out.at(r, i) -= along * out.at(s, i);
      }
    double size = 0;
    for (std::int64_t i = 0; i < width; ++i) size += out.at(r, i) * out.at(r, i);
    for (std::int64_t i = 0; i < width; ++i) out.at(r, i) /= std::sqrt(size);
  }
  return out;
}

// q = W_qb·norm(A_q·x) or W_q·x; k = [W_kvb's first rows]·norm(A_kv·x) and, turned, rows that all heads share. The way
// down is orthonormal and the input norm has no gain, so that latents are isotropic: what the audit assumes of them.
inline Made make_deepseek(Rng& rng, bool narrow_queries) {
  Made made;
  constexpr std::int64_t kHeads = 3, kStill = 6, kTurning = 4, kValues = 5, kWidth = 32, kLatent = 12,
                         kQueryLatent = 14, kDim = kStill + kTurning;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".self_attn.";
    const Matrix down = orthonormal(rng, kLatent + kTurning, kWidth),
                 up = random_matrix(rng, kHeads * (kStill + kValues), kLatent);
    const Vector kv_gain = random_vector(rng, kLatent, 1, 0.3), q_gain = random_vector(rng, kQueryLatent, 1, 0.3);
    const Matrix q_down = orthonormal(rng, kQueryLatent, kWidth),
                 q_up = random_matrix(rng, kHeads * kDim, narrow_queries ? kQueryLatent : kWidth);
    made.add("model.layers." + std::to_string(layer) + ".input_layernorm.weight", Vector(kWidth, 1.0));
    made.add(at + "kv_a_proj_with_mqa.weight", down);
    made.add(at + "kv_a_layernorm.weight", kv_gain);
    made.add(at + "kv_b_proj.weight", up);
    made.add(at + (narrow_queries ? "q_b_proj.weight" : "q_proj.weight"), q_up);
    if (narrow_queries) {
      made.add(at + "q_a_proj.weight", q_down);
      made.add(at + "q_a_layernorm.weight", q_gain);
    }
    Naive n;
    n.heads = n.kv_heads = kHeads;
    n.dim = kDim;
    n.scale = inv_sqrt(kDim);
    for (std::int64_t i = 0; i < kTurning / 2; ++i) {  // behind the others, interleaved
      n.pairs.emplace_back(kStill + 2 * i, kStill + 2 * i + 1);
      n.frequencies.push_back(std::pow(10'000, -2.0 * static_cast<double>(i) / kTurning));
    }
    n.queries = [=](Rng& r) {
      const Vector x = rms_normalised(normal_vector(r, kWidth));
      return times(q_up, narrow_queries ? NaiveNorm{Kind::kRms, q_gain, {}}(times(q_down, x)) : x);
    };
    n.keys = [=](Rng& r) {
      const Vector all = times(down, rms_normalised(normal_vector(r, kWidth)));
      const Vector wide = times(up, NaiveNorm{Kind::kRms, kv_gain, {}}(rows_of(all, 0, kLatent)));
      Vector k;
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const Vector still = rows_of(wide, h * (kStill + kValues), kStill), turning = rows_of(all, kLatent, kTurning);
        k = stacked({&k, &still, &turning});
      }
      return k;
    };
    made.layers.push_back(std::move(n));
  }
  made.config = {
      {"model_type", "deepseek_v3"},  {"num_hidden_layers", 2}, {"num_attention_heads", 3}, {"v_head_dim", 5},
      {"qk_rope_head_dim", 4},        {"qk_nope_head_dim", 6},  {"kv_lora_rank", 12},       {"rope_theta", 10000},
      {"max_position_embeddings", 64}};
  return made;
}

}  // namespace rootdk::audit
