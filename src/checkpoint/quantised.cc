// Q4_0 to Q8_0: 32 values with one f16 scale d, and a minimum m in the _1 kinds.
// Q4_K and Q5_K: 256 values in 8 groups of 32 with 6-bit scales and minima, which d and dmin (f16) scale.
// Q6_K: 256 values in 16 groups of 16 with 8-bit scales, which d scales.
// Quants of 4 bits share a byte with those 16 (or, in the K kinds, 32) places further on; fifth and sixth bits lie
// apart.
#include "checkpoint/quantised.h"

#include <cstdint>
#include <cstring>

#include "checkpoint/decode.h"
#include "rootdk/error.h"

namespace rootdk::checkpoint {

namespace {

float half_at(const std::byte* in) {
  std::uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return half_to_float(bits);
}

std::uint32_t byte_at(const std::byte* in, int i) { return std::to_integer<std::uint32_t>(in[i]); }

// d [f16], quants [32 × i8]
void q8_0(const std::byte* in, float* out) {
  const float d = half_at(in);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(in[2 + i]));
}

// d [f16], quants [16]
void q4_0(const std::byte* in, float* out) {
  const float d = half_at(in);
  for (int i = 0; i < 16; ++i) {
    const auto pair = static_cast<std::int32_t>(byte_at(in + 2, i));
    out[i] = d * static_cast<float>((pair & 15) - 8);
    out[i + 16] = d * static_cast<float>((pair >> 4) - 8);
  }
}

// d [f16], m [f16], quants [16]
void q4_1(const std::byte* in, float* out) {
  const float d = half_at(in), m = half_at(in + 2);
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t pair = byte_at(in + 4, i);
    out[i] = d * static_cast<float>(pair & 15) + m;
    out[i + 16] = d * static_cast<float>(pair >> 4) + m;
  }
}

// Of a 5-bit block: bit i of `high` is the fifth of value i.
struct Five {
  std::uint32_t low, high;
};
Five five_at(std::uint32_t high, std::uint32_t pair, int i) {
  return {(pair & 15) | (high >> i & 1) << 4, pair >> 4 | (high >> (i + 16) & 1) << 4};
}
std::uint32_t word_at(const std::byte* in) {
  std::uint32_t word;
  std::memcpy(&word, in, sizeof(word));
  return word;
}

// d [f16], fifth bits [u32], quants [16]
void q5_0(const std::byte* in, float* out) {
  const float d = half_at(in);
  const std::uint32_t high = word_at(in + 2);
  for (int i = 0; i < 16; ++i) {
    const Five five = five_at(high, byte_at(in + 6, i), i);
    out[i] = d * static_cast<float>(static_cast<std::int32_t>(five.low) - 16);
    out[i + 16] = d * static_cast<float>(static_cast<std::int32_t>(five.high) - 16);
  }
}

// d [f16], m [f16], fifth bits [u32], quants [16]
void q5_1(const std::byte* in, float* out) {
  const float d = half_at(in), m = half_at(in + 2);
  const std::uint32_t high = word_at(in + 4);
  for (int i = 0; i < 16; ++i) {
    const Five five = five_at(high, byte_at(in + 8, i), i);
    out[i] = d * static_cast<float>(five.low) + m;
    out[i + 16] = d * static_cast<float>(five.high) + m;
  }
}

// The 12 bytes of scales and minima of the 8 groups. The first four of each have 6 bits of a byte of their own; the
// others have their low 4 bits in the last four bytes, and the upper 2 in the bits that the first four leave.
struct GroupScale {
  std::uint32_t scale, minimum;
};
GroupScale group_scale(const std::byte* packed, int group) {
  if (group < 4) return {byte_at(packed, group) & 63, byte_at(packed, group + 4) & 63};
  const std::uint32_t both = byte_at(packed, group + 4);
  return {(both & 15) | (byte_at(packed, group - 4) >> 6) << 4, both >> 4 | (byte_at(packed, group) >> 6) << 4};
}

// Groups 2p and 2p + 1 share the 32 bytes p of quants; bit g of fifth-bit byte i belongs to value i of group g.
template <bool kFifthBits>
void q45_k(const std::byte* in, float* out) {
  const float d = half_at(in), dmin = half_at(in + 2);
  const std::byte* const scales = in + 4;
  const std::byte* const fifth = in + 16;
  const std::byte* const quants = in + (kFifthBits ? 48 : 16);
  for (int group = 0; group < 8; ++group) {
    const GroupScale packed = group_scale(scales, group);
    const float scale = d * static_cast<float>(packed.scale), minimum = dmin * static_cast<float>(packed.minimum);
    const std::byte* const pairs = quants + 32 * (group / 2);
    const int shift = 4 * (group % 2);
    for (int i = 0; i < 32; ++i) {
      std::uint32_t quant = byte_at(pairs, i) >> shift & 15;
      if constexpr (kFifthBits) quant |= (byte_at(fifth, i) >> group & 1) << 4;
      out[32 * group + i] = scale * static_cast<float>(quant) - minimum;
    }
  }
}

// Low 4 bits [128], upper 2 bits [64], scales [16 × i8], d [f16]. Each half of the block is four runs of 32 values:
// runs 0 and 2 are the low and high nibbles of the first 32 bytes, runs 1 and 3 of the next; run r has bits 2r and 2r +
// 1 of the upper bytes.
void q6_k(const std::byte* in, float* out) {
  const float d = half_at(in + 208);
  for (int half = 0; half < 2; ++half)
    for (int run = 0; run < 4; ++run) {
      const std::byte* const low = in + 64 * half + 32 * (run % 2);
      const std::byte* const high = in + 128 + 32 * half;
      const std::byte* const scales = in + 192 + 8 * half + 2 * run;
      for (int group = 0; group < 2; ++group) {
        const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[group]));
        for (int i = 16 * group; i < 16 * group + 16; ++i) {
          const std::uint32_t quant = (byte_at(low, i) >> (4 * (run / 2)) & 15) | (byte_at(high, i) >> (2 * run) & 3)
                                                                                      << 4;
          out[128 * half + 32 * run + i] = scale * static_cast<float>(static_cast<std::int32_t>(quant) - 32);
        }
      }
    }
}

}  // namespace

Dequantiser dequantiser_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ8_0: return q8_0;
    case Encoding::kQ4_0: return q4_0;
    case Encoding::kQ4_1: return q4_1;
    case Encoding::kQ5_0: return q5_0;
    case Encoding::kQ5_1: return q5_1;
    case Encoding::kQ4_K: return q45_k<false>;
    case Encoding::kQ5_K: return q45_k<true>;
    case Encoding::kQ6_K: return q6_k;
    default: throw Error(ErrorCode::kInternal, "an encoding that is not readable was to be dequantised");
  }
}

}  // namespace rootdk::checkpoint
