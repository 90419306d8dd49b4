// The scale c in softmax(c·QKᵀ)V: the number this library is named after. Every rule that multiplies q·k lives here, as
// a product of three parts:
//
//   c = rule (one per head)  ×  YaRN (a constant)  ×  length rule (one per query: how long is its context?)
//
// Rules that change q and k before the product are in rootdk/qk_norm.h, those that change weights in
// rootdk/weight_rules.h, those that look at the data first in rootdk/adaptive.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "rootdk/export.h"

namespace rootdk {

/// What the length rules know of a query.
struct ScaleRow {
  std::int64_t keys = 1;      ///< n: keys that causal masks, windows, key lengths and documents let it see
  std::int64_t position = 0;  ///< of the query among the keys (Mask::diagonal), from the start of its document
};

/// What Scale::parse understands.
struct ScaleName {
  std::string_view name;         ///< "ssmax"
  std::string_view parameters;   ///< "(a[, b])", or nothing
  std::string_view description;  ///< one line
};

/// Which number multiplies q·k, before anything else happens to the score.
struct Scale {
  enum class Rule : std::uint8_t {
    kNone,          ///< c = 1: scores spread as √d_k
    kInvSqrtDk,     ///< c = 1/√d_k: unit variance for unit-variance q and k
    kInvDk,         ///< c = 1/d_k: scores shrink as 1/√d_k
    kConstant,      ///< c = value
    kPerHead,       ///< c = head_values[query head]
    kAlphaOverDk,   ///< c = value/d_k: muP; α = √d_k of the smallest model is 1/√d_k there
    kUnitVariance,  ///< c = 1/(√d_k·σ_q·σ_k): unit variance for q and k of those standard deviations and mean 0
  };

  /// Sharper softmax for longer contexts: else a fixed spread of scores is spread over ever more keys.
  enum class Length : std::uint8_t {
    kNone,              ///< × 1
    kLogN,              ///< × (a·ln n + b): SSMax (arXiv 2501.19399); a and b may be learned, per head
    kEntropyInvariant,  ///< × ln n/ln 512 (Su)
    kLlama4,            ///< × (1 + 0.1·ln(1 + ⌊(position + 1)/8192⌋))
  };

  Rule rule = Rule::kInvSqrtDk;
  double value = 1;                         ///< kConstant's c, kAlphaOverDk's α
  std::span<const float> head_values = {};  ///< kPerHead only; one per query head, not owned
  double sigma_q = 1, sigma_k = 1;          ///< kUnitVariance only
  double yarn = 1;  ///< YaRN: context extended so many times; × (0.1·ln yarn + 1)²; 1 means off
  Length length = Length::kNone;
  double log_n_gain = 1, log_n_offset = 0;   ///< kLogN's a and b for every head …
  std::span<const float> head_gains = {};    ///< … or a per query head, not owned; empty: log_n_gain
  std::span<const float> head_offsets = {};  ///< … and b likewise; empty: log_n_offset

  static constexpr Scale none() { return {Rule::kNone}; }
  static constexpr Scale inv_sqrt_dk() { return {Rule::kInvSqrtDk}; }
  static constexpr Scale inv_dk() { return {Rule::kInvDk}; }
  static constexpr Scale constant(double c) { return {Rule::kConstant, c}; }
  static constexpr Scale per_head(std::span<const float> c) { return {Rule::kPerHead, 1, c}; }
  static constexpr Scale alpha_over_dk(double alpha) { return {Rule::kAlphaOverDk, alpha}; }
  static constexpr Scale unit_variance(double sigma_q, double sigma_k) {
    return {Rule::kUnitVariance, 1, {}, sigma_q, sigma_k};
  }

  /// The same with one part more. A part that is there already is refused: two length rules would correct twice.
  ROOTDK_API Scale with_yarn(double extension) const;
  ROOTDK_API Scale with_ssmax(double gain, double offset = 0) const;
  ROOTDK_API Scale with_ssmax(std::span<const float> gains, std::span<const float> offsets = {}) const;
  ROOTDK_API Scale with_entropy_invariance() const;
  ROOTDK_API Scale with_llama4_temperature() const;

  /// c depends on the query, not only on its head.
  constexpr bool by_row() const { return length != Length::kNone; }
  /// The length rule counts visible keys, so a mask that is only known key by key (`allowed`, a bias) does not go with
  /// it.
  constexpr bool counts_keys() const { return length == Length::kLogN || length == Length::kEntropyInvariant; }

  /// rule × YaRN for one query head: all of c unless there is a length rule.
  ROOTDK_API double factor(std::int64_t head, std::int64_t dim_qk) const;
  /// The length rule's part of c for one query. A query that sees nothing counts as seeing one key.
  ROOTDK_API double length_factor(std::int64_t head, const ScaleRow& row) const;
  /// c.
  double factor(std::int64_t head, std::int64_t dim_qk, const ScaleRow& row) const {
    return factor(head, dim_qk) * length_factor(head, row);
  }

  /// d c / d (what may be learned), for one query.
  struct Slopes {
    double rule = 1;          ///< by the rule's own factor: head_values, say
    double log_n_gain = 0;    ///< by a
    double log_n_offset = 0;  ///< by b
  };
  ROOTDK_API Slopes slopes(std::int64_t head, std::int64_t dim_qk, const ScaleRow& row) const;

  /// "1/√d_k", "constant 0.125", "one per head": for people.
  ROOTDK_API std::string describe() const;

  /// "sqrt_dk", "dk(8)", "sqrt_dk*ssmax(0.43)": parts joined by *; without a rule among them it is sqrt_dk. Throws
  /// Error for anything else and says what is known. Arrays are yours, so what has one per head has a name but cannot
  /// be parsed.
  ROOTDK_API static Scale parse(std::string_view text);
  /// parse(name()) is this scale again, unless it holds an array.
  ROOTDK_API std::string name() const;
  /// Every part that parse knows.
  ROOTDK_API static std::span<const ScaleName> names();
};

}  // namespace rootdk
