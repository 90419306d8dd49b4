// The scale c in softmax(c·QKᵀ)V: the number this library is named after. Every rule that multiplies q·k lives here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "rootdk/export.h"

namespace rootdk {

/// Which number multiplies q·k, before anything else happens to the score.
struct Scale {
  enum class Rule : std::uint8_t {
    kNone,       ///< c = 1: scores spread as √d_k
    kInvSqrtDk,  ///< c = 1/√d_k: unit variance for unit-variance q and k
    kInvDk,      ///< c = 1/d_k: scores shrink as 1/√d_k
    kConstant,   ///< c = value
    kPerHead,    ///< c = head_values[query head]
  };

  Rule rule = Rule::kInvSqrtDk;
  double value = 1;                        ///< kConstant only
  std::span<const float> head_values = {};  ///< kPerHead only; one per query head, not owned

  static constexpr Scale none() { return {Rule::kNone, 1, {}}; }
  static constexpr Scale inv_sqrt_dk() { return {Rule::kInvSqrtDk, 1, {}}; }
  static constexpr Scale inv_dk() { return {Rule::kInvDk, 1, {}}; }
  static constexpr Scale constant(double c) { return {Rule::kConstant, c, {}}; }
  static constexpr Scale per_head(std::span<const float> c) { return {Rule::kPerHead, 1, c}; }

  /// The factor for one query head.
  ROOTDK_API double factor(std::int64_t head, std::int64_t dim_qk) const;

  /// "1/sqrt(d_k)", "constant 0.125", "per head": for people.
  ROOTDK_API std::string describe() const;
};

}  // namespace rootdk
