// Rounding of double to f16 and bf16, ties to even, and back; names of dtypes.
#include "rootdk/tensor.h"

#include <algorithm>
#include <cmath>

#include "base/bits.h"

namespace rootdk {

namespace {

// Rounds to a grid of `digits` significant bits with smallest normal exponent `min_exponent`, ties to even. The sum is
// exact in double because both storage formats have far fewer digits.
double round_to_format(double value, int digits, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  return std::nearbyint(value / unit) * unit;
}

}  // namespace

Float16 to_float16(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  const double magnitude = std::fabs(round_to_format(value, 11, -14));
  if (magnitude >= 65536) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  if (magnitude < std::ldexp(1.0, -14))  // subnormal: a multiple of 2^-24
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::ldexp(magnitude, 24)))};
  const int exponent = std::ilogb(magnitude);
  const auto mantissa = static_cast<std::uint16_t>(std::ldexp(magnitude, 10 - exponent)) & 0x3ff;
  return {static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) | mantissa)};
}

BFloat16 to_bfloat16(double value) {
  // Through f32 would round twice; the format shares f32's exponents, so round first and convert exactly.
  const auto rounded = static_cast<float>(round_to_format(value, 8, -126));
  const auto bits = base::bit_cast<std::uint32_t>(rounded);
  return {static_cast<std::uint16_t>((bits >> 16) | (std::isnan(value) ? 0x40 : 0))};
}

float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return base::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  // Shifting the mantissa into place and scaling by 2^112 re-biases the exponent and normalises subnormals.
  const float scaled = base::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return base::bit_cast<float>(sign | base::bit_cast<std::uint32_t>(scaled));
}

float to_float(BFloat16 value) { return base::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF64: return "f64";
    case DType::kBool: return "bool";
  }
  return "unknown";
}

}  // namespace rootdk
