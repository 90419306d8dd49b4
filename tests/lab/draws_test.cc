// Random pairs: the same bits on every instruction set, the numbers their formulas say, and distributed as promised.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/philox.h"
#include "lab/draws.h"
#include "rootdk/lab/estimate.h"

namespace rootdk::lab {
namespace {

constexpr Component kKinds[] = {Component::kNormal, Component::kUniform, Component::kRademacher, Component::kStudentT5};
constexpr double kU = 0x1p-24;  // unit roundoff of f32

struct Block {
  std::vector<float> q, k;
};

Block components_of(const DrawKernel& kernel, const PairLaw& law, std::uint64_t first_pair, std::int64_t dim) {
  Block out{std::vector<float>(static_cast<std::size_t>(dim) * kPairsPerBlock),
            std::vector<float>(static_cast<std::size_t>(dim) * kPairsPerBlock)};
  kernel.components(law, first_pair, dim, out.q.data(), out.k.data());
  return out;
}

TEST(Draws, HaveTheSameBitsOnEveryInstructionSet) {
  ASSERT_FALSE(draw_kernels().empty());
  const std::vector<std::int64_t> dims = {1, 2, 7, 32};
  for (const Component kind : kKinds)
    for (const PairLaw& law : {PairLaw{kind, 1, 1, 0, 0, 7}, PairLaw{kind, 0.7f, 3, -0.25f, 0.3f, 7}}) {
      std::vector<float> first;
      Block first_block;
      for (const DrawKernel& kernel : draw_kernels()) {
        SCOPED_TRACE(testing::Message() << kernel.isa << ", " << name_of(kind));
        std::vector<float> products(dims.size() * kPairsPerBlock);
        kernel.products(law, 3 * kPairsPerBlock, dims, products.data());
        const Block block = components_of(kernel, law, 3 * kPairsPerBlock, 7);
        if (first.empty()) first = products, first_block = block;
        EXPECT_EQ(products, first);
        EXPECT_EQ(block.q, first_block.q);
        EXPECT_EQ(block.k, first_block.k);
      }
    }
}

// Sums of f32 products in order: at most dim roundings of at most the sum of sizes.
TEST(Draws, ProductsAreSumsOverBeginnings) {
  const std::vector<std::int64_t> dims = {1, 3, 3, 10};
  const DrawKernel& kernel = draw_kernels().front();
  for (const Component kind : kKinds) {
    const PairLaw law{kind, 1, 2, 0.5f, 0.2f, 11};
    std::vector<float> products(dims.size() * kPairsPerBlock);
    kernel.products(law, 0, dims, products.data());
    const Block block = components_of(kernel, law, 0, 10);
    for (std::size_t t = 0; t < dims.size(); ++t)
      for (std::size_t p = 0; p < kPairsPerBlock; ++p) {
        double sum = 0, size = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(dims[t]); ++i) {
          const double x = static_cast<double>(block.q[i * kPairsPerBlock + p]) *
                           static_cast<double>(block.k[i * kPairsPerBlock + p]);
          sum += x, size += std::fabs(x);
        }
        ASSERT_NEAR(static_cast<double>(products[t * kPairsPerBlock + p]), sum,
                    static_cast<double>(2 * dims[t]) * kU * size);
      }
  }
}

// What a component should be, in double from the same Philox words.
struct Words {
  std::array<std::uint32_t, 4> w;
  double unit(int i) const {
    return static_cast<double>(
        (static_cast<float>(static_cast<std::int32_t>(w[static_cast<std::size_t>(i)] >> 1)) + 0.5f) * 0x1p-31f);
  }
  double angle(int i) const {
    return 2 * std::numbers::pi *
           static_cast<double>(static_cast<float>(static_cast<std::int32_t>(w[static_cast<std::size_t>(i)]))) * 0x1p-32;
  }
  double centred(int i) const {
    return static_cast<double>(static_cast<std::int32_t>(w[static_cast<std::size_t>(i)])) * 0x1p-31;
  }
  double radius(int i) const { return std::sqrt(-2 * std::log(unit(i))); }
};

Words words(const PairLaw& law, std::uint64_t pair, std::uint32_t call) {
  return {base::philox4x32({static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32), call,
                            0x6C616200u + static_cast<std::uint32_t>(law.kind)},
                           static_cast<std::uint32_t>(law.seed), static_cast<std::uint32_t>(law.seed >> 32))};
}

// Each is a dozen roundings of numbers no larger than the result's own factors, and polynomials right to 4e-8 (below
// u): 16u of them.
TEST(Draws, AreWhatTheirFormulasSay) {
  const std::uint64_t first = (std::uint64_t{5} << 32) + 2 * kPairsPerBlock;  // the pair's upper half counts, too
  for (const Component kind : kKinds) {
    const PairLaw law{kind, 1, 1, 0, 0, 0x123456789ABCDEF0};
    const Block block = components_of(draw_kernels().front(), law, first, 4);
    for (std::size_t p = 0; p < kPairsPerBlock; ++p)
      for (std::uint32_t i = 0; i < 4; ++i) {
        double q = 0, k = 0, size = 1;
        const Words w = words(law, first + p, i / 2);
        const int at = i % 2 == 0 ? 0 : 2;
        switch (kind) {
          case Component::kNormal:
            size = w.radius(at);
            q = size * std::cos(w.angle(at + 1)), k = size * std::sin(w.angle(at + 1));
            break;
          case Component::kUniform: q = std::sqrt(3.0) * w.centred(at), k = std::sqrt(3.0) * w.centred(at + 1); break;
          case Component::kRademacher: q = w.centred(at) < 0 ? -1 : 1, k = w.centred(at + 1) < 0 ? -1 : 1; break;
          case Component::kStudentT5: {
            const auto student = [&](const Words& x) {
              const double other = x.radius(0) * std::sin(x.angle(1)),
                           chi2 = other * other - 2 * std::log(x.unit(2)) - 2 * std::log(x.unit(3));
              size = std::max(size, x.radius(0) * std::sqrt(3 / chi2) * (1 + x.radius(0) * x.radius(0) / chi2));
              return x.radius(0) * std::cos(x.angle(1)) * std::sqrt(3 / chi2);
            };
            q = student(words(law, first + p, 2 * i)), k = student(words(law, first + p, 2 * i + 1));
            break;
          }
        }
        const std::size_t place = i * kPairsPerBlock + p;
        ASSERT_NEAR(static_cast<double>(block.q[place]), q, 16 * kU * size) << name_of(kind);
        ASSERT_NEAR(static_cast<double>(block.k[place]), k, 16 * kU * size) << name_of(kind);
      }
  }
}

// Mean, variance, fourth moment and the correlation of q with k, each within five standard errors from the
// distribution's own moments. Of a Student t the fourth moment has no standard error: its tails are counted instead,
// which is binomial.
TEST(Draws, AreDistributedAsPromised) {
  struct Moments {
    Component kind;
    double fourth, eighth;
  };
  const std::int64_t dim = 64;
  const int blocks = 64;
  const double n = static_cast<double>(dim) * blocks * kPairsPerBlock, per_unit = 5 / std::sqrt(n);
  for (const Moments& m : {Moments{Component::kNormal, 3, 105},
                           {Component::kUniform, 9.0 / 5, 9},
                           {Component::kRademacher, 1, 1},
                           {Component::kStudentT5, 9, 0}}) {
    SCOPED_TRACE(name_of(m.kind));
    double mean = 0, square = 0, fourth = 0, cross = 0;
    const double shares[] = {0.5, 0.9, 0.99, 0.999};
    double within[4] = {}, bounds[4];
    for (int s = 0; s < 4; ++s) bounds[s] = student_bound(5, shares[s]) * std::sqrt(0.6);
    for (int b = 0; b < blocks; ++b) {
      const Block block = components_of(draw_kernels().front(), {m.kind, 1, 1, 0, 0, 99},
                                        static_cast<std::uint64_t>(b) * kPairsPerBlock, dim);
      for (std::size_t i = 0; i < block.q.size(); ++i) {
        const double x = static_cast<double>(block.q[i]);
        mean += x / n, square += x * x / n, fourth += x * x * x * x / n,
            cross += x * static_cast<double>(block.k[i]) / n;
        for (int s = 0; s < 4; ++s) within[s] += std::fabs(x) <= bounds[s];
      }
    }
    EXPECT_NEAR(mean, 0, per_unit);
    EXPECT_NEAR(square, 1, per_unit * std::sqrt(m.fourth - 1) + 4 * kU);
    EXPECT_NEAR(cross, 0, per_unit);
    if (m.eighth > 0) {
      EXPECT_NEAR(fourth, m.fourth, per_unit * std::sqrt(m.eighth - m.fourth * m.fourth) + 16 * kU);
    }
    for (int s = 0; s < 4 && m.kind == Component::kStudentT5; ++s)
      EXPECT_NEAR(within[s] / n, shares[s], per_unit * std::sqrt(shares[s] * (1 - shares[s]))) << shares[s];
  }
}

// q = mean + σ·(√(1−ρ)·a + √ρ·a₀): the covariance of two components is σ²ρ, q and k stay independent. Five standard
// errors; a product of two has a variance of at most (second moment)·(second moment) + … ≤ 3·(σ² + μ²)² for normal
// components.
TEST(Draws, FollowTheLawOfMeansAndCorrelations) {
  const float sigma_q = 0.5f, sigma_k = 2, mean = 0.25f, rho = 0.4f;
  const int blocks = 400;
  double first_q = 0, first_k = 0, both_q = 0, both_k = 0, cross = 0;
  const double n = static_cast<double>(blocks) * kPairsPerBlock;
  for (int b = 0; b < blocks; ++b) {
    const Block block = components_of(draw_kernels().front(), {Component::kNormal, sigma_q, sigma_k, mean, rho, 5},
                                      static_cast<std::uint64_t>(b) * kPairsPerBlock, 2);
    for (std::size_t p = 0; p < kPairsPerBlock; ++p) {
      const double q0 = static_cast<double>(block.q[p]), q1 = static_cast<double>(block.q[kPairsPerBlock + p]);
      const double k0 = static_cast<double>(block.k[p]), k1 = static_cast<double>(block.k[kPairsPerBlock + p]);
      first_q += q0 / n, first_k += k0 / n, both_q += q0 * q1 / n, both_k += k0 * k1 / n, cross += q0 * k0 / n;
    }
  }
  const double m = static_cast<double>(mean), q2 = static_cast<double>(sigma_q * sigma_q),
               k2 = static_cast<double>(sigma_k * sigma_k), r = static_cast<double>(rho);
  const double se = 5 / std::sqrt(n);
  EXPECT_NEAR(first_q, m, se * std::sqrt(q2));
  EXPECT_NEAR(first_k, m, se * std::sqrt(k2));
  EXPECT_NEAR(both_q, m * m + r * q2, se * std::sqrt(3.0) * (q2 + m * m));
  EXPECT_NEAR(both_k, m * m + r * k2, se * std::sqrt(3.0) * (k2 + m * m));
  EXPECT_NEAR(cross, m * m, se * std::sqrt((q2 + m * m) * (k2 + m * m)));
}

}  // namespace
}  // namespace rootdk::lab
