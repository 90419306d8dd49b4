// Every encoding to f32, f64 or i64, in either byte order; blocks of quants go through quantised.cc.
#include "checkpoint/decode.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>

#include "base/bits.h"
#include "checkpoint/quantised.h"

namespace rootdk::checkpoint {

namespace {

template <class T>
T load(const std::byte* in) {
  T value;
  std::memcpy(&value, in, sizeof(T));
  return value;
}

template <class T>
T load_swapped(const std::byte* in) {
  std::array<std::byte, sizeof(T)> bytes;
  std::reverse_copy(in, in + sizeof(T), bytes.begin());
  return base::bit_cast<T>(bytes);
}

// T is what lies in the file; `make` turns one into a number.
template <class T, class Out, class Make>
void each(ByteOrder order, const std::byte* in, std::int64_t count, Out* out, const Make& make) {
  if (order == ByteOrder::kLittle) {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = static_cast<Out>(make(load<T>(in + i * static_cast<std::int64_t>(sizeof(T)))));
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = static_cast<Out>(make(load_swapped<T>(in + i * static_cast<std::int64_t>(sizeof(T)))));
  }
}

struct Same {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};

void decode_blocks(Encoding encoding, const std::byte* in, std::int64_t count, float* out) {
  const EncodingTraits& t = traits(encoding);
  const auto dequantise = dequantiser_of(encoding);
  for (std::int64_t i = 0; i < count / t.block_values; ++i)
    dequantise(in + i * t.block_bytes, out + i * t.block_values);
}

// GGUF dequantises to f32; wider is the same number.
void decode_blocks(Encoding encoding, const std::byte* in, std::int64_t count, double* out) {
  const EncodingTraits& t = traits(encoding);
  const auto dequantise = dequantiser_of(encoding);
  std::array<float, kLargestBlock> block;
  for (std::int64_t i = 0; i < count / t.block_values; ++i) {
    dequantise(in + i * t.block_bytes, block.data());
    std::copy_n(block.data(), t.block_values, out + i * t.block_values);
  }
}

template <class Out>
void decode_to(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count, Out* out) {
  switch (encoding) {
    case Encoding::kF64: return each<double>(order, in, count, out, Same());
    case Encoding::kF32: return each<float>(order, in, count, out, Same());
    case Encoding::kF16:
      return each<std::uint16_t>(order, in, count, out, [](std::uint16_t bits) { return half_to_float(bits); });
    case Encoding::kBF16:
      return each<std::uint16_t>(order, in, count, out, [](std::uint16_t bits) { return bfloat_to_float(bits); });
    case Encoding::kI64: return each<std::int64_t>(order, in, count, out, Same());
    case Encoding::kI32: return each<std::int32_t>(order, in, count, out, Same());
    case Encoding::kI16: return each<std::int16_t>(order, in, count, out, Same());
    case Encoding::kI8: return each<std::int8_t>(order, in, count, out, Same());
    case Encoding::kU64: return each<std::uint64_t>(order, in, count, out, Same());
    case Encoding::kU32: return each<std::uint32_t>(order, in, count, out, Same());
    case Encoding::kU16: return each<std::uint16_t>(order, in, count, out, Same());
    case Encoding::kU8: return each<std::uint8_t>(order, in, count, out, Same());
    case Encoding::kBool:
      return each<std::uint8_t>(order, in, count, out, [](std::uint8_t byte) { return byte != 0 ? 1 : 0; });
    default: break;
  }
  if constexpr (std::floating_point<Out>) decode_blocks(encoding, in, count, out);
}

}  // namespace

void decode(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count, float* out) {
  decode_to(encoding, order, in, count, out);
}

void decode(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count, double* out) {
  decode_to(encoding, order, in, count, out);
}

std::int64_t decode_whole(Encoding encoding, ByteOrder order, const std::byte* in, std::int64_t count,
                          std::int64_t* out) {
  decode_to(encoding, order, in, count, out);
  if (encoding != Encoding::kU64) return count;
  return std::find_if(out, out + count, [](std::int64_t value) { return value < 0; }) - out;  // the top bit was set
}

}  // namespace rootdk::checkpoint
