// The products on bf16 operands, every implementation that this machine has, against double arithmetic.
#include "cpu/products/bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/rng.h"

namespace rootdk::test {
namespace {

using cpu::Bf16Products;
using cpu::Bf16Rows;

constexpr std::size_t kLanes = 16;
constexpr int kProblems = 80;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

double value_of(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

/// Drops the bits that do not fit: any bf16 near x will do.
std::uint16_t bf16(double x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
}

/// One half of a pair: 0 is the earlier.
double half_of(std::uint32_t pair, std::size_t half) {
  return value_of(static_cast<std::uint16_t>(pair >> (16 * half)));
}

std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

std::size_t between(Rng& rng, std::int64_t low, std::int64_t high) {
  return static_cast<std::size_t>(rng.integer(low, high));
}

/// How many times too wrong, where 1 is the most that is allowed. What is summed are n products of bf16, which are
/// exact in f32, in any order, and a factor is applied before or after: no term passes through more than n + 1
/// roundings of u = 2⁻²⁴, and γ(n+1) ≤ (n + 2)·u up to n = 4094. The magnitude is the sum of the terms' absolute
/// values. The instructions flush subnormal sums to 0, which loses less than 2⁻¹²⁶ each time; our factors are at
/// most 1.
double wrongness(double got, double exact, std::size_t n, double magnitude) {
  const double bound = (static_cast<double>(n) + 2) * (0x1p-24 * magnitude + 0x1p-126);
  const double ratio = std::fabs(got - exact) / bound;
  return std::isnan(ratio) ? kInfinity : ratio;
}

/// Random rows with gaps between them; the memory ends with the last row.
class Rows {
 public:
  Rows(Rng& rng, std::size_t rows, std::size_t dim)
      : rows_(rows), dim_(dim), stride_(dim + (rng.chance(0.5) ? 0 : 2 * between(rng, 0, 20) + 1)) {
    data_.resize((rows - 1) * stride_ + dim);
    for (std::uint16_t& x : data_) x = bf16(rng.normal());
  }

  std::size_t rows() const { return rows_; }
  std::size_t dim() const { return dim_; }
  std::uint16_t& at(std::size_t row, std::size_t d) { return data_[row * stride_ + d]; }
  double value(std::size_t row, std::size_t d) const { return value_of(data_[row * stride_ + d]); }
  operator Bf16Rows() const { return {data_.data(), stride_}; }

  /// [dim/2][rows] pairs of neighbours along d, of `count` rows from `first`.
  std::vector<std::uint32_t> pairs(std::size_t first, std::size_t count) const {
    std::vector<std::uint32_t> out(dim_ / 2 * count);
    for (std::size_t d = 0; d < dim_; ++d)
      for (std::size_t row = 0; row < count; ++row)
        out[d / 2 * count + row] |= static_cast<std::uint32_t>(data_[(first + row) * stride_ + d]) << (16 * (d % 2));
    return out;
  }

 private:
  std::size_t rows_, dim_, stride_;
  std::vector<std::uint16_t> data_;
};

/// An output, with elements around it that must not change.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t size, T fill) : size_(size), all_(size + 2 * kGuards, std::bit_cast<T>(kGuard)) {
    std::fill_n(data(), size, fill);
  }

  T* data() { return all_.data() + kGuards; }
  T& operator[](std::size_t i) { return all_[kGuards + i]; }
  std::size_t size() const { return size_; }
  std::vector<T> values() const { return {all_.begin() + kGuards, all_.end() - kGuards}; }
  bool intact() const {
    const auto is_guard = [](T x) { return std::bit_cast<Bits>(x) == kGuard; };
    return std::all_of(all_.begin(), all_.begin() + kGuards, is_guard) &&
           std::all_of(all_.end() - kGuards, all_.end(), is_guard);
  }

 private:
  static constexpr std::ptrdiff_t kGuards =
      1027;  // more than a tile of the widest rows; odd, so that vectors are not aligned
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  static constexpr Bits kGuard = static_cast<Bits>(0x7F812345);  // as f32 a signalling NaN: even adding 0 changes it
  std::size_t size_;
  std::vector<T> all_;
};

/// Per lane, in [-1, 1].
std::vector<float> factors(Rng& rng, std::size_t width) {
  std::vector<float> out(width);
  for (float& x : out) x = static_cast<float>(2 * rng.uniform() - 1);
  return out;
}

/// In [0, 1], as a softmax gives them: 1 for all, or some 0 and some 1, or neither.
std::vector<float> rescales(Rng& rng, std::size_t width) {
  std::vector<float> out(width, 1);
  if (rng.chance(0.25)) return out;
  const bool mixed = rng.chance(0.5);
  for (float& x : out)
    x = mixed && rng.chance(0.5) ? static_cast<float>(rng.integer(0, 1)) : static_cast<float>(rng.uniform());
  return out;
}

/// Multiples of `step` up to 256, from 32.
std::size_t any_dim(Rng& rng, std::size_t step) {
  return between(rng, static_cast<std::int64_t>(round_up(32, step) / step), static_cast<std::int64_t>(256 / step)) *
         step;
}

/// dim_v has no step.
std::size_t any_value_dim(Rng& rng) {
  constexpr std::size_t kRagged[] = {1, 15, 16, 17, 31, 32, 33, 48, 64, 80, 127, 128, 200, 256};
  return rng.chance(0.5) ? kRagged[between(rng, 0, std::size(kRagged) - 1)] : between(rng, 1, 256);
}

std::size_t any_width(Rng& rng) { return kLanes * between(rng, 1, 4); }

void fill_normal(Rng& rng, Guarded<float>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(rng.normal());
}

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

/// Weights in [0, 1], a third of them 0.
Guarded<float> weights(Rng& rng, std::size_t width, std::size_t keys, std::size_t step) {
  Guarded<float> p(round_up(keys, step) * width, kNan);
  for (std::size_t i = 0; i < keys * width; ++i) p[i] = rng.chance(0.3) ? 0 : static_cast<float>(rng.uniform());
  return p;
}

std::vector<std::uint32_t> pack(const Bf16Products& products, Guarded<float>& p, std::size_t width, std::size_t keys) {
  products.pack_weights(p.data(), width, keys);
  std::vector<std::uint32_t> out(round_up(keys, products.key_step) / 2 * width);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::bit_cast<std::uint32_t>(p[i]);
  return out;
}

Guarded<std::uint16_t> pack(const Bf16Products& products, const Rows& v) {
  Guarded<std::uint16_t> packed(products.packed_values(v.rows(), v.dim()), bf16(kNan));
  products.pack_values(v, v.rows(), v.dim(), packed.data());
  return packed;
}

struct Tested {
  const Bf16Products* products;
};

void PrintTo(const Tested& tested, std::ostream* out) { *out << (tested.products ? tested.products->isa : "none"); }

std::vector<Tested> implementations() {
  std::vector<Tested> found;
  for (const Bf16Products* products : {cpu::bf16_dot(), cpu::bf16_amx()})
    if (products) found.push_back({products});
  if (found.empty()) found.push_back({nullptr});
  return found;
}

class Bf16 : public testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    if (!GetParam().products) GTEST_SKIP() << "this machine or this build has neither AVX512-BF16 nor AMX";
  }
};

INSTANTIATE_TEST_SUITE_P(Implementations, Bf16, testing::ValuesIn(implementations()));

// Scores -------------------------------------------------------------------------------------------------------------

TEST_P(Bf16, Scores) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_dim(rng, products.dim_step), width = any_width(rng);
    const Rows q(rng, width, dim), k(rng, round_up(between(rng, 1, 96), products.key_step), dim);
    const std::vector<float> scale = factors(rng, width);
    Guarded<float> s(k.rows() * width, kNan);
    products.scores(q.pairs(0, width).data(), width, k, k.rows(), dim, scale.data(), s.data());

    double worst = 0;
    for (std::size_t key = 0; key < k.rows(); ++key)
      for (std::size_t lane = 0; lane < width; ++lane) {
        double exact = 0, magnitude = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          const double term = scale[lane] * (k.value(key, d) * q.value(lane, d));
          exact += term, magnitude += std::fabs(term);
        }
        worst = std::max(worst, wrongness(s[key * width + lane], exact, dim, magnitude));
      }
    EXPECT_LE(worst, 1);
    EXPECT_TRUE(s.intact());
  }
}

TEST_P(Bf16, ABadKeySpoilsOnlyItsOwnScores) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_dim(rng, products.dim_step), width = any_width(rng);
    const Rows q(rng, width, dim);
    Rows k(rng, round_up(between(rng, 2, 96), products.key_step), dim);
    const std::vector<float> scale(width, 1);
    Guarded<float> good(k.rows() * width, kNan), bad(k.rows() * width, kNan);
    products.scores(q.pairs(0, width).data(), width, k, k.rows(), dim, scale.data(), good.data());

    const std::size_t nan_key = between(rng, 0, static_cast<std::int64_t>(k.rows()) - 1),
                      infinite_key = (nan_key + 1) % k.rows();
    const std::size_t d = between(rng, 0, static_cast<std::int64_t>(dim) - 1);
    k.at(nan_key, d) = bf16(kNan);
    k.at(infinite_key, d) = bf16(kInfinity);
    products.scores(q.pairs(0, width).data(), width, k, k.rows(), dim, scale.data(), bad.data());

    for (std::size_t key = 0; key < k.rows(); ++key)
      for (std::size_t lane = 0; lane < width; ++lane) {
        const float score = bad[key * width + lane];
        if (key == nan_key) {
          ASSERT_TRUE(std::isnan(score));
        } else if (key == infinite_key) {
          ASSERT_EQ(score, std::copysign(kInfinity, static_cast<float>(q.value(lane, d))));
        } else {
          ASSERT_TRUE(same_bits(score, good[key * width + lane]));
        }
      }
  }
}

// Weighted sum -------------------------------------------------------------------------------------------------------

TEST_P(Bf16, WeightsArePackedToNearestEven) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t width = any_width(rng), keys = between(rng, 1, 96);
    Guarded<float> p = weights(rng, width, keys, products.key_step);
    p[0] = 1 + 0x1p-8f;  // ties
    p[1] = 1 + 0x3p-8f;
    p[2] = std::nextafter(1 + 0x1p-8f, 2.0f);
    const std::vector<float> before = p.values();
    const std::vector<std::uint32_t> pairs = pack(products, p, width, keys);
    EXPECT_TRUE(p.intact());
    EXPECT_EQ(half_of(pairs[0], 0), 1);
    EXPECT_EQ(half_of(pairs[1], 0), 1 + 0x1p-6);
    EXPECT_EQ(half_of(pairs[2], 0), 1 + 0x1p-7);

    for (std::size_t key = 0; key < round_up(keys, products.key_step); ++key)
      for (std::size_t lane = 0; lane < width; ++lane) {
        const double got = half_of(pairs[key / 2 * width + lane], key % 2);
        const double want = key < keys ? before[key * width + lane] : 0;
        const double half_ulp = 0x1p-9 * std::exp2(std::ceil(std::log2(want)));  // 0 at 0
        ASSERT_LE(std::fabs(got - want), half_ulp) << "at " << want;
      }
  }
}

TEST_P(Bf16, WeightedSum) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_value_dim(rng), width = any_width(rng), keys = between(rng, 1, 96);
    const std::size_t padded = round_up(keys, products.key_step);
    const Rows v(rng, keys + between(rng, 0, 64), dim);  // of a block of keys, a tile may see only the first
    Guarded<std::uint16_t> packed = pack(products, v);
    EXPECT_TRUE(packed.intact());
    Guarded<float> weight = weights(rng, width, keys, products.key_step);
    const std::vector<std::uint32_t> p = pack(products, weight, width, keys);
    const std::vector<float> rescale = rescales(rng, width);
    Guarded<float> o(dim * width, 0);
    fill_normal(rng, o);
    const std::vector<float> before = o.values();
    products.weighted_sum(p.data(), width, {packed.data(), v.rows()}, padded, dim, rescale.data(), o.data());

    double worst = 0;
    for (std::size_t d = 0; d < dim; ++d)
      for (std::size_t lane = 0; lane < width; ++lane) {
        const std::size_t i = d * width + lane;
        double exact = static_cast<double>(before[i]) * rescale[lane], magnitude = std::fabs(exact);
        for (std::size_t key = 0; key < keys; ++key) {
          const double term = half_of(p[key / 2 * width + lane], key % 2) * v.value(key, d);
          exact += term, magnitude += std::fabs(term);
        }
        worst = std::max(worst, wrongness(o[i], exact, padded, magnitude));
      }
    EXPECT_LE(worst, 1);
    EXPECT_TRUE(o.intact());
  }
}

TEST_P(Bf16, ValuesBeyondTheKeysAreZero) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_value_dim(rng), width = any_width(rng), keys = between(rng, 1, 96);
    const std::size_t padded = round_up(keys, products.key_step);
    Guarded<std::uint16_t> packed = pack(products, Rows(rng, keys, dim));
    Guarded<float> weight = weights(rng, width, keys, products.key_step);
    std::vector<std::uint32_t> p = pack(products, weight, width, keys);
    const std::vector<float> rescale = rescales(rng, width);
    Guarded<float> with_zeros(dim * width, 1), with_ones(dim * width, 1);
    products.weighted_sum(p.data(), width, {packed.data(), keys}, padded, dim, rescale.data(), with_zeros.data());
    for (std::size_t key = keys; key < padded; ++key)
      for (std::size_t lane = 0; lane < width; ++lane)
        p[key / 2 * width + lane] |= static_cast<std::uint32_t>(bf16(1)) << (16 * (key % 2));
    products.weighted_sum(p.data(), width, {packed.data(), keys}, padded, dim, rescale.data(), with_ones.data());
    EXPECT_EQ(with_ones.values(), with_zeros.values());
  }
}

TEST_P(Bf16, ABadValueSpoilsOnlyItsOwnOutputs) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_value_dim(rng), width = any_width(rng), keys = between(rng, 1, 96);
    const std::size_t padded = round_up(keys, products.key_step);
    Rows v(rng, keys, dim);
    Guarded<std::uint16_t> packed = pack(products, v);
    Guarded<float> weight = weights(rng, width, keys, products.key_step);
    const std::vector<std::uint32_t> p = pack(products, weight, width, keys);
    const std::vector<float> rescale = rescales(rng, width);
    Guarded<float> good(dim * width, 1), bad(dim * width, 1);
    products.weighted_sum(p.data(), width, {packed.data(), keys}, padded, dim, rescale.data(), good.data());

    const std::size_t bad_d = between(rng, 0, static_cast<std::int64_t>(dim) - 1);
    v.at(between(rng, 0, static_cast<std::int64_t>(keys) - 1), bad_d) = bf16(kNan);
    Guarded<std::uint16_t> bad_packed = pack(products, v);
    products.weighted_sum(p.data(), width, {bad_packed.data(), padded}, padded, dim, rescale.data(), bad.data());
    for (std::size_t i = 0; i < dim * width; ++i) {
      if (i / width == bad_d) {
        ASSERT_TRUE(std::isnan(bad[i]));  // also where its weight is 0
      } else {
        ASSERT_TRUE(same_bits(bad[i], good[i]));
      }
    }
  }
}

// Both ---------------------------------------------------------------------------------------------------------------

TEST_P(Bf16, SameBitsAtAnyWidth) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t dim = any_dim(rng, products.dim_step), width = any_width(rng), keys = between(rng, 1, 96);
    const std::size_t padded = round_up(keys, products.key_step);
    const std::size_t first = kLanes * between(rng, 0, static_cast<std::int64_t>(width / kLanes) - 1);
    const Rows q(rng, width, dim), k(rng, padded, dim), v(rng, keys, dim);
    const std::vector<float> scale = factors(rng, width), rescale = rescales(rng, width);
    Guarded<std::uint16_t> packed = pack(products, v);

    // Scores as weights, and outputs, of `count` lanes from `from`.
    const auto run = [&](std::size_t from, std::size_t count) {
      Guarded<float> s(padded * count, kNan), o(dim * count, 1);
      products.scores(q.pairs(from, count).data(), count, k, padded, dim, scale.data() + from, s.data());
      std::vector<float> scores = s.values();
      const std::vector<std::uint32_t> p = pack(products, s, count, keys);
      products.weighted_sum(p.data(), count, {packed.data(), keys}, padded, dim, rescale.data() + from, o.data());
      return std::pair(std::move(scores), o.values());
    };
    const auto [wide_s, wide_o] = run(0, width);
    const auto [s, o] = run(first, kLanes);
    for (std::size_t i = 0; i < s.size(); ++i)
      ASSERT_TRUE(same_bits(s[i], wide_s[i / kLanes * width + first + i % kLanes]));
    for (std::size_t i = 0; i < o.size(); ++i)
      ASSERT_TRUE(same_bits(o[i], wide_o[i / kLanes * width + first + i % kLanes]));
  }
}

// Few rows -----------------------------------------------------------------------------------------------------------

TEST_P(Bf16, NarrowScores) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t rows = between(rng, 1, 8), dim = any_dim(rng, kLanes), keys = between(rng, 1, 150);
    const Rows q(rng, rows, dim), k(rng, keys, dim);
    const std::vector<float> scale = factors(rng, kLanes);
    const std::size_t stride = keys + between(rng, 0, 20);
    Guarded<float> s(rows * stride, kNan);
    products.narrow_scores(q, rows, k, keys, dim, scale.data(), s.data(), stride);

    double worst = 0;
    for (std::size_t key = 0; key < keys; ++key)
      for (std::size_t row = 0; row < rows; ++row) {
        double exact = 0, magnitude = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          const double term = scale[row] * (k.value(key, d) * q.value(row, d));
          exact += term, magnitude += std::fabs(term);
        }
        worst = std::max(worst, wrongness(s[row * stride + key], exact, dim, magnitude));
      }
    EXPECT_LE(worst, 1);
    EXPECT_TRUE(s.intact());
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t key = keys; key < stride; ++key) EXPECT_TRUE(std::isnan(s[row * stride + key]));
  }
}

TEST_P(Bf16, NarrowSum) {
  const Bf16Products& products = *GetParam().products;
  for (int seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::size_t rows = between(rng, 1, 8), dim = any_dim(rng, kLanes), keys = between(rng, 1, 150);
    const Rows v(rng, keys, dim);
    const std::size_t stride = keys + between(rng, 0, 20);
    Guarded<float> weight(rows * stride, kNan);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t key = 0; key < keys; ++key) weight[row * stride + key] = static_cast<float>(rng.uniform());
    const std::vector<float> exact_weight = weight.values();
    for (std::size_t row = 0; row < rows; ++row) products.narrow_pack_weights(weight.data() + row * stride, keys);
    EXPECT_TRUE(weight.intact());
    const auto* p = reinterpret_cast<const std::uint32_t*>(weight.data());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t key = 0; key < keys; ++key) {
        const double w = exact_weight[row * stride + key];
        EXPECT_LE(std::fabs(half_of(p[row * stride + key / 2], key % 2) - w), 0x1p-8 * w);
      }
      if (keys % 2 != 0) {
        EXPECT_EQ(half_of(p[row * stride + keys / 2], 1), 0);
      }
    }
    const std::vector<float> rescale = rescales(rng, kLanes);
    Guarded<float> o(rows * dim, 0);
    fill_normal(rng, o);
    const std::vector<float> before = o.values();
    products.narrow_sum(p, stride, rows, v, keys, dim, rescale.data(), o.data());

    double worst = 0;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t d = 0; d < dim; ++d) {
        const std::size_t i = row * dim + d;
        double exact = static_cast<double>(before[i]) * rescale[row], magnitude = std::fabs(exact);
        for (std::size_t key = 0; key < keys; ++key) {
          const double term = half_of(p[row * stride + key / 2], key % 2) * v.value(key, d);
          exact += term, magnitude += std::fabs(term);
        }
        worst = std::max(worst, wrongness(o[i], exact, round_up(keys, 2), magnitude));
      }
    EXPECT_LE(worst, 1);
    EXPECT_TRUE(o.intact());
  }
}

}  // namespace
}  // namespace rootdk::test
