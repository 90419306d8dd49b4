// One head after another: the products against double, the numbers against theory's own way to them, what initialisers
// give, what does not change.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <numbers>

#include "audit/gram.h"
#include "audit/models.h"
#include "audit/prediction.h"
#include "audit/weights.h"
#include "rootdk/audit.h"
#include "rootdk/theory.h"
#include "support/files.h"

namespace rootdk::audit {
namespace {

Audit audit_of(const std::filesystem::path& path, const Options& options = {}, const Hints& hints = {}) {
  const auto file = checkpoint::Checkpoint::open(path);
  return audit(file, recognise(file, hints), options);
}

// The products -------------------------------------------------------------------------------------------------------

TEST(Gram, IsTheProductOnEveryInstructionSet) {
  ASSERT_FALSE(gram_kernels().empty());
  for (const GramKernel& kernel : gram_kernels())
    for (const std::int64_t rows : {1, 2, 3, 5, 7, 8, 13, 64})
      for (const std::int64_t width : {1, 15, 16, 33, 512, 1100}) {
        Rng rng(static_cast<std::uint64_t>(rows * 10'000 + width));
        const std::int64_t stride = row_stride(width);
        std::vector<float> w(static_cast<std::size_t>(rows * stride), 0.0f);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t i = 0; i < width; ++i)
            w[static_cast<std::size_t>(r * stride + i)] = static_cast<float>(rng.normal());
        std::vector<double> out(static_cast<std::size_t>(rows * rows), NAN);
        kernel.run(rows, stride, w.data(), out.data());
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < rows; ++c) {
            double exact = 0, magnitude = 0;
            for (std::int64_t i = 0; i < width; ++i) {
              const double x = w[static_cast<std::size_t>(r * stride + i)],
                           y = w[static_cast<std::size_t>(c * stride + i)];
              exact += x * y;
              magnitude += std::fabs(x * y);
            }
            // A block's lane adds at most kGramBlock/4 products (lanes are 4 at least), then the lanes: each step
            // rounds by 2⁻²⁴ of at most Σ|xy|.
            const double steps = static_cast<double>(std::min(kGramBlock, stride)) / 4 + 8;
            EXPECT_NEAR(out[static_cast<std::size_t>(r * rows + c)], exact, steps * 0x1p-24 * magnitude)
                << kernel.isa << " " << rows << "×" << width;
            EXPECT_EQ(out[static_cast<std::size_t>(r * rows + c)], out[static_cast<std::size_t>(c * rows + r)]);
          }
      }
}

// QK-norm: q/‖q‖ has the moment that sampling gives, a trace of d, and is isotropic if q is.
TEST(QkNorm, HasTheMomentThatSamplingGives) {
  constexpr std::int64_t kDim = 6;
  Rng rng(3);
  const Matrix w = random_matrix(rng, kDim, 9);
  std::vector<double> covariance(kDim * kDim);
  for (std::int64_t r = 0; r < kDim; ++r)
    for (std::int64_t c = 0; c < kDim; ++c)
      for (std::int64_t i = 0; i < 9; ++i)
        covariance[static_cast<std::size_t>(r * kDim + c)] += w.at(r, i) * w.at(c, i);
  const std::vector<double> moment = normalised_moment(covariance, kDim);
  double trace = 0;
  for (std::int64_t i = 0; i < kDim; ++i) trace += moment[static_cast<std::size_t>(i * kDim + i)];
  EXPECT_NEAR(trace, kDim, 1e-12 * kDim);
  constexpr int kSamples = 40'000;
  std::vector<double> sum(moment.size()), squares(moment.size());
  for (int s = 0; s < kSamples; ++s) {
    const Vector q = rms_normalised(times(w, normal_vector(rng, 9)));
    for (std::size_t i = 0; i < kDim; ++i)
      for (std::size_t j = 0; j < kDim; ++j) {
        sum[i * kDim + j] += q[i] * q[j];
        squares[i * kDim + j] += q[i] * q[j] * q[i] * q[j];
      }
  }
  for (std::size_t i = 0; i < moment.size(); ++i) {
    const double mean = sum[i] / kSamples, error = std::sqrt((squares[i] / kSamples - mean * mean) / kSamples);
    EXPECT_NEAR(moment[i], mean, 4 * error) << i;
  }
  std::vector<double> identity(kDim * kDim);
  for (std::size_t i = 0; i < kDim; ++i) identity[i * kDim + i] = 7;
  const std::vector<double> isotropic = normalised_moment(identity, kDim);
  for (std::size_t i = 0; i < identity.size(); ++i) EXPECT_NEAR(isotropic[i], identity[i] / 7, 1e-13);
}

// Interpolated, and averaged over rows, against the quadrature that averages by itself.
// Weights decide how large an effective rank is, and a hostile file's are any.
TEST(Prediction, LooksAtFewRowsWhateverTheRank) {
  for (const double rank : {0.0, 1.0, 1e3, 1e8, 1e17, 1e30, 1e300, HUGE_VAL}) {
    const std::vector<RowSpread> rows = spread_of_rows(rank);
    double square = 0, weights = 0;
    for (const RowSpread& row : rows) {
      square += row.weight * row.factor * row.factor;
      weights += row.weight;
    }
    EXPECT_LT(rows.size(), 200u) << rank;
    EXPECT_NEAR(weights, 1, 1e-12) << rank;
    // E χ²_r/r; a lattice cut where the density is 1e-6 of its peak leaves out that much.
    EXPECT_NEAR(square, 1, 1e-3) << rank;
  }
}

TEST(Prediction, IsThatOfTheQuadrature) {
  for (const double keys : {2.0, 512.0, 131072.0}) {
    const PredictionTable table(keys, 0.01, 100);
    for (const double sigma : {0.3, 1.0, 2.2, 4.4, 30.0})
      for (const std::int64_t rank : {8, 64}) {
        const Prediction found = table.at(sigma, spread_of_rows(static_cast<double>(rank)));
        const theory::GaussianSoftmax exact = theory::gaussian_softmax(sigma, keys, rank);
        // Interpolation, and a lattice over rows that is cut where its density is 1e-6.
        EXPECT_NEAR(found.entropy, exact.entropy, 1e-3 * std::log(keys)) << sigma << " " << keys;
        EXPECT_NEAR(found.sum_p2, exact.sum_p2, 1e-3 * exact.sum_p2) << sigma << " " << keys;
      }
    const double p_max = theory::gaussian_p_max(2.2, keys, 8);  // what takes longest
    EXPECT_NEAR(table.at(2.2, spread_of_rows(8)).p_max, p_max, 1e-3 * p_max) << keys;
  }
}

// The numbers --------------------------------------------------------------------------------------------------------

// theory::project and head_theory in double, from the same weights: another way to all of it.
TEST(Heads, AreWhatTheoryMakesOfTheirWeights) {
  Rng rng(17);
  const Projections p = [&] {
    Projections made = random_projections(rng, {.heads = 4, .kv_heads = 2, .dim = 8, .width = 40}, true);
    made.norm = made.keys_norm = random_norm(rng, Kind::kRms, 40, false);
    return made;
  }();
  Made made;
  made.add("model.layers.0.self_attn.q_proj.weight", p.q);
  made.add("model.layers.0.self_attn.q_proj.bias", p.q_bias);
  made.add("model.layers.0.self_attn.k_proj.weight", p.k);
  made.add("model.layers.0.self_attn.k_proj.bias", p.k_bias);
  made.add_norm("model.layers.0.input_layernorm", p.norm);
  made.config = {{"model_type", "qwen2"},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"max_position_embeddings", 128},
                 {"rope_theta", 500}};
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  const Audit found = audit_of(folder.path());
  ASSERT_EQ(found.layers.size(), 1u);
  std::vector<double> frequencies;
  for (int i = 0; i < 4; ++i) frequencies.push_back(std::pow(500.0, -2.0 * i / 8));
  const std::vector<double> distances = {0, 1, 2, 4, 8, 16, 32, 64};
  for (const Head& head : found.layers[0].heads) {
    const theory::Norm norm{theory::Norm::Kind::kRms, p.norm.gain, {}, 0};
    const auto side = [&](const Matrix& w, const Vector& b, std::int64_t h) {
      const Matrix rows = rows_of(w, h * 8, 8);
      const Vector bias = rows_of(b, h * 8, 8);
      return theory::project({rows.values, bias, norm, {}, {}}, 8);
    };
    theory::Meeting meeting;
    meeting.scale = 1 / std::sqrt(8.0);
    meeting.rotation.frequencies = frequencies;
    meeting.context = 128;
    meeting.distances = distances;
    const auto exact = theory::head_theory(side(p.q, p.q_bias, head.head), side(p.k, p.k_bias, head.head / 2), meeting);
    // f32 products of 40 terms, and sums of 64 of them with mixed signs.
    const double close = 1e-5 * exact.within_row_variance;
    EXPECT_EQ(head.kv_head, head.head / 2);
    EXPECT_NEAR(head.variance_in_context, exact.within_row_variance, close);
    EXPECT_NEAR(head.variance, *exact.phase_within_row_variance, close);
    EXPECT_NEAR(head.bound, *exact.bound, 1e-5 * *exact.bound);
    EXPECT_NEAR(head.effective_rank, exact.effective_rank, 1e-5 * exact.effective_rank);
    EXPECT_NEAR(head.sigma_q, exact.sigma_q, 1e-5);
    EXPECT_NEAR(head.key_mean_norm, exact.key_mean_norm, 1e-5);
    ASSERT_EQ(head.curve.size(), distances.size());
    for (std::size_t i = 0; i < distances.size(); ++i) {
      EXPECT_EQ(head.curve[i].distance, distances[i]);
      EXPECT_NEAR(head.curve[i].variance, exact.curve[i].variance, close);
    }
    // Singular values: Σσᵢ² is the variance without means or turning, and the largest one bounds the others.
    double squares = 0;
    for (const double s : head.spectrum) squares += s * s;
    EXPECT_EQ(head.spectrum.size(), 8u);
    EXPECT_EQ(head.spectrum.front(), head.largest_singular_value);
    EXPECT_TRUE(std::is_sorted(head.spectrum.rbegin(), head.spectrum.rend()));
    EXPECT_NEAR(
        std::pow(squares, 2) /
            [&] {
              double fourth = 0;
              for (const double s : head.spectrum) fourth += s * s * s * s;
              return fourth;
            }(),
        head.effective_rank, 1e-6 * head.effective_rank);
  }
}

// A square layer with weights of one variance: LeCun's 1/D, or Xavier's 2/(D + D).
Audit initialised(std::int64_t width, std::int64_t heads, double spread, std::uint64_t seed, theory::Norm::Kind norm) {
  Rng rng(seed);
  Made made;
  for (const char* name : {"q", "k"}) {
    Matrix w{width, width, {}};
    for (std::int64_t i = 0; i < width * width; ++i) w.values.push_back(rounded(spread * rng.normal()));
    made.add(std::string("attention.") + name + ".0", w);
  }
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  Hints hints;
  hints.heads = heads;
  hints.norm = norm;
  hints.family_json = R"({"name": "plain", "q": "attention.q.{layer}", )"
                      R"("k": "attention.k.{layer}", "norm_kind": "rms", "context": 1024})";
  return audit_of(folder.path(), {.spectra = false}, hints);
}

// Of the divisor √tr(G_qG_k), for Gaussian weights of variance v. Given G_k, the trace is Σ xᵀG_kx over the D columns x
// of W_q, so it has mean v·D·tr G_k and variance 2v²·D·tr G_k²; tr G_k itself has mean dDv and variance 2dDv², and E tr
// G_k² = v²(dD² + d²D + dD). In all the mean is d(Dv)² and the relative variance 4/(dD) + 2/D² + 2/(dD²); the root has
// half of that error.
double relative_error(double d, double width) {
  return 0.5 * std::sqrt(4 / (d * width) + 2 / (width * width) + 2 / (d * width * width));
}

TEST(Initialisation, SquareXavierNeedsTheSquareRoot) {
  constexpr std::int64_t kWidth = 256, kHeads = 4;
  for (const theory::Norm::Kind norm : {theory::Norm::Kind::kRms, theory::Norm::Kind::kNone}) {
    const Audit found = initialised(kWidth, kHeads, std::sqrt(2.0 / (kWidth + kWidth)), 23, norm);
    double mean = 0;
    for (const Head& head : found.layers[0].heads) {
      EXPECT_NEAR(head.unit_divisor, std::sqrt(64.0), 4 * relative_error(64, kWidth) * 8);
      EXPECT_DOUBLE_EQ(head.ratio, head.unit_divisor / 8);
      EXPECT_EQ(std::isnan(head.bound), norm == theory::Norm::Kind::kNone);
      EXPECT_EQ(head.judgement.verdict, theory::Verdict::kSoft);
      mean += head.ratio / kHeads;
    }
    EXPECT_NEAR(mean, 1, 4 * relative_error(64, kWidth) / std::sqrt(kHeads));
  }
}

TEST(Initialisation, TwoHundredthsNeedMuchLess) {
  const Audit found = initialised(768, 12, 0.02, 29, theory::Norm::Kind::kLayer);
  const double expected = 8 * 0.02 * 0.02 * 768;  // √d·σ_q·σ_k
  EXPECT_NEAR(expected, 2.458, 5e-4);
  double mean = 0;
  for (const Head& head : found.layers[0].heads) {
    EXPECT_NEAR(head.unit_divisor, expected, 4 * relative_error(64, 768) * expected);
    mean += head.unit_divisor / 12;
  }
  EXPECT_NEAR(mean, expected, 4 * relative_error(64, 768) / std::sqrt(12.0) * expected);
}

// What does not change -----------------------------------------------------------------------------------------------

TEST(Properties, TheDivisorFollowsTheWeights) {
  Rng rng(31);
  Made made = make_llama(rng, {.biases = true});
  const test::TemporaryDirectory folder, other;
  write(made, folder.path());
  for (auto& [name, m] : made.tensors)
    if (name.find("q_proj") != name.npos)
      for (double& x : m.values) x *= 4;
  write(made, other.path());
  const Audit a = audit_of(folder.path()), b = audit_of(other.path());
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_DOUBLE_EQ(b.layers[0].heads[h].unit_divisor, 4 * a.layers[0].heads[h].unit_divisor);
    EXPECT_DOUBLE_EQ(b.layers[0].heads[h].effective_rank, a.layers[0].heads[h].effective_rank);
    EXPECT_LE(b.layers[0].heads[h].contexts[0].entropy, a.layers[0].heads[h].contexts[0].entropy);
  }
  const std::vector<HeadDrift> moved = drift(a, b);
  ASSERT_EQ(moved.size(), 8u);
  for (const HeadDrift& d : moved) EXPECT_DOUBLE_EQ(d.growth, 4);
}

// Verdicts stand on the surest ground of each audit; numbers that are compared, on one that both have.
TEST(Drift, ComparesOnAGroundThatBothHave) {
  const auto head = [](double weights, std::optional<double> embeddings, std::optional<double> measured) {
    Head out;
    out.sigma = weights;
    if (embeddings) out.on_embeddings.emplace().sigma = *embeddings;
    if (measured) out.measured.emplace().sigma = *measured;
    out.judgement.ground = out.ground();
    return out;
  };
  const auto audit = [](std::vector<Head> heads) {
    Audit out;
    out.layers.emplace_back().heads = std::move(heads);
    for (std::size_t h = 0; h < out.layers[0].heads.size(); ++h)
      out.layers[0].heads[h].head = static_cast<std::int64_t>(h);
    return out;
  };
  const Audit before = audit({head(1, {}, {}), head(1, 2, {}), head(1, 2, 3)}),
              after = audit({head(2, 8, 9), head(3, 8, 9), head(5, 8, 30)});
  std::vector<HeadDrift> moved = drift(before, after);
  ASSERT_EQ(moved.size(), 3u);
  std::ranges::sort(moved, {}, &HeadDrift::head);
  using theory::Ground;
  const Ground grounds[] = {Ground::kWeights, Ground::kEmbeddings, Ground::kMeasured};
  const double befores[] = {1, 2, 3}, afters[] = {2, 8, 30};
  for (std::size_t h = 0; h < 3; ++h) {
    EXPECT_EQ(moved[h].ground, grounds[h]);
    EXPECT_EQ(moved[h].sigma_before, befores[h]);
    EXPECT_EQ(moved[h].sigma_after, afters[h]);
    EXPECT_EQ(moved[h].growth, afters[h] / befores[h]);
    EXPECT_EQ(moved[h].verdict_before_ground, grounds[h]);
    EXPECT_EQ(moved[h].verdict_after_ground, Ground::kMeasured);
  }
}

// A gain in the norm or in the columns of the weights is the same thing, and so is a key bias or none where nothing
// turns.
TEST(Properties, NormsFoldIntoWeights) {
  Rng rng(37);
  Made made = make_gpt2(rng), folded = made;
  std::map<std::string, Vector> gains;
  for (auto& [name, m] : folded.tensors)
    if (name.ends_with("ln_1.weight")) {
      gains[name.substr(0, name.find("ln_1"))] = m.values;
      m.values.assign(m.values.size(), 1.0);
    }
  // The norm's bias passes through the weights, so it is divided where they are multiplied.
  for (auto& [name, m] : folded.tensors)
    for (const auto& [at, gain] : gains) {
      if (name == at + "ln_1.bias")
        for (std::size_t i = 0; i < gain.size(); ++i) m.values[i] /= gain[i];
      if (name == at + "attn.c_attn.weight")
        for (std::int64_t i = 0; i < m.rows; ++i)
          for (std::int64_t r = 0; r < m.width; ++r) m.at(i, r) *= gain[static_cast<std::size_t>(i)];
    }
  const test::TemporaryDirectory a, b;
  write(made, a.path());
  write(folded, b.path());
  const Audit x = audit_of(a.path()), y = audit_of(b.path());
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t h = 0; h < 3; ++h)
      EXPECT_NEAR(x.layers[layer].heads[h].variance, y.layers[layer].heads[h].variance,
                  1e-5 * x.layers[layer].heads[h].variance);
}

TEST(Properties, ThreadsDoNotMatter) {
  Rng rng(41);
  const test::TemporaryDirectory folder;
  write(make_llama(rng, {.type = "qwen3", .qk_norm = true}), folder.path());
  const int all = omp_get_max_threads();
  omp_set_num_threads(1);
  const Audit one = audit_of(folder.path());
  omp_set_num_threads(4);
  const Audit four = audit_of(folder.path());
  omp_set_num_threads(all);
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t h = 0; h < 4; ++h) {
      const Head &x = one.layers[layer].heads[h], &y = four.layers[layer].heads[h];
      EXPECT_EQ(x.variance, y.variance);
      EXPECT_EQ(x.spectrum, y.spectrum);
      EXPECT_EQ(x.contexts[0].entropy, y.contexts[0].entropy);
      EXPECT_EQ(x.judgement.words, y.judgement.words);
    }
}

// A number that is not finite spoils the heads that read it, and no other.
TEST(NotFinite, IsSaidOfItsHead) {
  Rng rng(43);
  Made made = make_llama(rng);
  for (auto& [name, m] : made.tensors) {
    if (name == "model.layers.0.self_attn.q_proj.weight") m.at(8 + 3, 5) = NAN;   // head 1
    if (name == "model.layers.1.self_attn.k_proj.weight") m.at(8, 0) = HUGE_VAL;  // key head 1: heads 2 and 3
  }
  const test::TemporaryDirectory folder;
  write(made, folder.path());
  const Audit found = audit_of(folder.path());
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (const Head& head : found.layers[layer].heads) {
      const bool spoiled = layer == 0 ? head.head == 1 : head.head >= 2;
      EXPECT_EQ(head.not_finite, spoiled ? 1 : 0);
      EXPECT_EQ(head.judgement.verdict == theory::Verdict::kNotFinite, spoiled);
      EXPECT_EQ(std::isnan(head.variance), spoiled);
    }
}

// Numbers that are finite, yet too large for what is made of them: said, or carried through; never waited for.
TEST(NotFinite, HugeWeightsEnd) {
  for (const double size : {1e15, 1e30, 3e37}) {
    Rng rng(44);
    Made made = make_llama(rng, {.biases = true});
    for (auto& [name, m] : made.tensors)
      if (name.find("_proj") != name.npos)
        for (double& x : m.values) x *= size;
    const test::TemporaryDirectory folder;
    write(made, folder.path());
    for (const Layer& layer : audit_of(folder.path()).layers)
      for (const Head& head : layer.heads) {
        const theory::Verdict verdict = head.judgement.verdict;
        EXPECT_EQ(head.not_finite, 0) << size << ": finite weights are not called NaN";
        EXPECT_EQ(verdict, head.overflows ? theory::Verdict::kNotFinite : theory::Verdict::kFrozen)
            << size << " " << theory::name_of(verdict);
        if (size > 1e20) {
          EXPECT_EQ(head.judgement.words, "Not finite: its weights are finite, but products of them overflow f32.");
        }
      }
  }
}

// A soft-cap bounds what softmax sees; σ is still that of q·k.
TEST(SoftCap, SoftensWhatSoftmaxSees) {
  Rng rng(47);
  Made made = make_llama(rng, {.type = "gemma2", .gain_offset = 1, .divisor_square = 0.01});
  const test::TemporaryDirectory folder, other;
  write(made, folder.path());
  made.config["attn_logit_softcapping"] = 2.0;
  write(made, other.path());
  const Audit without = audit_of(folder.path()), with = audit_of(other.path());
  for (std::size_t h = 0; h < 4; ++h) {
    const Head &a = without.layers[0].heads[h], &b = with.layers[0].heads[h];
    EXPECT_EQ(a.sigma, b.sigma);
    EXPECT_LT(b.contexts.back().sigma_over_critical * theory::critical_sigma(b.contexts.back().keys), 2);
    EXPECT_GT(b.contexts.back().entropy, a.contexts.back().entropy);
  }
}

}  // namespace
}  // namespace rootdk::audit
