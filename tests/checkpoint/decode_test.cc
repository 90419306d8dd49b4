// From stored bytes to numbers: every f16 and bf16, whole numbers in both byte orders, and GGUF's blocks packed here
// from the format's description, in the order of the bytes, where the library goes by the order of the values.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "checkpoint/decode.h"
#include "support/files.h"
#include "support/rng.h"

namespace rootdk::checkpoint {
namespace {

using test::Bytes;

template <class Out>
std::vector<Out> decoded(Encoding encoding, const std::string& bytes, std::int64_t count,
                         ByteOrder order = ByteOrder::kLittle) {
  std::vector<Out> out(static_cast<std::size_t>(count));
  decode(encoding, order, reinterpret_cast<const std::byte*>(bytes.data()), count, out.data());
  return out;
}

// IEEE 754 from its definition: (−1)^s · m · 2^e.
double half_by_definition(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

double bfloat_by_definition(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 7 & 255, mantissa = bits & 127;
  if (exponent == 255) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134));
}

template <class Definition>
void check_every_16_bits(Encoding encoding, const Definition& definition) {
  Bytes little, big;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    little.number(static_cast<std::uint16_t>(bits));
    big.swapped(static_cast<std::uint16_t>(bits));
  }
  const auto f32 = decoded<float>(encoding, little.text(), 65536),
             f32_big = decoded<float>(encoding, big.text(), 65536, ByteOrder::kBig);
  const auto f64 = decoded<double>(encoding, little.text(), 65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = definition(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::isnan(f32[bits]), std::isnan(want)) << bits;
    ASSERT_EQ(std::signbit(f32[bits]), (bits & 0x8000) != 0) << bits;
    if (!std::isnan(want)) {
      ASSERT_EQ(static_cast<double>(f32[bits]), want) << bits;
      ASSERT_EQ(f64[bits], want) << bits;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f32[bits]), std::bit_cast<std::uint32_t>(f32_big[bits])) << bits;
  }
}

TEST(Decode, EveryF16) { check_every_16_bits(Encoding::kF16, half_by_definition); }
TEST(Decode, EveryBF16) { check_every_16_bits(Encoding::kBF16, bfloat_by_definition); }

template <class T>
void check_numbers(Encoding encoding) {
  EXPECT_TRUE(rc::check([&](const std::vector<T>& values) {
    Bytes little, big;
    for (const T value : values) {
      little.number(value);
      big.swapped(value);
    }
    const auto count = static_cast<std::int64_t>(values.size());
    const auto f32 = decoded<float>(encoding, little.text(), count),
               f32_big = decoded<float>(encoding, big.text(), count, ByteOrder::kBig);
    const auto f64 = decoded<double>(encoding, little.text(), count);
    for (std::size_t i = 0; i < values.size(); ++i) {
      RC_ASSERT(f32[i] == static_cast<float>(values[i]));
      RC_ASSERT(f32_big[i] == static_cast<float>(values[i]));
      RC_ASSERT(f64[i] == static_cast<double>(values[i]));
    }
    if constexpr (std::is_integral_v<T>) {
      std::vector<std::int64_t> whole(values.size());
      const std::int64_t fit = decode_whole(encoding, ByteOrder::kBig,
                                            reinterpret_cast<const std::byte*>(big.text().data()), count, whole.data());
      for (std::int64_t i = 0; i < fit; ++i)
        RC_ASSERT(std::cmp_equal(whole[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(i)]));
      if (fit != count) RC_ASSERT(std::cmp_greater(values[static_cast<std::size_t>(fit)], INT64_MAX));
    }
  }));
}

TEST(Decode, Numbers) {
  check_numbers<double>(Encoding::kF64);
  check_numbers<float>(Encoding::kF32);
  check_numbers<std::int64_t>(Encoding::kI64);
  check_numbers<std::int32_t>(Encoding::kI32);
  check_numbers<std::int16_t>(Encoding::kI16);
  check_numbers<std::int8_t>(Encoding::kI8);
  check_numbers<std::uint64_t>(Encoding::kU64);
  check_numbers<std::uint32_t>(Encoding::kU32);
  check_numbers<std::uint16_t>(Encoding::kU16);
  check_numbers<std::uint8_t>(Encoding::kU8);
}

TEST(Decode, BeyondInt64) {
  const std::string bytes =
      Bytes().number(std::uint64_t{7}).number(std::uint64_t{1} << 63).number(std::uint64_t{8}).text();
  std::array<std::int64_t, 3> out = {};
  EXPECT_EQ(
      decode_whole(Encoding::kU64, ByteOrder::kLittle, reinterpret_cast<const std::byte*>(bytes.data()), 3, out.data()),
      1);
}

TEST(Decode, AnyByteThatIsNotZeroIsTrue) {
  EXPECT_EQ(decoded<float>(Encoding::kBool, std::string("\0\1\2\xff", 4), 4), (std::vector<float>{0, 1, 1, 1}));
}

TEST(Encoding, NamesAreUniqueAndSizesPositive) {
  for (int i = 0; i < kEncodings; ++i) {
    const EncodingTraits& one = traits(static_cast<Encoding>(i));
    EXPECT_GT(one.block_bytes, 0) << one.name;
    EXPECT_GT(one.block_values, 0) << one.name;
    for (int j = 0; j < i; ++j) EXPECT_NE(one.name, traits(static_cast<Encoding>(j)).name);
  }
  // The table is in the order of the enumeration.
  EXPECT_EQ(traits(Encoding::kBool).name, "BOOL");
  EXPECT_EQ(traits(Encoding::kQ6_K).name, "Q6_K");
  EXPECT_EQ(traits(Encoding::kF4).name, "F4");
  EXPECT_EQ(traits(Encoding::kIQ4_XS).name, "IQ4_XS");
  EXPECT_EQ(traits(Encoding::kQ1_0).name, "Q1_0");
}

// Blocks -------------------------------------------------------------------------------------------------------------

// What a block means: value v is scale[v]·quant[v] + minimum[v], as reals.
struct Meaning {
  std::string bytes;
  std::vector<double> product, minimum;
};

std::uint16_t random_half(test::Rng& rng) {
  // Any bits; now and then an infinity or NaN, which must spread as in arithmetic.
  return static_cast<std::uint16_t>(rng.next());
}

// Two values in one byte, low nibble first.
char nibbles(int low, int high) { return static_cast<char>((low & 15) | (high & 15) << 4); }

Meaning small_block(Encoding encoding, test::Rng& rng) {
  const bool five = encoding == Encoding::kQ5_0 || encoding == Encoding::kQ5_1;
  const bool has_minimum = encoding == Encoding::kQ4_1 || encoding == Encoding::kQ5_1;
  const std::uint16_t d = random_half(rng), m = random_half(rng);
  std::array<int, 32> quant;
  for (int& q : quant) q = static_cast<int>(rng.integer(0, encoding == Encoding::kQ8_0 ? 255 : five ? 31 : 15));
  Bytes out;
  out.number(d);
  if (has_minimum) out.number(m);
  if (five) {
    std::uint32_t fifth = 0;
    for (std::uint32_t v = 0; v < 32; ++v) fifth |= static_cast<std::uint32_t>(quant[v] >> 4) << v;
    out.number(fifth);
  }
  if (encoding == Encoding::kQ8_0) {
    for (const int q : quant) out.number(static_cast<std::uint8_t>(q));
  } else {
    for (std::size_t byte = 0; byte < 16; ++byte) out.number(nibbles(quant[byte], quant[byte + 16]));
  }
  Meaning meaning = {out.text(), {}, {}};
  for (const int q : quant) {
    const int value = encoding == Encoding::kQ8_0 ? static_cast<std::int8_t>(q) : has_minimum ? q : q - (five ? 16 : 8);
    meaning.product.push_back(half_by_definition(d) * value);
    meaning.minimum.push_back(has_minimum ? half_by_definition(m) : 0);
  }
  return meaning;
}

// Where the bits of scales A … H and minima a … h of groups 0 … 7 stand in the 12 bytes, each from its top bit down.
constexpr std::array<const char*, 12> kScaleBits = {"EEAAAAAA", "FFBBBBBB", "GGCCCCCC", "HHDDDDDD",
                                                    "eeaaaaaa", "ffbbbbbb", "ggcccccc", "hhdddddd",
                                                    "eeeeEEEE", "ffffFFFF", "ggggGGGG", "hhhhHHHH"};

// Lower bits of a number stand in later bytes.
std::string packed_scales(const std::array<int, 8>& scale, const std::array<int, 8>& minimum) {
  std::string bytes(12, '\0');
  std::array<int, 8> scale_used = {}, minimum_used = {};
  for (std::size_t byte = 12; byte-- > 0;)
    for (std::size_t bit = 0; bit < 8; ++bit) {
      const char letter = kScaleBits[byte][7 - bit];
      const bool upper = letter < 'a';
      const auto group = static_cast<std::size_t>(letter - (upper ? 'A' : 'a'));
      const int taken = (upper ? scale_used : minimum_used)[group]++;
      const int value = (upper ? scale : minimum)[group] >> taken & 1;
      bytes[byte] = static_cast<char>(bytes[byte] | value << bit);
    }
  return bytes;
}

Meaning block_45_k(bool five, test::Rng& rng) {
  const std::uint16_t d = random_half(rng), dmin = random_half(rng);
  std::array<int, 8> scale, minimum;
  for (std::size_t g = 0; g < 8; ++g) {
    scale[g] = static_cast<int>(rng.integer(0, 63));
    minimum[g] = static_cast<int>(rng.integer(0, 63));
  }
  std::array<int, 256> quant;
  for (int& q : quant) q = static_cast<int>(rng.integer(0, five ? 31 : 15));
  Bytes out;
  out.number(d).number(dmin).raw(packed_scales(scale, minimum));
  if (five) {
    for (std::size_t byte = 0; byte < 32; ++byte) {
      int bits = 0;
      for (std::size_t group = 0; group < 8; ++group) bits |= (quant[32 * group + byte] >> 4) << group;
      out.number(static_cast<std::uint8_t>(bits));
    }
  }
  for (std::size_t byte = 0; byte < 128; ++byte) {
    const std::size_t first = byte / 32 * 64 + byte % 32;
    out.number(nibbles(quant[first], quant[first + 32]));
  }
  Meaning meaning = {out.text(), {}, {}};
  for (std::size_t v = 0; v < 256; ++v) {
    meaning.product.push_back(half_by_definition(d) * scale[v / 32] * quant[v]);
    meaning.minimum.push_back(-half_by_definition(dmin) * minimum[v / 32]);
  }
  return meaning;
}

Meaning block_6_k(test::Rng& rng) {
  const std::uint16_t d = random_half(rng);
  std::array<int, 16> scale;
  for (int& s : scale) s = static_cast<int>(rng.integer(-128, 127));
  std::array<int, 256> quant;
  for (int& q : quant) q = static_cast<int>(rng.integer(0, 63));
  Bytes out;
  for (std::size_t byte = 0; byte < 128; ++byte) {
    const std::size_t first = byte / 64 * 128 + byte % 64;
    out.number(nibbles(quant[first], quant[first + 64]));
  }
  for (std::size_t byte = 0; byte < 64; ++byte) {
    const std::size_t first = byte / 32 * 128 + byte % 32;
    int bits = 0;
    for (std::size_t pair = 0; pair < 4; ++pair) bits |= (quant[first + 32 * pair] >> 4) << (2 * pair);
    out.number(static_cast<std::uint8_t>(bits));
  }
  for (const int s : scale) out.number(static_cast<std::int8_t>(s));
  out.number(d);
  Meaning meaning = {out.text(), {}, {}};
  for (std::size_t v = 0; v < 256; ++v) {
    meaning.product.push_back(half_by_definition(d) * scale[v / 16] * (quant[v] - 32));
    meaning.minimum.push_back(0);
  }
  return meaning;
}

Meaning random_block(Encoding encoding, test::Rng& rng) {
  switch (encoding) {
    case Encoding::kQ4_K: return block_45_k(false, rng);
    case Encoding::kQ5_K: return block_45_k(true, rng);
    case Encoding::kQ6_K: return block_6_k(rng);
    default: return small_block(encoding, rng);
  }
}

// f16 has 11 bits, scales up to 8 and quants up to 8: scale times d is exact in f32 (19 bits), the product with the
// quant exact or rounded once (25 bits), the sum rounded once: two half ulps, u = 2⁻²⁴ each. The sum here is in double,
// so its own error is 2⁻⁵³ of the terms.
void check_block(Encoding encoding, std::uint64_t seed) {
  test::Rng rng(seed);
  const Meaning meaning = random_block(encoding, rng);
  const EncodingTraits& t = traits(encoding);
  ASSERT_EQ(meaning.bytes.size(), static_cast<std::size_t>(t.block_bytes));
  const auto f32 = decoded<float>(encoding, meaning.bytes, t.block_values);
  const auto f64 = decoded<double>(encoding, meaning.bytes, t.block_values);
  for (std::size_t v = 0; v < f32.size(); ++v) {
    const double want = meaning.product[v] + meaning.minimum[v];
    if (std::isfinite(want)) {
      const double tolerance = 0x1p-24 * (std::fabs(meaning.product[v]) + std::fabs(want)) +
                               0x1p-52 * (std::fabs(meaning.product[v]) + std::fabs(meaning.minimum[v]));
      ASSERT_LE(std::fabs(f32[v] - want), tolerance) << t.name << " value " << v << " seed " << seed;
    } else {
      ASSERT_EQ(std::isnan(f32[v]), std::isnan(want)) << t.name << " value " << v << " seed " << seed;
      if (!std::isnan(want)) {
        ASSERT_EQ(static_cast<double>(f32[v]), want);
      }
    }
    ASSERT_EQ(std::bit_cast<std::uint64_t>(f64[v]), std::bit_cast<std::uint64_t>(static_cast<double>(f32[v])));
  }
}

TEST(Decode, Blocks) {
  for (const Encoding encoding : {Encoding::kQ8_0, Encoding::kQ4_0, Encoding::kQ4_1, Encoding::kQ5_0, Encoding::kQ5_1,
                                  Encoding::kQ4_K, Encoding::kQ5_K, Encoding::kQ6_K})
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      check_block(encoding, seed);
      if (::testing::Test::HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace rootdk::checkpoint
