// From stored bytes to numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.h"
#include "rootdk/checkpoint/tensor_info.h"

namespace rootdk::checkpoint {

/// Exact. Without subnormal f32 on the way, so it also holds where the machine flushes those to zero; without a branch,
/// so that loops over it become vectors.
inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::int32_t magnitude = half & 0x7fff;
  // All bits set where the magnitude is subnormal, or infinite or not a number.
  const auto small = static_cast<std::uint32_t>((magnitude - 0x400) >> 31),
             large = static_cast<std::uint32_t>((0x7bff - magnitude) >> 31);
  const auto subnormal = base::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  // The bias goes from 15 to 127, and an exponent of 31 all the way to 255.
  const std::uint32_t normal = (static_cast<std::uint32_t>(magnitude) << 13) + (112u << 23) + (large & 112u << 23);
  return base::bit_cast<float>(sign | (small & subnormal) | (~small & normal));
}

inline float bfloat_to_float(std::uint16_t bits) {
  return base::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// `count` values, whole blocks of a readable encoding, rounded to nearest.
void decode(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count, float* out);
void decode(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count, double* out);

/// Whole numbers and booleans. Stops at a value beyond int64 and gives its index; otherwise `count`.
std::int64_t decode_whole(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count,
                          std::int64_t* out);

constexpr bool is_whole(Encoding encoding) { return encoding >= Encoding::kI64 && encoding <= Encoding::kBool; }

}  // namespace rootdk::checkpoint
