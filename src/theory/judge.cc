// Each verdict's condition, on measured or predicted evidence, in order of how serious it is.
#include "rootdk/theory/judge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rootdk/theory/gaussian_softmax.h"
#include "theory/judge_words.h"
#include "theory/refuse.h"

namespace rootdk::theory {

namespace {

void check(const Evidence& e) {
  const auto want_size = [](const char* name, double value) {
    if (value < 0) refuse("{}: {}, but a number of at least 0 is wanted, or NaN where it is unknown", name, value);
  };
  want_size("rows", e.rows);
  want_size("sigma", e.sigma);
  want_size("raw_sigma", e.raw_sigma);
  want_size("raw_max", e.raw_max);
  want_size("scale", e.scale);
  if (e.keys < 2 || e.keys > 0x1p53)
    refuse("keys: {}, but a number from 2 to 2^53 is wanted, or NaN where it is unknown", e.keys);
  if (e.dim_qk < 1 || e.dim_qk > 0x1p53)
    refuse("dim_qk: {}, but a number from 1 to 2^53 is wanted, or NaN where it is unknown", e.dim_qk);
}

void check(const Thresholds& t) {
  want_at_least_0("thresholds.uniform", t.uniform);
  want_at_least_0("thresholds.outliers", t.outliers);
  want_at_least_0("thresholds.sharp", t.sharp);
  want_at_least_0("thresholds.frozen", t.frozen);
  want_at_least_0("thresholds.frozen_p_max", t.frozen_p_max);
  want_at_least_0("thresholds.sink", t.sink);
  want_at_least_0("thresholds.rounding", t.rounding);
  want_at_least_0("thresholds.f16_max", t.f16_max);
  want_at_least_0("thresholds.not_finite", t.not_finite);
  if (t.sharp > t.frozen)
    refuse("thresholds: sharp {} and frozen {}, but ascending ones are wanted", t.sharp, t.frozen);
}

double predicted_entropy(double sigma, double keys, double dim_qk) {
  sigma = std::min(sigma, 1e100);  // as far as the quadrature goes; H is 0 in any case
  return std::isnan(dim_qk) ? gaussian_softmax(sigma, keys).entropy
                            : gaussian_softmax(sigma, keys, static_cast<std::int64_t>(dim_qk)).entropy;
}

// Of Gaussian scores with this share of σ_c. Not averaged over ‖q‖: that moves it by less than the thresholds leave
// room for.
double least_sum_p2(double share, double keys) { return gaussian_softmax(share * critical_sigma(keys), keys).sum_p2; }

// Entropy of the row among its keys, the sink left aside. A row whose sink has mass m has H = h(m) + (1 − m)·H_keys,
// and h is concave, so with the mean of m this is at most the mean over rows of H_keys (weighted with 1 − m): it never
// makes a head look more uniform than it is. A sink that takes all but a thousandth leaves too little to tell from
// rounding.
double entropy_among_keys(double entropy, double sink) {
  if (!(sink > 0)) return entropy;
  if (sink > 0.999) return Evidence::kUnknown;
  const double rest = 1 - sink, h = -sink * std::log(sink) - rest * std::log(rest);
  return (entropy - h) / rest;
}

bool explodes(const Evidence& e, double rounding, const Thresholds& t) {
  const bool is_f16 = e.dtype == DType::kF16;
  return ((is_f16 || e.dtype == DType::kBF16) && rounding > t.rounding) || (is_f16 && e.raw_max > t.f16_max);
}

// From p_max alone. Where only the mean is known: if it is above (1 + t)/2, more than half of the rows are above t,
// since none is above 1.
bool one_key_takes_all(const Evidence& e, const Thresholds& t) {
  if (!std::isnan(e.median_p_max)) return e.median_p_max > t.frozen_p_max;
  return e.mean_p_max > (1 + t.frozen_p_max) / 2;
}

std::vector<Verdict> codes_of(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::vector<Verdict> codes;
  const auto add = [&](Verdict verdict, bool holds) {
    if (holds) codes.push_back(verdict);
  };
  // Comparisons with what is unknown, NaN, are false.
  const bool wide = e.sigma > t.sharp * j.sigma_c, too_wide = e.sigma > t.frozen * j.sigma_c;
  const bool outliers =
      wide && !std::isnan(e.sum_p2) && e.sum_p2 < least_sum_p2(t.outliers * (too_wide ? t.frozen : t.sharp), e.keys);
  const bool frozen = (too_wide && !outliers) || one_key_takes_all(e, t);
  const double entropy = std::isnan(e.entropy) ? j.predicted_entropy : entropy_among_keys(e.entropy, e.sink);
  const bool uniform = entropy > std::log(e.keys) - t.uniform;

  add(Verdict::kNotFinite, e.not_finite > t.not_finite);
  add(Verdict::kExploding, explodes(e, j.rounding, t));
  add(Verdict::kFrozen, frozen);
  add(Verdict::kUniform, uniform);
  add(Verdict::kSharp, wide && !outliers && !frozen);
  add(Verdict::kSink, e.sink > t.sink);
  add(Verdict::kOutliers, outliers);
  if (codes.empty()) codes.push_back(std::isnan(e.sigma) || std::isnan(e.keys) ? Verdict::kUnknown : Verdict::kSoft);
  return codes;
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kUnknown: return "unknown";
    case Verdict::kSoft: return "soft";
    case Verdict::kOutliers: return "outliers";
    case Verdict::kSink: return "sink";
    case Verdict::kSharp: return "sharp";
    case Verdict::kUniform: return "uniform";
    case Verdict::kFrozen: return "frozen";
    case Verdict::kExploding: return "exploding";
    case Verdict::kNotFinite: return "not_finite";
  }
  return "unknown";
}

const char* name_of(Ground ground) {
  switch (ground) {
    case Ground::kMeasured: return "measured";
    case Ground::kEmbeddings: return "embeddings";
    case Ground::kWeights: return "weights";
  }
  return "measured";
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0x1p-9;
    case DType::kF16: return 0x1p-11;
    case DType::kF32: return 0x1p-24;
    case DType::kF64: return 0x1p-53;
    case DType::kBool: break;
  }
  return Evidence::kUnknown;
}

Judgement judge(const Evidence& e, const Thresholds& t) {
  check(e);
  check(t);
  Judgement j;
  j.ground = e.ground;
  j.keys = e.keys;
  j.sigma = e.sigma;
  j.entropy = e.entropy;
  j.rounding = unit_roundoff(e.dtype) * e.raw_max;
  if (!std::isnan(e.keys)) {
    j.sigma_c = critical_sigma(e.keys);
    if (!std::isnan(e.predicted_entropy)) j.predicted_entropy = e.predicted_entropy;
    else if (!std::isnan(e.sigma)) j.predicted_entropy = predicted_entropy(e.sigma, e.keys, e.dim_qk);
  }
  j.stein_ratio = stein_ratio({e.sigma * e.sigma, e.mean_score, e.sum_p2});
  const double spread = std::isnan(e.raw_sigma) ? e.sigma : e.raw_sigma;
  if (spread > 0) {
    j.unit_variance_factor = spread;
    if (e.scale > 0) j.divisor = spread / e.scale;
    j.divisor_over_sqrt_dk = j.divisor / std::sqrt(e.dim_qk);
  }
  j.codes = codes_of(e, j, t);
  j.verdict = j.codes.front();
  j.words = words_of(e, j, t);
  j.fix = fix_of(e, j, t);
  return j;
}

}  // namespace rootdk::theory
