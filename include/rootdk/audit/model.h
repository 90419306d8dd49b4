// Which tensors of a checkpoint make which heads, and how q and k meet there. Plain data: names, sizes and numbers from
// the configuration, but no weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/theory/head.h"

namespace rootdk::audit {

/// A norm whose gain and bias lie in the checkpoint.
struct NormPlace {
  theory::Norm::Kind kind = theory::Norm::Kind::kNone;
  std::string gain, bias;  ///< tensors; empty: none
  double gain_offset = 0;  ///< 1 where the gain is stored as a difference from 1 (Gemma)
};

/// Rows of a projection [out, in], the same for each head but for where they begin, and what feeds them.
struct Part {
  std::string weight, bias;  ///< tensors; no bias: empty
  bool transposed = false;   ///< the tensor is [in, out] (GPT-2's Conv1D)
  std::int64_t rows = 0;     ///< of one head
  std::int64_t width = 0;    ///< in
  // Head h begins at row first + (h / group)·stride + (h % group)·rows.
  std::int64_t first = 0;
  std::int64_t group = 1;
  std::int64_t stride = 0;
  /// A head's row that comes first; the rows before it come last. For those that keep the rotary components at the end.
  std::int64_t turn = 0;
  NormPlace norm = {};  ///< just before the projection

  std::int64_t row_of(std::int64_t head) const { return first + head / group * stride + head % group * rows; }
};

/// Rotary positions: the leading components turn.
struct Rotary {
  theory::Rotation::Pairing pairing = theory::Rotation::Pairing::kHalfSplit;
  std::vector<double> frequencies;  ///< radians per position, of each pair; empty: no rotary positions
  double magnitude = 1;             ///< what turns is multiplied by this, in q and in k (YaRN, LongRoPE)
  /// LongRoPE: other frequencies for sequences of up to short_length tokens; empty: the same.
  std::vector<double> short_frequencies = {};
  std::int64_t short_length = 0;
};

/// One attention layer.
struct Attention {
  std::string kind = "self";  ///< "self", "encoder", "decoder", "cross"
  std::int64_t layer = 0;     ///< its number among those of its kind
  std::int64_t heads_q = 0, heads_kv = 0, dim_qk = 0;
  std::vector<Part> q, k;              ///< their components in this order; parts of one side do not correlate
  NormPlace q_norm = {}, k_norm = {};  ///< QK-norm, on each head's q and k
  Rotary rotary = {};
  double scale = 1;  ///< what multiplies q·k
  std::optional<double> soft_cap = {};
  std::optional<std::int64_t> window = {};  ///< how many keys a query sees at most
  bool causal = true;
  std::int64_t context = 4096;  ///< how many keys there can be
};

/// y = x·Wᵀ + b: rows first … first + out − 1 of a tensor [out, in].
struct Dense {
  std::string weight, bias;  ///< tensors; no bias: empty
  bool transposed = false;   ///< the tensor is [in, out]
  std::int64_t in = 0, out = 0;
  std::int64_t first = 0;  ///< where several are packed in one tensor

  bool known() const { return !weight.empty(); }
};

enum class Activation : std::uint8_t {
  kSilu,       ///< x·σ(x)
  kGelu,       ///< x·Φ(x)
  kGeluTanh,   ///< the same with Φ approximated by tanh
  kQuickGelu,  ///< x·σ(1.702·x)
  kRelu,
};

/// What a layer does beside its scores. Norms that it has not are of kind kNone.
///   x ← attention_sum_norm(x + attention_out_norm(attention(attention_norm(x))))
///   x ← mlp_sum_norm(x + mlp_out_norm(mlp(mlp_norm(x))))
/// mlp(x) = down(activation(gate(x))∘up(x)), or down(activation(up(x))) without a gate.
struct Block {
  Part v;   ///< of every key head
  Dense o;  ///< of all heads, one behind the other
  NormPlace attention_norm = {}, attention_out_norm = {}, attention_sum_norm = {};
  NormPlace mlp_norm = {}, mlp_out_norm = {}, mlp_sum_norm = {};
  Dense gate = {}, up = {}, down = {};
  Activation activation = Activation::kSilu;
  bool parallel = false;  ///< both start from the same x, and both are added to it (GPT-NeoX)
};

/// All that it takes to run a model: with it, a Model says what becomes of a token.
struct Network {
  std::vector<Block> blocks;  ///< of Model::layers, in their order
  NormPlace final_norm = {};
  double epsilon = 0;  ///< of every norm, QK-norm included
};

/// What a token is before the first layer: (row of tokens)·factor + row of positions + row 0 of token_types, then the
/// norm.
struct Embedding {
  std::string tokens;               ///< tensor [vocabulary, width]; empty: the model begins otherwise (patches, sound)
  std::string positions;            ///< tensor [positions, width], learned; empty: none
  std::int64_t first_position = 0;  ///< the row of position 0: 2 in RoBERTa
  /// RoBERTa: positions count the tokens other than this one, which itself has the row before the first.
  std::optional<std::int64_t> padding = {};
  std::string token_types;  ///< tensor [types, width]; empty: none
  double factor = 1;        ///< √width in Gemma
  NormPlace norm = {};      ///< BERT
  std::int64_t vocabulary = 0, width = 0;

  bool known() const { return !tokens.empty(); }
};

struct Model {
  std::string name;    ///< the file's or directory's
  std::string family;  ///< "llama"
  /// "sqrt_dk": what Scale::parse reads; "constant(…)" where it is a number of the configuration
  std::string scale_rule;
  Embedding embedding;
  std::vector<Attention> layers;
  std::vector<std::string> notes;  ///< what was assumed, or left out
  std::optional<Network> network;  ///< absent: it cannot be run, and why_not_run says why
  std::string why_not_run;
};

}  // namespace rootdk::audit
