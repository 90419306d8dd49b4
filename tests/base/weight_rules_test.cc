// Rules on weights: QK-clip brings exploded heads back to the threshold and leaves the others alone;
// σ-reparametrisation and its gradient against differences.
#include "rootdk/weight_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "support/buffer.h"

namespace rootdk::test {
namespace {

constexpr double kU32 = 0x1p-24;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// One layer's q and k projections with biases, [1, heads, dim, width] and [1, heads, 1, dim], and some inputs.
struct Layer {
  static constexpr std::int64_t kHeadsQ = 4, kDim = 8, kWidth = 12, kLength = 10;
  std::int64_t heads_kv;
  Buffer w_q, b_q, w_k, b_k, x;

  explicit Layer(std::int64_t kv, DType dtype = DType::kF64)
      : heads_kv(kv),
        w_q(dtype, {1, kHeadsQ, kDim, kWidth}),
        b_q(dtype, {1, kHeadsQ, 1, kDim}),
        w_k(dtype, {1, kv, kDim, kWidth}),
        b_k(dtype, {1, kv, 1, kDim}),
        x(DType::kF64, {2, 1, kLength, kWidth}) {
    Rng rng(5);
    for (Buffer* b : {&w_q, &b_q, &w_k, &b_k, &x}) b->fill_normal(rng, 1);
    for (std::int64_t h = 0; h < kHeadsQ; ++h)  // heads explode to different degrees
      for (std::int64_t d = 0; d < kDim; ++d)
        for (std::int64_t c = 0; c < kWidth; ++c) w_q.set(0, h, d, c, w_q.get(0, h, d, c) * static_cast<double>(h * h));
  }
  QkWeights weights() { return {w_q.tensor(), b_q.tensor(), w_k.tensor(), b_k.tensor()}; }

  Buffer project(const Buffer& w, const Buffer& b) const {
    const std::int64_t heads = w.tensor().shape[1];
    Buffer out(DType::kF64, {2, heads, kLength, kDim});
    for (std::int64_t n = 0; n < 2; ++n)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < kLength; ++i)
          for (std::int64_t d = 0; d < kDim; ++d) {
            double sum = b.get(0, h, 0, d);
            for (std::int64_t c = 0; c < kWidth; ++c) sum += w.get(0, h, d, c) * x.get(n, 0, i, c);
            out.set(n, h, i, d, sum);
          }
    return out;
  }
  std::vector<float> max_raw() const {
    const Buffer q = project(w_q, b_q), k = project(w_k, b_k);
    Buffer o(DType::kF64, {2, kHeadsQ, kLength, kDim});
    return max_raw_of(forward({}, {q.tensor(), k.tensor(), k.tensor()}, {o.tensor()}));
  }
};

TEST(QkClip, BringsExplodedHeadsToTheThreshold) {
  for (const std::int64_t heads_kv : {4, 2, 1})
    for (const double alpha : {0.5, 0.0, 1.0, 0.3}) {
      SCOPED_TRACE(std::to_string(heads_kv) + " key heads, alpha " + std::to_string(alpha));
      Layer layer(heads_kv);
      const std::vector<float> before = layer.max_raw();
      const double threshold = 20;
      const std::vector<double> gamma = qk_clip({threshold, alpha}, before, heads_kv, layer.weights());
      const std::vector<float> after = layer.max_raw();
      int clipped = 0;
      for (std::size_t h = 0; h < after.size(); ++h) {
        const double s = static_cast<double>(before[h]);
        EXPECT_EQ(gamma[h], s > threshold ? threshold / s : 1.0);
        // S is an f32, so γ·S is off by u; the weights are double.
        EXPECT_NEAR(static_cast<double>(after[h]), std::min(s, threshold), 4 * kU32 * threshold) << h;
        clipped += s > threshold;
      }
      EXPECT_GE(clipped, 1);
      EXPECT_LT(clipped, 4) << "some head must be left alone";
    }
}

TEST(QkClip, SharesGammaBetweenQueriesAndKeys) {
  Layer layer(4), before(4);
  const std::vector<double> gamma = qk_clip({10, 0.25}, std::vector<float>{5, 40, -3, 160}, 4, layer.weights());
  EXPECT_EQ(gamma, (std::vector<double>{1, 0.25, 1, 0.0625}));
  for (std::int64_t h = 0; h < 4; ++h) {
    const double on_q = std::pow(gamma[static_cast<std::size_t>(h)], 0.25),
                 on_k = std::pow(gamma[static_cast<std::size_t>(h)], 0.75);
    for (std::int64_t d = 0; d < Layer::kDim; ++d) {
      EXPECT_EQ(layer.b_q.get(0, h, 0, d), on_q * before.b_q.get(0, h, 0, d));
      EXPECT_EQ(layer.b_k.get(0, h, 0, d), on_k * before.b_k.get(0, h, 0, d));
      for (std::int64_t c = 0; c < Layer::kWidth; ++c) {
        EXPECT_EQ(layer.w_q.get(0, h, d, c), on_q * before.w_q.get(0, h, d, c));
        EXPECT_EQ(layer.w_k.get(0, h, d, c), on_k * before.w_k.get(0, h, d, c));
      }
    }
  }
}

TEST(QkClip, LeavesSharedKeysAlone) {
  Layer layer(2), before(2);
  qk_clip({10, 0.25}, std::vector<float>{5, 40, 20, 160}, 2, layer.weights());
  EXPECT_EQ(layer.w_k.values(), before.w_k.values());
  EXPECT_EQ(layer.b_k.values(), before.b_k.values());
  EXPECT_EQ(layer.w_q.get(0, 3, 2, 1), 0.0625 * before.w_q.get(0, 3, 2, 1));
}

TEST(QkClip, NonPositiveMaximaAndLogOnlyChangeNothing) {
  Layer layer(4), before(4);
  EXPECT_EQ(qk_clip({10}, std::vector<float>{0, -50, -kInf, 10}, 4, layer.weights()), std::vector<double>(4, 1.0));
  EXPECT_EQ(qk_clip({10, 0.5, true}, std::vector<float>{20, 40, 80, 5}, 4, layer.weights()),
            (std::vector<double>{0.5, 0.25, 0.125, 1}));
  EXPECT_EQ(layer.w_q.values(), before.w_q.values());
  EXPECT_EQ(layer.w_k.values(), before.w_k.values());
  EXPECT_EQ(layer.b_q.values(), before.b_q.values());
}

TEST(QkClip, TakesTransposedWeightsOfAnyType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Layer layer(4, dtype), before(4, dtype);
    Tensor transposed = layer.w_q.tensor();  // stored [width, heads·dim], as some frameworks do
    std::swap(transposed.shape[2], transposed.shape[3]), std::swap(transposed.strides[2], transposed.strides[3]);
    qk_clip({10, 0.5}, std::vector<float>{40, 1, 1, 1}, 4, {transposed});
    EXPECT_EQ(layer.w_q.get(0, 1, 3, 4), before.w_q.get(0, 1, 3, 4));
    EXPECT_EQ(layer.b_q.values(), before.b_q.values());
    for (std::int64_t c = 0; c < Layer::kWidth; ++c)
      EXPECT_EQ(layer.w_q.get(0, 1, 3, c), before.w_q.get(0, 1, 3, c)) << "1/2 is exact in every dtype";
    for (std::int64_t c = 0; c < Layer::kWidth; ++c)
      EXPECT_EQ(layer.w_q.get(0, 0, 3, c), 0.5 * before.w_q.get(0, 0, 3, c));
  }
}

TEST(QkClip, RefusesWithTheReason) {
  Layer layer(2);
  const std::vector<float> fine = {1, 2, 3, 4};
  const auto said = [&](const QkClip& clip, const std::vector<float>& s, std::int64_t heads_kv,
                        const QkWeights& w = {}) { return said_by([&] { qk_clip(clip, s, heads_kv, w); }); };
  EXPECT_EQ(said({0}, fine, 2), "threshold: 0, but a finite positive number is wanted");
  EXPECT_EQ(said({10, 1.5}, fine, 2), "alpha: 1.5, but 0 to 1 is wanted");
  EXPECT_EQ(said({}, fine, 3), "heads_kv: 3, which does not divide the 4 heads of max_raw");
  EXPECT_EQ(said({}, fine, 0), "heads_kv: 0, which does not divide the 4 heads of max_raw");
  EXPECT_EQ(said({}, {1, std::nanf(""), 3, 4}, 2), "max_raw: value nan of head 1 cannot be clipped to a finite one");
  EXPECT_EQ(said({}, {1, 2, 3, kInf}, 2), "max_raw: value inf of head 3 cannot be clipped to a finite one");
  EXPECT_EQ(said({}, fine, 4, layer.weights()), "w_k: shape is [1, 2, 8, 12], but [1, 4, 8, 12] is wanted");
  EXPECT_EQ(said_by([] { max_raw_of(Stats{}); }), "stats: level is none, but basic is wanted");
}

Buffer random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Buffer w(DType::kF64, {1, 1, rows, columns});
  Rng rng(seed);
  w.fill_normal(rng, 1);
  return w;
}

TEST(SigmaReparam, FindsTheLargestSingularValue) {
  Buffer diagonal(DType::kF64, {1, 1, 3, 4});
  diagonal.fill(0);
  diagonal.set(0, 0, 0, 1, 2), diagonal.set(0, 0, 1, 3, -5), diagonal.set(0, 0, 2, 0, 1);
  const SingularTriple known = largest_singular_value(std::as_const(diagonal).tensor());
  EXPECT_TRUE(known.converged);
  EXPECT_NEAR(known.sigma, 5, 5 * 1e-9);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::int64_t rows = 1 + static_cast<std::int64_t>(seed % 7),
                       columns = 1 + static_cast<std::int64_t>(seed * 5 % 9);
    const Buffer w = random_matrix(rows, columns, seed);
    const double tolerance = 1e-11;
    const SingularTriple t = largest_singular_value(w.tensor(), {tolerance, 100000});
    ASSERT_TRUE(t.converged) << seed;
    // σ·u = W·v by construction; Wᵀ·u = σ·v is what the tolerance is about.
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c) sum += w.get(0, 0, r, c) * t.v[static_cast<std::size_t>(c)];
      EXPECT_NEAR(sum, t.sigma * t.u[static_cast<std::size_t>(r)], 32 * 0x1p-53 * t.sigma);
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) sum += w.get(0, 0, r, c) * t.u[static_cast<std::size_t>(r)];
      EXPECT_NEAR(sum, t.sigma * t.v[static_cast<std::size_t>(c)], 2 * tolerance * t.sigma);
    }
    // No direction is stretched more.
    Rng rng(seed + 100);
    for (int n = 0; n < 200; ++n) {
      double in = 0, out = 0;
      std::vector<double> x(static_cast<std::size_t>(columns));
      for (double& v : x) v = rng.normal(), in += v * v;
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < columns; ++c) sum += w.get(0, 0, r, c) * x[static_cast<std::size_t>(c)];
        out += sum * sum;
      }
      EXPECT_LE(out, t.sigma * t.sigma * in * (1 + 1e-10));
    }
    const SingularTriple again = largest_singular_value(w.tensor(), {tolerance, 100000}, t.v);
    EXPECT_EQ(again.steps, 1) << "a converged start needs no more steps";
  }
}

TEST(SigmaReparam, FindsItFromAStartThatSeesNothing) {
  Buffer w(DType::kF64, {1, 1, 2, 2});
  w.fill(0);
  w.set(0, 0, 1, 0, 3);
  EXPECT_NEAR(largest_singular_value(std::as_const(w).tensor(), {}, std::vector<double>{0, 1}).sigma, 3, 1e-9);
  const SingularTriple given_up = largest_singular_value(random_matrix(30, 30, 1).tensor(), {1e-12, 2});
  EXPECT_FALSE(given_up.converged);
  EXPECT_EQ(given_up.steps, 2);
}

TEST(SigmaReparam, ResultHasTheGainForItsLargestSingularValue) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Buffer w(dtype, {1, 1, 5, 7}), out(dtype, {1, 1, 5, 7}, Layout::kPadded);
    Rng rng(9);
    w.fill_normal(rng, 3);
    sigma_reparam(std::as_const(w).tensor(), 1.75, out.tensor());
    const double rounding =
        dtype == DType::kF32 ? kU32 * std::sqrt(35.0) : 0;  // of the elements, in the Frobenius norm
    EXPECT_NEAR(largest_singular_value(std::as_const(out).tensor()).sigma, 1.75, 1.75 * (4e-9 + rounding));
    EXPECT_TRUE(out.guards_intact());
    sigma_reparam(w.tensor(), 1.75, w.tensor());
    EXPECT_EQ(w.values(), out.values()) << "in place";
  }
}

TEST(SigmaReparam, GradientsMatchDifferences) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Buffer w = random_matrix(6, 4, seed), d_out = random_matrix(6, 4, seed + 50),
                 direction = random_matrix(6, 4, seed + 90);
    const double gain = 1.3;
    const PowerIteration precise{1e-13, 100000};
    const auto loss_at = [&](double h, double g) {
      Buffer moved = w, out(DType::kF64, {1, 1, 6, 4});
      double sum = 0;
      for (std::int64_t r = 0; r < 6; ++r)
        for (std::int64_t c = 0; c < 4; ++c) moved.set(0, 0, r, c, w.get(0, 0, r, c) + h * direction.get(0, 0, r, c));
      sigma_reparam(std::as_const(moved).tensor(), g, out.tensor(), precise);
      for (std::int64_t r = 0; r < 6; ++r)
        for (std::int64_t c = 0; c < 4; ++c) sum += out.get(0, 0, r, c) * d_out.get(0, 0, r, c);
      return sum;
    };
    Buffer unused(DType::kF64, {1, 1, 6, 4}), d_w(DType::kF64, {1, 1, 6, 4});
    const SingularTriple triple = sigma_reparam(w.tensor(), gain, unused.tensor(), precise);
    const double d_gain = sigma_reparam_backward(w.tensor(), gain, triple, d_out.tensor(), d_w.tensor());
    double analytic = 0;
    for (std::int64_t r = 0; r < 6; ++r)
      for (std::int64_t c = 0; c < 4; ++c) analytic += d_w.get(0, 0, r, c) * direction.get(0, 0, r, c);
    const double h = 0x1p-10;
    const double coarse = (loss_at(h, gain) - loss_at(-h, gain)) / (2 * h),
                 fine = (loss_at(h / 2, gain) - loss_at(-h / 2, gain)) / h;
    // Extrapolated differences; their difference bounds the truncation, and σ's tolerance and rounding are divided by
    // h. u and v are off by the tolerance times σ²/(σ² − σ₂²), a few tens here.
    const double rounding = 1e-13 * 100 * 24 / h;
    EXPECT_NEAR(analytic, (4 * fine - coarse) / 3, std::fabs(fine - coarse) + rounding) << seed;
    EXPECT_NEAR(d_gain, (loss_at(0, gain + h) - loss_at(0, gain - h)) / (2 * h), rounding) << seed;
  }
}

TEST(SigmaReparam, RefusesWithTheReason) {
  Buffer zero(DType::kF64, {1, 1, 2, 3}), out(DType::kF64, {1, 1, 2, 3}), bad(DType::kF64, {1, 1, 2, 3});
  zero.fill(0), bad.fill(std::nan(""));
  const ConstTensor w = std::as_const(zero).tensor();
  EXPECT_EQ(said_by([&] { sigma_reparam(w, 1, out.tensor()); }),
            "w: is all zero, so there is no singular value to divide by");
  EXPECT_EQ(said_by([&] { sigma_reparam(bad.tensor(), 1, out.tensor()); }),
            "w: has values that are not finite, or too large to square");
  EXPECT_EQ(said_by([&] { largest_singular_value(w, {0}); }), "tolerance: 0, but a positive number is wanted");
  EXPECT_EQ(said_by([&] { largest_singular_value(w, {1e-9, 0}); }), "most_steps: 0, but at least 1 is wanted");
  EXPECT_EQ(said_by([&] { largest_singular_value(w, {}, std::vector<double>{1}); }),
            "start: 1 values, but w has 3 columns");
  EXPECT_EQ(said_by([&] {
              largest_singular_value(w, {}, std::vector<double>{0, 0, 0});
            }),
            "start: is zero or not finite");
  EXPECT_EQ(said_by([&] { sigma_reparam_backward(w, 1, {}, w, out.tensor()); }),
            "triple: 0 by 0 with sigma 0, but it must be what sigma_reparam returned for w");
  Tensor shifted = zero.tensor();
  shifted.strides[2] = 1;
  EXPECT_EQ(said_by([&] { sigma_reparam(random_matrix(2, 3, 1).tensor(), 1, shifted); }),
            "out: strides [6, 6, 1, 1] make it overlap itself");
}

}  // namespace
}  // namespace rootdk::test
