// How a checkpoint stores numbers: one by one, or in blocks that share a scale.
#pragma once

#include <cstdint>
#include <string_view>

#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk::checkpoint {

enum class Encoding : std::uint8_t {
  // One by one.
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  // GGUF's blocks that can be dequantised.
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  // Listed, but no numbers are given: they need scales kept in other tensors, tables, or a type that rootdk has not.
  kC64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF6E2M3,
  kF6E3M2,
  kF4,
  kQ2_K,
  kQ3_K,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
};
inline constexpr int kEncodings = static_cast<int>(Encoding::kQ1_0) + 1;

struct EncodingTraits {
  std::string_view name;          ///< as safetensors or GGUF spell it: "BF16", "Q4_K"
  std::int32_t block_values = 1;  ///< numbers in a block; a GGUF row is a whole number of blocks
  std::int32_t block_bytes = 0;
  bool readable = false;  ///< whether read_f32 and read_f64 can make numbers of it
};

ROOTDK_API const EncodingTraits& traits(Encoding encoding);

/// The encoding of numbers that lie in memory as T.
template <class T>
inline constexpr Encoding kEncodingOf = [] {
  static_assert(sizeof(T) == 0, "no encoding for this type");
  return Encoding::kF32;
}();
template <>
inline constexpr Encoding kEncodingOf<double> = Encoding::kF64;
template <>
inline constexpr Encoding kEncodingOf<float> = Encoding::kF32;
template <>
inline constexpr Encoding kEncodingOf<Float16> = Encoding::kF16;
template <>
inline constexpr Encoding kEncodingOf<BFloat16> = Encoding::kBF16;
template <>
inline constexpr Encoding kEncodingOf<std::int64_t> = Encoding::kI64;
template <>
inline constexpr Encoding kEncodingOf<std::int32_t> = Encoding::kI32;
template <>
inline constexpr Encoding kEncodingOf<std::int16_t> = Encoding::kI16;
template <>
inline constexpr Encoding kEncodingOf<std::int8_t> = Encoding::kI8;
template <>
inline constexpr Encoding kEncodingOf<std::uint64_t> = Encoding::kU64;
template <>
inline constexpr Encoding kEncodingOf<std::uint32_t> = Encoding::kU32;
template <>
inline constexpr Encoding kEncodingOf<std::uint16_t> = Encoding::kU16;
template <>
inline constexpr Encoding kEncodingOf<std::uint8_t> = Encoding::kU8;

}  // namespace rootdk::checkpoint
