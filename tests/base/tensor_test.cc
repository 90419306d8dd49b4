// What every layer stands on: the 16-bit formats, overlap of strided views, the row state, and dropout's random
// numbers.
#include "rootdk/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/dropout.h"
#include "base/overlap.h"
#include "base/philox.h"
#include "base/row_state.h"
#include "engine/kernel_table.h"
#include "support/buffer.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// ---- 16-bit formats.

struct F16 {
  static constexpr int kMantissa = 10, kBias = 15;
  static std::uint16_t narrow(double x) { return to_float16(x).bits; }
  static float widen(std::uint16_t bits) { return to_float(Float16{bits}); }
};
struct Bf16 {
  static constexpr int kMantissa = 7, kBias = 127;
  static std::uint16_t narrow(double x) { return to_bfloat16(x).bits; }
  static float widen(std::uint16_t bits) { return to_float(BFloat16{bits}); }
};

template <class Format>
constexpr std::uint16_t kInfinityBits = static_cast<std::uint16_t>(((1 << (15 - Format::kMantissa)) - 1)
                                                                   << Format::kMantissa);

/// The number that bits stand for, from the definition of the format. Infinity continues the count: it is where the
/// next number would be, which is also where rounding to it begins half a step before.
template <class Format>
double decode(std::uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> Format::kMantissa, mantissa = bits & ((1 << Format::kMantissa) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - Format::kBias - Format::kMantissa)
                    : std::ldexp(mantissa + (1 << Format::kMantissa), exponent - Format::kBias - Format::kMantissa);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Round to nearest by search among all numbers, ties to the even mantissa.
template <class Format>
std::uint16_t nearest(double x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double magnitude = std::fabs(x);
  if (magnitude >= decode<Format>(kInfinityBits<Format>)) return sign | kInfinityBits<Format>;
  std::uint16_t low = 0, high = kInfinityBits<Format>;  // decode(low) <= magnitude < decode(high)
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (decode<Format>(middle) <= magnitude ? low : high) = middle;
  }
  const double half_way = (decode<Format>(low) + decode<Format>(high)) / 2;  // exact in double
  const bool up = magnitude > half_way || (magnitude == half_way && low % 2 == 1);
  return sign | (up ? high : low);
}

template <class Format>
class SixteenBits : public testing::Test {};
using Formats = testing::Types<F16, Bf16>;
TYPED_TEST_SUITE(SixteenBits, Formats);

TYPED_TEST(SixteenBits, EveryPatternMeansWhatTheFormatSaysAndComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = TypeParam::widen(bits);
    const std::uint16_t magnitude = bits & 0x7fff;
    ASSERT_EQ(std::signbit(wide), i >= 0x8000) << i;
    if (magnitude > kInfinityBits<TypeParam>) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_GT(TypeParam::narrow(static_cast<double>(wide)) & 0x7fff, kInfinityBits<TypeParam>) << i;
      continue;
    }
    if (magnitude == kInfinityBits<TypeParam>) ASSERT_TRUE(std::isinf(wide)) << i;
    else ASSERT_EQ(static_cast<double>(wide), decode<TypeParam>(bits)) << i;
    ASSERT_EQ(TypeParam::narrow(static_cast<double>(wide)), bits) << i;
  }
}

TYPED_TEST(SixteenBits, RoundsToNearestTiesToEvenBetweenEveryTwoNeighbours) {
  for (std::uint16_t low = 0; low < kInfinityBits<TypeParam>; ++low) {
    const double a = decode<TypeParam>(low), b = decode<TypeParam>(low + 1), tie = (a + b) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(TypeParam::narrow(tie), even) << low;
    ASSERT_EQ(TypeParam::narrow(-tie), even | 0x8000) << low;
    ASSERT_EQ(TypeParam::narrow(std::nextafter(tie, 0)), low) << low;
    ASSERT_EQ(TypeParam::narrow(std::nextafter(tie, kInf)), low + 1) << low;
    ASSERT_EQ(TypeParam::narrow(std::nextafter(b, 0)), low + 1) << low;
  }
}

TYPED_TEST(SixteenBits, RoundsAnyDoubleAsASearchDoes) {
  Rng rng(1);
  for (int n = 0; n < 200000; ++n) {
    // Any exponent double has, so far beyond both ends of the format as well.
    const double anywhere = std::bit_cast<double>(rng.next());
    const std::int64_t exponent = rng.integer(-TypeParam::kBias - TypeParam::kMantissa - 3, TypeParam::kBias + 3);
    const double within = std::ldexp(2 * rng.uniform() - 1, static_cast<int>(exponent));
    for (const double x : {anywhere, within}) {
      if (std::isnan(x)) continue;
      ASSERT_EQ(TypeParam::narrow(x), nearest<TypeParam>(x)) << x;
    }
  }
  for (const double x :
       {0.0, -0.0, kInf, -kInf, std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min()})
    EXPECT_EQ(TypeParam::narrow(x), nearest<TypeParam>(x)) << x;
}

TYPED_TEST(SixteenBits, NanStaysNan) {
  for (const std::uint64_t payload : {0x7ff8000000000000ull, 0xfff8000000000000ull, 0x7ff0000000000001ull,
                                      0x7ff0000010000000ull, 0xffffffffffffffffull}) {
    const std::uint16_t bits = TypeParam::narrow(std::bit_cast<double>(payload));
    EXPECT_GT(bits & 0x7fff, kInfinityBits<TypeParam>) << std::hex << payload;
    EXPECT_TRUE(std::isnan(TypeParam::widen(bits))) << std::hex << payload;
  }
}

// ---- Overlap.

struct View {
  ConstTensor tensor;
  std::vector<std::int64_t> elements;  ///< first byte of every index, in the order of indices
};

View draw_view(Rng& rng, const std::byte* memory) {
  static constexpr DType kTypes[] = {DType::kBool, DType::kF16, DType::kF32, DType::kF64};
  View view;
  ConstTensor& t = view.tensor;
  t.dtype = kTypes[rng.integer(0, 3)];
  // The middle of the memory, so that no view leaves it; only the addresses matter.
  const std::int64_t start = 2048 + rng.integer(-24, 24) * size_of(t.dtype);
  t.data = memory + start;
  static constexpr std::int64_t kSteps[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 24};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    t.shape[axis] = rng.chance(0.02) ? 0 : rng.integer(1, 4);
    t.strides[axis] = kSteps[rng.integer(rng.chance(0.9), 9)] * (rng.chance(0.25) ? -1 : 1);
  }
  if (rng.chance(0.5)) t.strides[3] = 1;
  if (rng.chance(0.3)) t.strides = row_major(t.shape);
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      for (std::int64_t k = 0; k < t.shape[2]; ++k)
        for (std::int64_t l = 0; l < t.shape[3]; ++l)
          view.elements.push_back(start + (i * t.strides[0] + j * t.strides[1] + k * t.strides[2] + l * t.strides[3]) *
                                              size_of(t.dtype));
  return view;
}

std::set<std::int64_t> bytes_of(const View& view) {
  std::set<std::int64_t> bytes;
  for (const std::int64_t first : view.elements)
    for (std::int64_t byte = 0; byte < size_of(view.tensor.dtype); ++byte) bytes.insert(first + byte);
  return bytes;
}

TEST(Overlap, IsSharingAByte) {
  alignas(64) static const std::byte memory[8192] = {};
  int shared = 0, apart = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    const View a = draw_view(rng, memory), b = draw_view(rng, memory);
    const std::set<std::int64_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool expected =
        std::any_of(bytes_a.begin(), bytes_a.end(), [&](std::int64_t byte) { return bytes_b.contains(byte); });
    ASSERT_EQ(base::overlaps(a.tensor, b.tensor), expected) << "seed " << seed;
    ASSERT_EQ(base::overlaps(b.tensor, a.tensor), expected) << "seed " << seed;
    ++(expected ? shared : apart);
    ConstTensor absent = a.tensor;
    absent.data = nullptr;
    ASSERT_FALSE(base::overlaps(absent, b.tensor));
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(apart, 1000);
}

TEST(Overlap, WithItselfIsTwoIndicesAtOneElement) {
  alignas(64) static const std::byte memory[8192] = {};
  int folded = 0, flat = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    const View view = draw_view(rng, memory);
    const bool expected =
        std::set<std::int64_t>(view.elements.begin(), view.elements.end()).size() < view.elements.size();
    ASSERT_EQ(base::overlaps_itself(view.tensor), expected) << "seed " << seed;
    ++(expected ? folded : flat);
  }
  EXPECT_GT(folded, 1000);
  EXPECT_GT(flat, 1000);
}

// ---- The row state.

constexpr double kU = 0x1p-53;

struct Keys {
  std::vector<double> raw, score;
  double spread = 0;  ///< largest score minus smallest
};

Keys draw_keys(Rng& rng) {
  Keys keys;
  const std::int64_t count = rng.integer(1, 40);
  const double width = rng.log_integer(1, 200), centre = 300 * rng.normal();
  for (std::int64_t n = 0; n < count; ++n) {
    keys.raw.push_back(rng.normal());
    keys.score.push_back(centre + width * rng.normal());
  }
  const auto [low, high] = std::minmax_element(keys.score.begin(), keys.score.end());
  keys.spread = *high - *low;
  return keys;
}

// Every term of the sum is a product of at most one factor e^{m − m'} per step, and is added once per step. A step's
// factor is off by exp's 2u, the product and the addition by u each; rounding m − m' adds u times it, which over all
// steps is u times the spread. First order in u; the last factor is for the rest.
double sum_bound(const Keys& keys, std::size_t steps) {
  return kU * (4 * static_cast<double>(steps) + keys.spread) * (1 + 0x1p-20);
}

/// Largest score, and Σ e^{s − max} in long double.
std::pair<double, long double> exact_sum(const std::vector<double>& score) {
  const double max = *std::max_element(score.begin(), score.end());
  long double sum = 0;
  for (const double s : score) sum += std::exp(static_cast<long double>(s) - static_cast<long double>(max));
  return {max, sum};
}

using State = base::RowState<double>;

State observed(const Keys& keys, std::size_t from, std::size_t to) {
  State state;
  for (std::size_t n = from; n < to; ++n) state.observe(keys.raw[n], keys.score[n]);
  return state;
}

bool same(const State& a, const State& b) {
  return a.max == b.max && a.sum == b.sum && a.raw_max == b.raw_max && a.visible == b.visible;
}

TEST(RowState, HoweverKeysAreCutAndMergedTheStateIsThatOfAllOfThem) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const Keys keys = draw_keys(rng);
    const std::size_t n = keys.score.size();
    const std::size_t i = static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(n)));
    const std::size_t j =
        static_cast<std::size_t>(rng.integer(static_cast<std::int64_t>(i), static_cast<std::int64_t>(n)));
    const State a = observed(keys, 0, i), b = observed(keys, i, j), c = observed(keys, j, n);
    const auto [max, sum] = exact_sum(keys.score);
    const double bound = sum_bound(keys, n + 2);
    for (const State& all :
         {observed(keys, 0, n), merge(merge(a, b), c), merge(a, merge(b, c)), merge(merge(c, a), b)}) {
      EXPECT_EQ(all.max, max);
      EXPECT_EQ(all.raw_max, *std::max_element(keys.raw.begin(), keys.raw.end()));
      EXPECT_EQ(all.visible, static_cast<std::int64_t>(n));
      EXPECT_LE(std::fabs(static_cast<double>((static_cast<long double>(all.sum) - sum) / sum)), bound)
          << "seed " << seed;
      // ln adds an ulp of its result, the sum with max rounds once; a relative error of Σ is an absolute one of ln Σ.
      const long double lse = static_cast<long double>(max) + std::log(sum);
      EXPECT_LE(std::fabs(static_cast<double>(static_cast<long double>(all.lse()) - lse)),
                bound + kU * (2 * std::fabs(std::log(static_cast<double>(sum))) + std::fabs(all.lse())))
          << "seed " << seed;
      // p_max = share/Σ: Σ's error, one rounding of the division, and one each of the product and Σ here.
      EXPECT_LE(std::fabs(all.p_max() * static_cast<double>(sum) - 1), bound + 3 * kU) << "seed " << seed;
      EXPECT_LE(std::fabs(all.p_max(0.25) * static_cast<double>(sum) - 0.25), 0.25 * (bound + 3 * kU))
          << "seed " << seed;
    }
    EXPECT_TRUE(same(merge(a, b), merge(b, a))) << "seed " << seed;
  }
}

TEST(RowState, TheEmptyStateChangesNothing) {
  const State nothing;
  EXPECT_EQ(nothing.lse(), -kInf);
  EXPECT_EQ(nothing.p_max(), 0);
  EXPECT_TRUE(same(merge(nothing, nothing), nothing));
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    const Keys keys = draw_keys(rng);
    const State some = observed(keys, 0, keys.score.size());
    EXPECT_TRUE(same(merge(some, nothing), some)) << "seed " << seed;
    EXPECT_TRUE(same(merge(nothing, some), some)) << "seed " << seed;
  }
}

// A score of −inf hides its key from the sum; alone it leaves a row with nothing.
TEST(RowState, MinusInfinityAddsNothing) {
  State state;
  state.observe(1, -kInf);
  EXPECT_EQ(state.lse(), -kInf);
  EXPECT_EQ(state.p_max(), 0);
  state.observe(2, 3);
  state.observe(4, -kInf);
  EXPECT_EQ(state.lse(), 3);
  EXPECT_EQ(state.p_max(), 1);
  EXPECT_EQ(state.raw_max, 4);
}

// NaN is never lost, wherever among the keys it comes and however they are merged.
TEST(RowState, NanStaysInTheRow) {
  for (std::size_t keys = 1; keys <= 4; ++keys)
    for (std::size_t bad = 0; bad < keys; ++bad)
      for (std::size_t cut = 0; cut <= keys; ++cut) {
        State parts[2], all;
        for (std::size_t n = 0; n < keys; ++n) {
          const double score = n == bad ? kNan : static_cast<double>(n);
          parts[n < cut ? 0 : 1].observe(score, score);
          all.observe(score, score);
        }
        for (const State& state : {all, merge(parts[0], parts[1]), merge(parts[1], parts[0])})
          EXPECT_TRUE(std::isnan(state.lse())) << "key " << bad << " of " << keys << ", cut at " << cut;
      }
}

TEST(RowState, ASinkIsOneMoreKeyOfValueZero) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    Keys keys = draw_keys(rng);
    const double z = keys.score[0] + keys.spread * rng.normal();
    const double lse = observed(keys, 0, keys.score.size()).lse();
    const base::SinkResult<double> sunk = base::with_sink(lse, z);
    // The exact answer for the lse that came in, so that only with_sink's own rounding counts: e^{min − max} is off by
    // u·|lse − z| + 2u relative and at most 1, log1p by 2u, the sum by u·|total|.
    const long double high = std::max(lse, z), low = std::min(lse, z);
    const long double total = high + std::log1p(std::exp(low - high));
    const double gap = static_cast<double>(high - low);
    const double bound = kU * (gap * std::exp(-gap) + 4 + std::fabs(static_cast<double>(total)));
    EXPECT_LE(std::fabs(static_cast<double>(static_cast<long double>(sunk.lse) - total)), bound) << "seed " << seed;
    const auto share = static_cast<double>(std::exp(static_cast<long double>(lse) - total));
    EXPECT_LE(std::fabs(sunk.share - share),
              share * (bound + kU * (2 + std::fabs(lse - sunk.lse))) + std::numeric_limits<double>::denorm_min())
        << "seed " << seed;

    // And the row that really observes the key: the two differ by their bounds.
    keys.raw.push_back(z), keys.score.push_back(z);
    const auto [low_score, high_score] = std::minmax_element(keys.score.begin(), keys.score.end());
    keys.spread = *high_score - *low_score;
    const State with = observed(keys, 0, keys.score.size());
    const double log_sum = std::log(static_cast<double>(keys.score.size()));  // ln Σ is at most that
    EXPECT_LE(
        std::fabs(with.lse() - sunk.lse),
        bound + 2 * (sum_bound(keys, keys.score.size()) + kU * (2 * log_sum + std::fabs(with.lse()) + std::fabs(lse))))
        << "seed " << seed;
  }
  const base::SinkResult<double> alone = base::with_sink(-kInf, 2.5);
  EXPECT_EQ(alone.lse, 2.5);
  EXPECT_EQ(alone.share, 0);
}

// ---- Dropout.

TEST(Philox, KnownAnswers) {  // kat_vectors of the Random123 distribution
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(base::philox4x32({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(base::philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(base::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, DecisionsAreTheWordsOfOneCounterPerFourKeys) {
  const Dropout dropout{0.5f, 0x299f31d0a4093822ull};
  for (std::uint32_t key = 0; key < 64; ++key) {
    const auto words = base::philox4x32({key / 4, 7, 3, 2}, 0xa4093822, 0x299f31d0);
    EXPECT_EQ(base::keeps(dropout, 2, 3, 7, key), words[key % 4] < 0x80000000u) << key;
  }
}

// The share of n independent decisions of probability r has a standard error of √(r(1−r)/n). Five of them are exceeded
// by chance once in two million; the seeds are fixed, so this does not flicker.
void expect_rate(std::int64_t hits, std::int64_t n, double r, const std::string& what) {
  const double share = static_cast<double>(hits) / static_cast<double>(n);
  EXPECT_LE(std::fabs(share - r), 5 * std::sqrt(r * (1 - r) / static_cast<double>(n))) << what;
}

TEST(Dropout, KeepsTheRightShareAndNeighboursDoNotAgreeMoreThanChance) {
  constexpr std::int64_t kB = 3, kH = 3, kQ = 48, kK = 200;
  for (const float p : {0.0f, 0.01f, 0.1f, 0.5f, 0.9f, 0.999f})
    for (const std::uint64_t seed : {0ull, 1ull, 0xdeadbeef00000000ull}) {
      const Dropout dropout{p, seed};
      const double keep = 1 - static_cast<double>(p);
      std::int64_t kept = 0, other_seed = 0;
      std::array<std::int64_t, 4> agree = {};
      for (std::int64_t b = 0; b < kB; ++b)
        for (std::int64_t h = 0; h < kH; ++h)
          for (std::int64_t i = 0; i < kQ; ++i)
            for (std::int64_t j = 0; j < kK; ++j) {
              const bool here = base::keeps(dropout, b, h, i, j);
              kept += here;
              agree[0] += here == base::keeps(dropout, b + 1, h, i, j);
              agree[1] += here == base::keeps(dropout, b, h + 1, i, j);
              agree[2] += here == base::keeps(dropout, b, h, i + 1, j);
              agree[3] += here == base::keeps(dropout, b, h, i, j + 1);
              other_seed += here == base::keeps({p, seed + 1}, b, h, i, j);
            }
      const std::string what = "p " + std::to_string(p) + ", seed " + std::to_string(seed);
      constexpr std::int64_t kCount = kB * kH * kQ * kK;
      const double agreement = keep * keep + (1 - keep) * (1 - keep);
      expect_rate(kept, kCount, keep, what);
      for (const std::int64_t axis : agree) expect_rate(axis, kCount, agreement, what + ", neighbours");
      expect_rate(other_seed, kCount, agreement, what + ", next seed");
    }
}

// V is the identity, so O shows every single probability: it is zero where the key was dropped, in every kernel,
// whatever its tiles, how many keys there are and where among them the mask begins.
TEST(Dropout, KernelsDropWhatKeepsSaysWhateverTheirTiles) {
  for (const std::int64_t keys : {1, 5, 64, 150})
    for (const bool windowed : {false, true}) {
      constexpr std::int64_t kB = 2, kH = 2, kQ = 70;
      Buffer q(DType::kF32, {kB, kH, kQ, 4}), k(DType::kF32, {kB, kH, keys, 4}), v(DType::kF32, {kB, kH, keys, keys});
      Rng rng(9);
      q.fill_normal(rng, 1), k.fill_normal(rng, 1), v.fill(0);
      for (std::int64_t b = 0; b < kB; ++b)
        for (std::int64_t h = 0; h < kH; ++h)
          for (std::int64_t j = 0; j < keys; ++j) v.set(b, h, j, j, 1);
      Problem problem;
      problem.dropout = {0.4f, 77};
      if (windowed) problem.mask.window = Window{20, 9}, problem.mask.diagonal = Diagonal::top_left();
      for (const engine::Kernel& kernel : engine::kernel_table()) {
        Machine machine;
        if (!kernel.isa.empty()) machine.isas = {kernel.isa};
        const Shape shape{kB, kH, kH, kQ, keys, 4, keys};
        const Plan plan = make_plan(problem, shape, Pass::kForward, machine);
        ASSERT_EQ(plan.kernel, kernel.name);
        Buffer o(DType::kF32, {kB, kH, kQ, keys});
        std::vector<std::byte> memory(plan.workspace_bytes + 64);
        std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
        forward(plan, {q.tensor(), k.tensor(), v.tensor()}, {o.tensor()}, {aligned, plan.workspace_bytes});
        for (std::int64_t b = 0; b < kB; ++b)
          for (std::int64_t h = 0; h < kH; ++h)
            for (std::int64_t i = 0; i < kQ; ++i)
              for (std::int64_t j = 0; j < keys; ++j) {
                const bool visible = !windowed || (j >= i - 20 && j <= i + 9);
                ASSERT_EQ(o.get(b, h, i, j) > 0, visible && base::keeps(problem.dropout, b, h, i, j))
                    << kernel.label() << ", " << keys << " keys: item " << b << ", head " << h << ", query " << i
                    << ", key " << j;
              }
      }
    }
}

}  // namespace
}  // namespace rootdk::test
