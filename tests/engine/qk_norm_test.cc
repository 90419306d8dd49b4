// QK-norm and cosine attention: against the formulas in double, gradients against differences, alone and through
// attention.
#include "rootdk/qk_norm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rootdk/attention.h"
#include "support/buffer.h"

namespace rootdk::test {
namespace {

using Kind = QkNorm::Kind;
constexpr Kind kKinds[] = {Kind::kRms, Kind::kLayer, Kind::kL2};

double half_ulp(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF32 ? 0x1p-24 : 0x1p-53;
}

std::vector<float> random_gain(std::int64_t size) {
  Rng rng(11);
  std::vector<float> gain;
  for (std::int64_t i = 0; i < size; ++i) gain.push_back(static_cast<float>(std::round(64 * rng.normal()) / 64));
  return gain;
}

// y of one row, as the definition says.
std::vector<double> plain(const QkNorm& norm, const std::vector<double>& x, std::size_t head) {
  const auto dim = static_cast<double>(x.size());
  double mean = 0, m = 0;
  if (norm.kind == Kind::kLayer)
    for (const double v : x) mean += v / dim;
  for (const double v : x) m += (v - mean) * (v - mean);
  if (norm.kind != Kind::kL2) m /= dim;
  std::vector<double> y;
  for (std::size_t d = 0; d < x.size(); ++d) {
    const double gain =
        norm.gain.empty() ? 1 : static_cast<double>(norm.gain[norm.gain.size() > x.size() ? head * x.size() + d : d]);
    y.push_back(gain * (x[d] - mean) / std::sqrt(m + norm.eps));
  }
  return y;
}

TEST(QkNorm, RowsAreTheirFormula) {
  for (const Kind kind : kKinds)
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16})
      for (const Layout layout : {Layout::kRowMajor, Layout::kTokensFirst, Layout::kStridedDim, Layout::kReversed})
        for (const std::int64_t gains : {0, 9, 27}) {
          Buffer x(dtype, {2, 3, 5, 9}, layout), y(dtype, {2, 3, 5, 9}, layout);
          Rng rng(2);
          x.fill_normal(rng, 4);
          const std::vector<float> gain = random_gain(gains);
          const QkNorm norm{kind, 1e-5, gain};
          normalise(norm, std::as_const(x).tensor(), y.tensor());
          EXPECT_TRUE(y.guards_intact());
          for (std::int64_t b = 0; b < 2; ++b)
            for (std::int64_t h = 0; h < 3; ++h)
              for (std::int64_t i = 0; i < 5; ++i) {
                std::vector<double> row;
                for (std::int64_t d = 0; d < 9; ++d) row.push_back(x.get(b, h, i, d));
                const std::vector<double> want = plain(norm, row, static_cast<std::size_t>(h));
                for (std::int64_t d = 0; d < 9; ++d) {
                  const double w = want[static_cast<std::size_t>(d)];
                  // Rounded once to storage; in double a mean of 9 is removed, which may cancel: 32 roundings of what
                  // was there.
                  EXPECT_NEAR(
                      y.get(b, h, i, d), w,
                      half_ulp(dtype) * std::fabs(w) + 64 * 0x1p-53 * 16 + (dtype == DType::kF16 ? 0x1p-25 : 0));
                }
              }
          normalise(norm, std::as_const(x).tensor(), x.tensor());
          EXPECT_EQ(x.values(), y.values()) << "in place";
        }
}

TEST(QkNorm, ZeroRowsStayZero) {
  for (const Kind kind : kKinds)
    for (const double eps : {0.0, 1e-6}) {
      Buffer x(DType::kF32, {1, 1, 2, 4}), y(DType::kF32, {1, 1, 2, 4});
      x.fill(0);
      normalise({kind, eps}, std::as_const(x).tensor(), y.tensor());
      EXPECT_EQ(y.values(), std::vector<double>(8, 0.0));
    }
}

/// dL along a direction of the elements of `x`, from extrapolated differences; and how far off that may be.
struct Slope {
  double value, error;
};

Slope along(Buffer x, const Buffer& direction, const std::function<double(const Buffer&)>& loss) {
  const Buffer start = x;
  const Extents e = std::as_const(x).tensor().shape;
  const auto at = [&](double h) {
    for (std::int64_t b = 0; b < e[0]; ++b)
      for (std::int64_t n = 0; n < e[1]; ++n)
        for (std::int64_t i = 0; i < e[2]; ++i)
          for (std::int64_t d = 0; d < e[3]; ++d)
            x.set(b, n, i, d, start.get(b, n, i, d) + h * direction.get(b, n, i, d));
    return loss(x);
  };
  const double h = 0x1p-11;
  const double high = at(h), low = at(-h), coarse = (high - low) / (2 * h), fine = (at(h / 2) - at(-h / 2)) / h;
  // L sums some hundred terms: 2^-52 · 2^5 · magnitude / h.
  return {(4 * fine - coarse) / 3,
          std::fabs(fine - coarse) + 0x1p-47 * std::max({std::fabs(high), std::fabs(low), 1.0}) / h};
}

double inner(const Buffer& a, const Buffer& b) {
  const std::vector<double> x = a.values(), y = b.values();
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

TEST(QkNorm, GradientsMatchDifferences) {
  for (const Kind kind : kKinds)
    for (const std::int64_t gains : {0, 6, 18}) {
      SCOPED_TRACE(static_cast<int>(kind) * 100 + static_cast<int>(gains));
      const Extents shape = {2, 3, 4, 6};
      Buffer x(DType::kF64, shape), d_y(DType::kF64, shape), direction(DType::kF64, shape), d_x(DType::kF64, shape);
      Rng rng(static_cast<std::uint64_t>(gains) + 7);
      for (Buffer* b : {&x, &d_y, &direction}) b->fill_normal(rng, 1);
      const std::vector<float> gain = random_gain(gains);
      const QkNorm norm{kind, 1e-3, gain};
      std::vector<float> d_gain(gains == 0 ? 6 : static_cast<std::size_t>(gains));
      normalise_backward(norm, std::as_const(x).tensor(), std::as_const(d_y).tensor(), d_x.tensor(), d_gain);
      const auto loss = [&](const QkNorm& n, const Buffer& at) {
        Buffer y(DType::kF64, shape);
        normalise(n, at.tensor(), y.tensor());
        return inner(y, d_y);
      };
      const Slope slope = along(x, direction, [&](const Buffer& at) { return loss(norm, at); });
      EXPECT_NEAR(inner(d_x, direction), slope.value, slope.error);
      // y is linear in the gain, which lies on a grid where steps of 1/64 are exact.
      for (std::size_t g = 0; g < gain.size(); ++g) {
        std::vector<float> high = gain, low = gain;
        high[g] += 0x1p-6f, low[g] -= 0x1p-6f;
        const double measured = (loss({kind, 1e-3, high}, x) - loss({kind, 1e-3, low}, x)) / 0x1p-5;
        EXPECT_NEAR(static_cast<double>(d_gain[g]), measured,
                    0x1p-24 * std::fabs(measured) + 0x1p-52 * 144 * 16 / 0x1p-5)
            << g;
      }
      if (gains == 0) {  // as if it were [dim] of ones
        const std::vector<float> ones(6, 1.0f);
        std::vector<float> same(6);
        normalise_backward({kind, 1e-3, ones}, std::as_const(x).tensor(), std::as_const(d_y).tensor(), {}, same);
        EXPECT_EQ(d_gain, same);
      }
      normalise_backward(norm, std::as_const(x).tensor(), std::as_const(d_y).tensor(), d_y.tensor());
      EXPECT_EQ(d_y.values(), d_x.values()) << "in place";
    }
}

TEST(QkNorm, TheSameBitsAtAnyThreadCount) {
  const Extents shape = {2, 2, 700, 16};
  Buffer x(DType::kF32, shape), d_y(DType::kF32, shape);
  Rng rng(4);
  x.fill_normal(rng, 1), d_y.fill_normal(rng, 1);
  const std::vector<float> gain = random_gain(16);
  const int before = omp_get_max_threads();
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    Buffer y(DType::kF32, shape), d_x(DType::kF32, shape);
    std::vector<float> d_gain(16);
    normalise({Kind::kLayer, 1e-6, gain}, std::as_const(x).tensor(), y.tensor());
    normalise_backward({Kind::kLayer, 1e-6, gain}, std::as_const(x).tensor(), std::as_const(d_y).tensor(), d_x.tensor(),
                       d_gain);
    std::vector<double> all = y.values();
    for (const double v : d_x.values()) all.push_back(v);
    all.insert(all.end(), d_gain.begin(), d_gain.end());
    results.push_back(all);
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// q and k through a norm, then attention: the gradients of the two chain to that of the whole.
TEST(QkNorm, ChainsWithAttention) {
  for (const Kind kind : kKinds) {
    const Extents shape = {1, 2, 5, 6};
    Buffer q(DType::kF64, shape), k(DType::kF64, shape), v(DType::kF64, shape), d_o(DType::kF64, shape),
        direction(DType::kF64, shape);
    Rng rng(8);
    for (Buffer* b : {&q, &k, &v, &d_o, &direction}) b->fill_normal(rng, 1);
    const std::vector<float> gain = random_gain(6);
    const QkNorm norm{kind, 1e-4, gain};
    const Problem problem{.scale = Scale::constant(2), .mask = Mask::make_causal()};
    Buffer q_hat(DType::kF64, shape), k_hat(DType::kF64, shape), o(DType::kF64, shape), lse(DType::kF64, {1, 2, 5, 1});
    const auto run = [&](const Buffer& from) {
      normalise(norm, from.tensor(), q_hat.tensor());
      normalise(norm, std::as_const(k).tensor(), k_hat.tensor());
      forward(problem, {q_hat.tensor(), k_hat.tensor(), v.tensor()}, {o.tensor(), lse.tensor()});
      return inner(o, d_o);
    };
    const Slope slope = along(q, direction, run);
    run(q);
    Buffer d_q(DType::kF64, shape);
    backward(problem, {q_hat.tensor(), k_hat.tensor(), v.tensor(), o.tensor(), lse.tensor(), d_o.tensor()},
             {d_q.tensor()});
    normalise_backward(norm, std::as_const(q).tensor(), std::as_const(d_q).tensor(), d_q.tensor());
    EXPECT_NEAR(inner(d_q, direction), slope.value, slope.error);
  }
}

TEST(Cosine, FactorsAreClampedAndSoAreTheirGradients) {
  const double limit = std::log(100.0);
  const std::vector<float> w = {-2, 0, 1.5f, 4.5f, static_cast<float>(limit) + 0x1p-20f, 80},
                           d_factors = {1, -2, 3, 0.5f, 7, 7};
  std::vector<float> factors(6), d_w(6, 99);
  cosine_factors(w, factors);
  cosine_factors_backward(w, d_factors, d_w);
  for (std::size_t h = 0; h < 6; ++h) {
    const auto x = static_cast<double>(w[h]);
    const auto c_at = [&](double step) { return std::exp(std::min(x + step, limit)); };
    EXPECT_NEAR(static_cast<double>(factors[h]), c_at(0), 0x1p-24 * c_at(0));
    if (x > limit) {
      EXPECT_EQ(factors[h], 100.0f);
      EXPECT_EQ(d_w[h], 0.0f);
      continue;
    }
    const double step = 0x1p-12, measured = (c_at(step) - c_at(-step)) / (2 * step);  // off by step²/6 of itself
    const double want = static_cast<double>(d_factors[h]) * measured;
    EXPECT_NEAR(static_cast<double>(d_w[h]), want, std::fabs(want) * (step * step / 3 + 0x1p-24));
  }
}

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(QkNorm, RefusesWithTheReason) {
  Buffer x(DType::kF32, {1, 2, 3, 4}), y(DType::kF32, {1, 2, 3, 4}), other(DType::kF32, {1, 2, 3, 5});
  const ConstTensor in = std::as_const(x).tensor();
  std::vector<float> five(5);
  EXPECT_EQ(said_by([&] {
              normalise({Kind::kRms, -1}, in, y.tensor());
            }),
            "eps: -1, but a finite number of at least 0 is wanted");
  EXPECT_EQ(said_by([&] {
              normalise({Kind::kRms, 1e-6, five}, in, y.tensor());
            }),
            "gain: 5 values, but dim 4 or heads 2 × dim are wanted");
  EXPECT_EQ(said_by([&] { normalise({}, in, other.tensor()); }),
            "y: shape is [1, 2, 3, 5], but [1, 2, 3, 4] is wanted");
  Tensor shifted = x.tensor();
  shifted.data = static_cast<float*>(shifted.data) + 4;
  EXPECT_EQ(said_by([&] { normalise({}, in, shifted); }), "y: overlaps x without being the same");
  EXPECT_EQ(said_by([&] { normalise_backward({}, in, in, y.tensor(), five); }), "d_gain: 5 values, but 4 are wanted");
  EXPECT_EQ(said_by([&] { cosine_factors(std::vector<float>(2), five); }), "factors: 5 values, but w has 2");
  EXPECT_EQ(said_by([&] { cosine_factors_backward(std::vector<float>(5), std::vector<float>(4), five); }),
            "d_factors: 4 values, but w has 5");
}

}  // namespace
}  // namespace rootdk::test
