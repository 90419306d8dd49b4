// Initialisers. The scale 1/√d_k is right only for q and k of unit variance, and that is decided here: an initialiser
// of standard deviation σ_w turns D unit-variance inputs into q of variance D·σ_w², so Var(q·k) = d_k·(D·σ_w²)².
//
// Numbers come from Philox4x32-10 and Box–Muller in double: element i is a pure function of (seed, stream, i), the same
// on every machine up to the last bit of its libm.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/export.h"
#include "rootdk/nn/linear.h"

namespace rootdk::nn {

/// Inputs that feed one output, and outputs that one input feeds. Given apart from the array's shape because a
/// projection stored packed (W_q, W_k, W_v as one 3D×D matrix) has fans {D, 3D} for all of its parts.
struct Fans {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// Which numbers: independent, mean 0, the standard deviation of a rule times the gain.
struct Init {
  enum class Rule : std::uint8_t {
    kFixed,   ///< fixed_std
    kXavier,  ///< √(2 / (fan_in + fan_out)): Glorot & Bengio 2010; 1/√D for a square projection
    kLeCun,   ///< 1/√fan_in: unit variance stays unit variance
    kHe,      ///< √(2 / fan_in): the same behind a ReLU
  };
  enum class Distribution : std::uint8_t {
    kNormal,
    kUniform,  ///< on ±√3·std
  };

  Rule rule = Rule::kLeCun;
  Distribution distribution = Distribution::kNormal;
  double gain = 1;       ///< multiplies the standard deviation
  double fixed_std = 1;  ///< kFixed only

  static constexpr Init xavier_normal(double gain = 1) { return {Rule::kXavier, Distribution::kNormal, gain, 1}; }
  static constexpr Init xavier_uniform(double gain = 1) { return {Rule::kXavier, Distribution::kUniform, gain, 1}; }
  static constexpr Init lecun_normal(double gain = 1) { return {Rule::kLeCun, Distribution::kNormal, gain, 1}; }
  static constexpr Init lecun_uniform(double gain = 1) { return {Rule::kLeCun, Distribution::kUniform, gain, 1}; }
  static constexpr Init he_normal(double gain = 1) { return {Rule::kHe, Distribution::kNormal, gain, 1}; }
  static constexpr Init he_uniform(double gain = 1) { return {Rule::kHe, Distribution::kUniform, gain, 1}; }
  static constexpr Init normal(double std, double gain = 1) { return {Rule::kFixed, Distribution::kNormal, gain, std}; }
  static constexpr Init uniform(double std, double gain = 1) {
    return {Rule::kFixed, Distribution::kUniform, gain, std};
  }

  /// Of the numbers it draws. Throws if the rule needs a fan that is not positive.
  ROOTDK_API double standard_deviation(const Fans& fans) const;
};

/// Different streams of one seed are independent: one per array.
struct Seed {
  std::uint64_t value = 0;
  std::uint64_t stream = 0;
};

/// Overwrites every value. In f32 these are the numbers of f64, rounded.
ROOTDK_API void fill(std::span<float> values, const Init& init, const Fans& fans, const Seed& seed);
ROOTDK_API void fill(std::span<double> values, const Init& init, const Fans& fans, const Seed& seed);

/// Weights by the rule with fans {in, out}; a bias becomes zero.
template <class T>
ROOTDK_API void initialise(BasicLinear<T>& layer, const Init& init, const Seed& seed);

}  // namespace rootdk::nn
