// From weights to score variance: against simulated inputs that go through real norms, projections and rotations, one
// by one.
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "rootdk/theory.h"
#include "support/message.h"
#include "support/rng.h"
#include "theory/batches.h"
#include "theory/matrix.h"

namespace rootdk::theory {
namespace {

using Values = std::vector<double>;
using Map = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr std::int64_t kDim = 6, kWidth = 20;

Values normals(std::uint64_t seed, std::int64_t count, double std = 1, double mean = 0) {
  test::Rng rng(seed);
  Values out(static_cast<std::size_t>(count));
  for (double& x : out) x = mean + std * rng.normal();
  return out;
}

Map matrix(const Values& values, std::int64_t rows) {
  return {values.data(), rows, static_cast<Eigen::Index>(values.size()) / rows};
}

// One side of a head as a model has it: what the input looks like, the norm, the projection.
struct Model {
  Values weight, bias, gain, norm_bias;
  Norm::Kind kind = Norm::Kind::kNone;
  double gain_offset = 0;
  Values mean, root;  // inputs are mean + root·(standard normal), where given

  Model(std::uint64_t seed, Norm::Kind norm_kind, bool biases) : kind(norm_kind) {
    weight = normals(seed, kDim * kWidth, 0.3);
    if (biases) bias = normals(seed + 1, kDim, 0.7);
    if (kind == Norm::Kind::kNone) return;
    gain = normals(seed + 2, kWidth, 0.4, 1);
    if (biases) norm_bias = normals(seed + 3, kWidth, 0.5);
  }

  Projection projection() const {
    return {
        .weight = weight, .bias = bias, .norm = {kind, gain, norm_bias, gain_offset}, .mean = mean, .covariance = {}};
  }

  // A token's q or k.
  Eigen::VectorXd draw(test::Rng& rng) const {
    Eigen::VectorXd x(kWidth);
    for (double& c : x) c = rng.normal();
    if (!root.empty()) x = matrix(root, kWidth) * x;
    if (!mean.empty()) x += Eigen::Map<const Eigen::VectorXd>(mean.data(), kWidth);
    if (kind == Norm::Kind::kLayer) x.array() -= x.mean();
    if (kind != Norm::Kind::kNone) x *= std::sqrt(static_cast<double>(kWidth)) / x.norm();
    for (std::size_t i = 0; i < gain.size(); ++i) x[static_cast<Eigen::Index>(i)] *= gain[i] + gain_offset;
    for (std::size_t i = 0; i < norm_bias.size(); ++i) x[static_cast<Eigen::Index>(i)] += norm_bias[i];
    Eigen::VectorXd y = matrix(weight, kDim) * x;
    for (std::size_t i = 0; i < bias.size(); ++i) y[static_cast<Eigen::Index>(i)] += bias[i];
    return y;
  }
};

Eigen::VectorXd rotate(Eigen::VectorXd v, const Rotation& rotation, double position) {
  const auto pairs = static_cast<Eigen::Index>(rotation.frequencies.size());
  for (Eigen::Index i = 0; i < pairs; ++i) {
    const bool halves = rotation.pairing == Rotation::Pairing::kHalfSplit;
    double &a = v[halves ? i : 2 * i], &b = v[halves ? i + pairs : 2 * i + 1];
    const double angle = position * rotation.frequencies[static_cast<std::size_t>(i)];
    const double turned_a = a * std::cos(angle) - b * std::sin(angle),
                 turned_b = a * std::sin(angle) + b * std::cos(angle);
    a = turned_a, b = turned_b;
  }
  return v;
}

// Rows of 32 keys for one query, the distances drawn as well.
struct Measured {
  Batches mean, within, total;
};

Measured simulate(const Model& q, const Model& k, const Meeting& meeting, double fixed_distance = -1) {
  test::Rng rng(99);
  const int rows = 100, keys = 32;
  Measured out;
  for (int b = 0; b < Batches::kCount; ++b) {
    double mean = 0, within = 0, firsts = 0, first_squares = 0;
    for (int i = 0; i < rows; ++i) {
      const double query_position = 10000;
      const Eigen::VectorXd query = rotate(q.draw(rng), meeting.rotation, query_position);
      double sum = 0, squares = 0;
      for (int j = 0; j < keys; ++j) {
        const double distance =
            fixed_distance >= 0 ? fixed_distance : static_cast<double>(rng.integer(0, meeting.context - 1));
        const double s = query.dot(rotate(k.draw(rng), meeting.rotation, query_position - distance));
        sum += s, squares += s * s;
        if (j == 0) firsts += s, first_squares += s * s;  // pairs that share nothing
      }
      mean += sum / keys / rows;
      within += (squares - sum * sum / keys) / (keys - 1) / rows;
    }
    out.mean.add(mean), out.within.add(within), out.total.add((first_squares - firsts * firsts / rows) / (rows - 1));
  }
  return out;
}

HeadTheory theory_of(const Model& q, const Model& k, const Meeting& meeting = {}) {
  return head_theory(project(q.projection(), kDim), project(k.projection(), kDim), meeting);
}

void expect_agree(const Measured& measured, const HeadTheory& theory) {
  expect_agrees(measured.mean, theory.mean, "mean", 0.05, theory.divisor);
  expect_agrees(measured.within, theory.within_row_variance, "within-row variance", 0.05);
  expect_agrees(measured.total, theory.total_variance, "total variance", 0.05);
}

TEST(Head, PlainProjections) {
  const Model q(1, Norm::Kind::kNone, false), k(11, Norm::Kind::kNone, false);
  const HeadTheory theory = theory_of(q, k, {.scale = 0.5});
  expect_agree(simulate(q, k, {}), theory);
  const auto product = (matrix(q.weight, kDim).transpose() * matrix(k.weight, kDim)).eval();
  EXPECT_NEAR(theory.within_row_variance, product.squaredNorm(), 1e-12 * product.squaredNorm());
  EXPECT_DOUBLE_EQ(theory.divisor, std::sqrt(theory.within_row_variance));
  EXPECT_DOUBLE_EQ(theory.sigma, theory.divisor / 2);
  EXPECT_DOUBLE_EQ(theory.divisor_over_sqrt_dim, theory.divisor / std::sqrt(6.0));
  EXPECT_FALSE(theory.bound);
  EXPECT_FALSE(theory.phase_average);
  EXPECT_EQ(theory.mean, 0);
}

TEST(Head, BiasesAndFoldedNorms) {
  for (const Norm::Kind kind : {Norm::Kind::kNone, Norm::Kind::kRms, Norm::Kind::kLayer}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Model q(2, kind, true), k(12, kind, true);
    const HeadTheory theory = theory_of(q, k);
    expect_agree(simulate(q, k, {}), theory);
    EXPECT_GT(theory.total_variance, 1.1 * theory.within_row_variance);
  }
}

TEST(Head, GainsStoredAsDifferences) {
  Model q(3, Norm::Kind::kRms, false), k(13, Norm::Kind::kRms, false);
  const double variance = theory_of(q, k).within_row_variance;
  for (Model* m : {&q, &k}) {
    for (double& g : m->gain) g -= 1;
    m->gain_offset = 1;
  }
  EXPECT_NEAR(theory_of(q, k).within_row_variance, variance, 1e-12 * variance);
}

// Queries and keys from different places, as in cross-attention.
TEST(Head, MeasuredMeansAndCovariances) {
  Model q(4, Norm::Kind::kNone, true), k(14, Norm::Kind::kNone, true);
  std::vector<Values> covariances;
  for (Model* m : {&q, &k}) {
    m->mean = normals(m->weight.size() + covariances.size(), kWidth, 0.5);
    m->root = normals(40 + covariances.size(), kWidth * kWidth, 0.3);
    const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> covariance =
        matrix(m->root, kWidth) * matrix(m->root, kWidth).transpose();
    covariances.emplace_back(covariance.data(), covariance.data() + covariance.size());
  }
  Projection projection_q = q.projection(), projection_k = k.projection();
  projection_q.covariance = covariances[0];
  projection_k.covariance = covariances[1];
  expect_agree(simulate(q, k, {}), head_theory(project(projection_q, kDim), project(projection_k, kDim)));
}

TEST(Head, RotatedWithBiases) {
  const Values frequencies{1.0, 0.05};
  const Values distances{0, 1, 7, 40};
  for (const Rotation::Pairing pairing : {Rotation::Pairing::kHalfSplit, Rotation::Pairing::kInterleaved}) {
    SCOPED_TRACE(static_cast<int>(pairing));
    const Model q(5, Norm::Kind::kLayer, true), k(15, Norm::Kind::kLayer, true);
    const Meeting meeting{.scale = 1, .rotation = {pairing, frequencies}, .context = 50, .distances = distances};
    const HeadTheory theory = theory_of(q, k, meeting);
    expect_agree(simulate(q, k, meeting), theory);
    ASSERT_EQ(theory.curve.size(), distances.size());
    for (std::size_t i = 0; i < distances.size(); ++i) {
      SCOPED_TRACE(distances[i]);
      const Measured measured = simulate(q, k, meeting, distances[i]);
      expect_agrees(measured.mean, theory.curve[i].mean, "mean", 0.05, theory.divisor);
      expect_agrees(measured.within, theory.curve[i].variance, "variance", 0.05);
    }
  }
}

// The closed form over a context is the mean over its distances; and nothing turns at distance 0.
TEST(Head, ContextIsTheMeanOfItsDistances) {
  const Values frequencies{0.9, 0.3, 1e-3}, none(3, 0.0);
  const Model q(6, Norm::Kind::kRms, true), k(16, Norm::Kind::kRms, true);
  const std::int64_t context = 37;
  Values distances;
  for (std::int64_t d = 0; d < context; ++d) distances.push_back(static_cast<double>(d));
  const HeadTheory theory = theory_of(
      q, k, {.rotation = {Rotation::Pairing::kInterleaved, frequencies}, .context = context, .distances = distances});
  double mean = 0;
  for (const AtDistance& at : theory.curve) mean += at.mean / static_cast<double>(context);
  EXPECT_NEAR(theory.mean, mean, 1e-12 * theory.divisor);

  Model unbiased_q = q, unbiased_k = k;
  for (Model* m : {&unbiased_q, &unbiased_k}) m->bias.clear(), m->norm_bias.clear();
  const Meeting meeting{
      .rotation = {Rotation::Pairing::kInterleaved, frequencies}, .context = context, .distances = distances};
  const HeadTheory unbiased = theory_of(unbiased_q, unbiased_k, meeting);
  double variance = 0;
  for (const AtDistance& at : unbiased.curve) variance += at.variance / static_cast<double>(context);
  EXPECT_NEAR(unbiased.within_row_variance, variance, 1e-12 * variance);
  EXPECT_NEAR(unbiased.curve[0].variance, theory_of(unbiased_q, unbiased_k).within_row_variance, 1e-12 * variance);

  const HeadTheory still = theory_of(q, k, {.rotation = {Rotation::Pairing::kHalfSplit, none}});
  EXPECT_NEAR(still.within_row_variance, theory_of(q, k).within_row_variance, 1e-12 * still.within_row_variance);
  EXPECT_NEAR(still.total_variance, theory_of(q, k).total_variance, 1e-12 * still.total_variance);
}

// ½ Σ tr G_q[pp]·tr G_k[pp], plus the part that does not turn; long contexts come to it.
TEST(Head, PhaseAverage) {
  const Values frequencies{1.0, 0.37};
  const Model q(7, Norm::Kind::kNone, false), k(17, Norm::Kind::kNone, false);
  const Projected pq = project(q.projection(), kDim), pk = project(k.projection(), kDim);
  const Meeting meeting{.rotation = {Rotation::Pairing::kHalfSplit, frequencies}, .context = 1'000'000};
  const HeadTheory theory = head_theory(pq, pk, meeting);
  const Map a = matrix(pq.covariance, kDim), b = matrix(pk.covariance, kDim);
  double expected = 0;
  for (Eigen::Index i = 0; i < 2; ++i) expected += 0.5 * (a(i, i) + a(i + 2, i + 2)) * (b(i, i) + b(i + 2, i + 2));
  for (Eigen::Index i = 4; i < 6; ++i)
    for (Eigen::Index j = 4; j < 6; ++j) expected += a(i, j) * b(i, j);
  EXPECT_NEAR(theory.phase_average.value(), expected, 1e-12 * expected);
  EXPECT_NEAR(theory.within_row_variance, expected, 1e-4 * expected);
}

TEST(Head, QkNorm) {
  const Values gain_q = normals(8, kDim, 0.5, 1), gain_k = normals(18, kDim, 0.5, -1);
  const Projected q = normalised({Norm::Kind::kRms, gain_q}, kDim), k = normalised({Norm::Kind::kRms, gain_k}, kDim);
  double variance = 0, largest = 0;
  for (std::size_t i = 0; i < gain_q.size(); ++i) {
    variance += std::pow(gain_q[i] * gain_k[i], 2);
    largest = std::max(largest, std::fabs(gain_q[i] * gain_k[i]));
  }
  const HeadTheory plain = head_theory(q, k, {.scale = 0.25});
  EXPECT_NEAR(plain.within_row_variance, variance, 1e-12 * variance);
  EXPECT_NEAR(plain.sigma, 0.25 * std::sqrt(variance), 1e-12);
  EXPECT_NEAR(plain.bound.value(), 0.25 * 6 * largest, 1e-12);

  // Turning mixes within a pair: (0, 2) and (1, 3); 4 and 5 stand still.
  const Values frequencies{1.0, 0.1};
  const auto over_pair = [&](std::size_t i, std::size_t j) {
    return std::max(std::fabs(gain_q[i]), std::fabs(gain_q[j])) * std::max(std::fabs(gain_k[i]), std::fabs(gain_k[j]));
  };
  const double pairs =
      std::max({over_pair(0, 2), over_pair(1, 3), std::fabs(gain_q[4] * gain_k[4]), std::fabs(gain_q[5] * gain_k[5])});
  const HeadTheory turned =
      head_theory(q, k, {.scale = 0.25, .rotation = {Rotation::Pairing::kHalfSplit, frequencies}});
  EXPECT_NEAR(turned.bound.value(), 0.25 * 6 * pairs, 1e-12);

  // LayerNorm with gain and bias against vectors that went through one.
  const Values bias_q = normals(28, kDim, 0.3), bias_k = normals(38, kDim, 0.3);
  const HeadTheory layer = head_theory(normalised({Norm::Kind::kLayer, gain_q, bias_q}, kDim),
                                       normalised({Norm::Kind::kLayer, gain_k, bias_k}, kDim));
  test::Rng rng(48);
  const auto draw = [&](const Values& gain, const Values& bias) {
    Eigen::VectorXd x(kDim);
    for (double& c : x) c = rng.normal();
    x.array() -= x.mean();
    x *= std::sqrt(static_cast<double>(kDim)) / x.norm();
    x.array() *= Eigen::Map<const Eigen::ArrayXd>(gain.data(), kDim);
    x.array() += Eigen::Map<const Eigen::ArrayXd>(bias.data(), kDim);
    return x;
  };
  Batches mean, total;
  for (int b = 0; b < Batches::kCount; ++b) {
    double sum = 0, squares = 0;
    for (int i = 0; i < 1000; ++i) {
      const double s = draw(gain_q, bias_q).dot(draw(gain_k, bias_k));
      ASSERT_LE(std::fabs(s), layer.bound.value());
      sum += s, squares += s * s;
    }
    mean.add(sum / 1000), total.add((squares - sum * sum / 1000) / 999);
  }
  expect_agrees(mean, layer.mean, "mean", 0.05, layer.divisor);
  expect_agrees(total, layer.total_variance, "total variance");
}

Eigen::MatrixXd with_gain(const Model& m) {
  return matrix(m.weight, kDim) * Eigen::Map<const Eigen::VectorXd>(m.gain.data(), kWidth).asDiagonal();
}

// Without bias and rotation the bound is reached by the first singular vectors; with them it holds.
TEST(Head, Bound) {
  Model q(9, Norm::Kind::kRms, false), k(19, Norm::Kind::kRms, false);
  const HeadTheory sharp = theory_of(q, k, {.scale = -2});
  const Eigen::MatrixXd product = with_gain(q).transpose() * with_gain(k);
  const double largest = Eigen::JacobiSVD<Eigen::MatrixXd>(product).singularValues()[0];
  EXPECT_NEAR(sharp.bound.value(), 2 * kWidth * largest, 1e-10 * largest);

  const Values frequencies{1.0, 0.1, 0.01};
  for (const Norm::Kind kind : {Norm::Kind::kRms, Norm::Kind::kLayer}) {
    const Model biased_q(9, kind, true), biased_k(19, kind, true);
    const Meeting meeting{.rotation = {Rotation::Pairing::kHalfSplit, frequencies}};
    const HeadTheory theory = theory_of(biased_q, biased_k, meeting);
    test::Rng rng(29);
    double seen = 0;
    for (int i = 0; i < 20000; ++i) {
      const double position = static_cast<double>(rng.integer(0, 100));
      seen = std::max(seen, std::fabs(biased_q.draw(rng).dot(rotate(biased_k.draw(rng), meeting.rotation, position))));
    }
    EXPECT_LE(seen, theory.bound.value());
    EXPECT_GE(seen, theory.bound.value() / 20);
  }
  // One input, LayerNorm: σ₁ of the centred weights times √width, reached exactly.
  const Model layer(39, Norm::Kind::kLayer, false);
  const Projected projected = project(layer.projection(), kDim);
  Eigen::MatrixXd centred = with_gain(layer);
  centred.colwise() -= centred.rowwise().mean().eval();
  const double first = Eigen::JacobiSVD<Eigen::MatrixXd>(centred).singularValues()[0];
  EXPECT_NEAR(spectral_norm(projected) * projected.input_bound.value(), first * std::sqrt(static_cast<double>(kWidth)),
              1e-10);
}

// For Gaussian inputs E s⁴ = (3 + 6/r)·Var².
TEST(Head, EffectiveRankGivesTheKurtosis) {
  const Model q(10, Norm::Kind::kNone, false), k(20, Norm::Kind::kNone, false);
  const HeadTheory theory = theory_of(q, k);
  const auto product = (matrix(q.weight, kDim).transpose() * matrix(k.weight, kDim)).eval();
  const Eigen::ArrayXd values = Eigen::JacobiSVD<Eigen::MatrixXd>(product).singularValues().array();
  const double rank = std::pow(values.square().sum(), 2) / values.pow(4).sum();
  EXPECT_NEAR(theory.effective_rank, rank, 1e-10 * rank);
  test::Rng rng(30);
  Batches fourth;
  for (int b = 0; b < Batches::kCount; ++b) {
    double sum = 0;
    for (int i = 0; i < 2000; ++i) sum += std::pow(q.draw(rng).dot(k.draw(rng)) / theory.divisor, 4) / 2000;
    fourth.add(sum);
  }
  expect_agrees(fourth, 3 + 6 / theory.effective_rank, "fourth moment", 0.05);
}

// W_q, W_k of independent weights with standard deviation 1/√D: √d is right, nothing is aligned. A copy is aligned.
TEST(Head, WhyAHeadIsWhatItIs) {
  const std::int64_t dim = 32, width = 512;
  const Values a = normals(31, dim * width, 1 / std::sqrt(512.0)), b = normals(32, dim * width, 3 / std::sqrt(512.0));
  const Projected q = project({.weight = a}, dim), k = project({.weight = b}, dim);
  const HeadTheory theory = head_theory(q, k);
  EXPECT_NEAR(theory.sigma_q, 1, 0.05);
  EXPECT_NEAR(theory.sigma_k, 3, 0.15);
  EXPECT_NEAR(theory.alignment, 1, 0.1);
  EXPECT_NEAR(theory.divisor_over_sqrt_dim, 3, 0.3);
  // Two queries of a group share the keys; each is as if it were alone.
  const HeadTheory same = head_theory(k, k);
  EXPECT_NEAR(same.sigma_q, theory.sigma_k, 1e-14);
  Values low_rank(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    low_rank[i] = a[i % static_cast<std::size_t>(width)];  // every row the same
  const Projected narrow = project({.weight = low_rank}, dim);
  const HeadTheory aligned = head_theory(narrow, narrow);
  EXPECT_NEAR(aligned.alignment, static_cast<double>(dim), 1e-9);
  EXPECT_NEAR(aligned.effective_rank, 1, 1e-9);
  const Values bias(static_cast<std::size_t>(dim), 0.5);
  EXPECT_NEAR(head_theory(q, project({.weight = b, .bias = bias}, dim)).key_mean_norm, 0.5 * std::sqrt(32.0), 1e-12);
}

// To rounding: sums of T·S products against two matrices.
TEST(ScoreMoments, NeedNoScores) {
  const std::int64_t rows_q = 37, rows_k = 53, dim = 5;
  const Values q = normals(50, rows_q * dim, 1, 0.4), k = normals(51, rows_k * dim, 2, -0.7);
  const Eigen::MatrixXd s = matrix(q, rows_q) * matrix(k, rows_k).transpose();
  const auto count = static_cast<double>(rows_q * rows_k);
  const ScoreMoments moments = score_moments(q, k, dim);
  const double mean = s.sum() / count, second = s.squaredNorm() / count;
  const double within = (s.colwise() - s.rowwise().mean()).squaredNorm() / count;
  const double rounding = 1e-13 * second;
  EXPECT_NEAR(moments.mean, mean, rounding);
  EXPECT_NEAR(moments.second_moment, second, rounding);
  const Eigen::MatrixXd gram_q = matrix(q, rows_q).transpose() * matrix(q, rows_q) / static_cast<double>(rows_q);
  const Eigen::MatrixXd gram_k = matrix(k, rows_k).transpose() * matrix(k, rows_k) / static_cast<double>(rows_k);
  EXPECT_NEAR(gram_q.cwiseProduct(gram_k).sum(), second, rounding);
  EXPECT_NEAR(moments.total_variance, second - mean * mean, rounding);
  EXPECT_NEAR(moments.within_row_variance, within, rounding);
}

// A large common offset of the keys moves rows, not the spread inside them.
TEST(ScoreMoments, LargeOffsetsDoNotCancel) {
  const Values q = normals(52, 40 * 4), k = normals(53, 60 * 4);
  Values moved = k;
  for (double& x : moved) x += 1e6;
  const double within = score_moments(q, k, 4).within_row_variance;
  EXPECT_NEAR(score_moments(q, moved, 4).within_row_variance, within, 1e-8 * within);
}

TEST(Head, RefusesWhatMakesNoSense) {
  using test::message_of;
  const Values w(24, 1.0), three(3, 1.0), bad{1, NAN};
  EXPECT_EQ(message_of([&] { project({.weight = w}, 0); }), "dim_qk: 0, but at least 1 is wanted");
  EXPECT_EQ(message_of([&] { project({.weight = w}, 7); }), "weight: 24 values, but 7 rows of equal length are wanted");
  EXPECT_EQ(message_of([&] { project({.weight = bad}, 1); }), "weight: nan is not finite");
  EXPECT_EQ(message_of([&] { project({.weight = w, .bias = three}, 4); }), "bias: 3 values, but 4 are wanted");
  EXPECT_EQ(message_of([&] { project({.weight = w, .norm = {.gain = w}}, 4); }),
            "norm: a gain or bias came, but its kind is none");
  EXPECT_EQ(message_of([&] {
              project({.weight = w, .norm = {Norm::Kind::kRms, three}}, 4);
            }),
            "norm.gain: 3 values, but 6 are wanted");
  EXPECT_EQ(message_of([&] { project({.weight = w, .covariance = three}, 4); }),
            "covariance: 3 values, but 36 are wanted");
  EXPECT_EQ(message_of([&] { normalised({}, 4); }), "norm: its kind is none, but RMS or LayerNorm is wanted");
  const Projected four = project({.weight = w}, 4), six = project({.weight = w}, 6);
  EXPECT_EQ(message_of([&] { head_theory(four, six); }), "k: dim is 6, but q has 4");
  EXPECT_EQ(message_of([&] { head_theory(four, four, {.rotation = {.frequencies = three}}); }),
            "rotation.frequencies: 3 pairs, but dim 4 has room for 2");
  EXPECT_EQ(message_of([&] { head_theory(four, four, {.context = 0}); }), "context: 0, but at least 1 is wanted");
  EXPECT_EQ(message_of([&] { head_theory(four, four, {.scale = NAN}); }), "scale: nan is not finite");
  EXPECT_EQ(message_of([&] { score_moments(w, three, 4); }), "k: 3 values, but rows of 4 are wanted");
}

// Against all eigenvalues: of random Gram matrices, of ones that have a rank of 1, of zeros, and of those that are
// diagonal already.
TEST(LargestEigenvalue, IsTheLargestOfAll) {
  std::mt19937_64 generator(5);
  std::normal_distribution<double> normal;
  for (const Eigen::Index size : {1, 2, 3, 8, 33, 64})
    for (const Eigen::Index rank : {Eigen::Index{0}, Eigen::Index{1}, size, 3 * size})
      for (const double scale : {1e-12, 1.0, 1e9}) {
        Matrix w(size, rank);
        for (Eigen::Index i = 0; i < w.size(); ++i) w.data()[i] = scale * normal(generator);
        const Matrix m = rank > 0 ? gram(w) : Matrix(Matrix::Zero(size, size));
        const double exact = Eigen::SelfAdjointEigenSolver<Matrix>(m, Eigen::EigenvaluesOnly).eigenvalues().maxCoeff(),
                     found = largest_eigenvalue(m);
        // Both round by some multiples of 2⁻⁵² times the size and the norm.
        const double close = 8 * static_cast<double>(size) * 0x1p-52 * m.norm();
        EXPECT_NEAR(found, exact, close) << size << " " << rank;
        const Matrix diagonal = Vector(m.diagonal()).asDiagonal();
        EXPECT_NEAR(largest_eigenvalue(diagonal), m.diagonal().maxCoeff(), close);
        EXPECT_NEAR(largest_eigenvalue(-m),
                    -Eigen::SelfAdjointEigenSolver<Matrix>(m, Eigen::EigenvaluesOnly).eigenvalues().minCoeff(), close);
      }
  EXPECT_TRUE(std::isnan(largest_eigenvalue(Matrix::Constant(3, 3, std::numeric_limits<double>::infinity()))));
}

}  // namespace
}  // namespace rootdk::theory
