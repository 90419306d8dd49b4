#include "theory/judge_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace rootdk::theory {

namespace {

bool known(double x) { return !std::isnan(x); }

/// Three digits, and whole numbers of up to six as they are.
std::string number(double x) {
  const double size = std::fabs(x);
  return size >= 100 && size < 1e6 ? fmt::format("{:.0f}", x) : fmt::format("{:.3g}", x);
}

bool has(const Judgement& j, Verdict verdict) { return std::find(j.codes.begin(), j.codes.end(), verdict) != j.codes.end(); }

/// q·k would be within bounds by itself; a bias or a transform spreads the scores.
bool bias_spreads(const Evidence& e, const Judgement& j, const Thresholds& t) {
  return e.sigma > t.sharp * j.sigma_c && e.raw_sigma <= t.sharp * j.sigma_c;
}

// σ of c·q·k within a row is the product of four parts, each 1 in the ordinary case. --------------------------------------

enum class Part { kScale, kQueries, kKeys, kAlignment };

struct Share {
  Part part;
  double factor;
};

/// Those that push σ up (or down), the strongest first; what matters little beside it is left out.
std::vector<Share> main_parts(const Evidence& e, bool up) {
  std::vector<Share> parts;
  for (const Share share : {Share{Part::kScale, e.scale * std::sqrt(e.dim_qk)}, Share{Part::kQueries, e.sigma_q}, Share{Part::kKeys, e.sigma_k},
                            Share{Part::kAlignment, std::sqrt(e.alignment)}})
    if (up ? share.factor > 1.25 : share.factor < 0.8) parts.push_back(share);
  const auto strength = [](const Share& s) { return std::fabs(std::log(s.factor)); };
  std::stable_sort(parts.begin(), parts.end(), [&](const Share& a, const Share& b) { return strength(a) > strength(b); });
  while (parts.size() > 1 && strength(parts.back()) < 0.5 * strength(parts.front())) parts.pop_back();
  return parts;
}

std::string scale_in_words(const Evidence& e, double factor) {
  const auto is = [](double a, double b) { return std::fabs(a - b) < 0.01 * b; };
  if (is(e.scale, 1)) return fmt::format("q·k is not scaled, {} times what 1/√d_k gives", number(factor));
  if (is(e.scale * e.dim_qk, 1)) return fmt::format("the scale is 1/d_k, {} times 1/√d_k", number(factor));
  return fmt::format("the scale is {} times 1/√d_k", number(factor));
}

std::string in_words(const Evidence& e, const Share& share) {
  switch (share.part) {
    case Part::kScale: return scale_in_words(e, share.factor);
    case Part::kQueries: return fmt::format("queries are {} times as large as unit variance", number(share.factor));
    case Part::kKeys: return fmt::format("keys spread {} times as far as unit variance", number(share.factor));
    case Part::kAlignment:
      return fmt::format("q and k are {}: q·k varies {} times as much as in unrelated directions", share.factor > 1 ? "aligned" : "turned away from each other",
                         number(share.factor * share.factor));
  }
  return {};
}

/// " Because …", or nothing where no part stands out.
std::string cause(const Evidence& e, const Judgement& j, const Thresholds& t) {
  const bool uniform = j.verdict == Verdict::kUniform;
  if (uniform && e.raw_sigma > 2 * e.sigma)
    return fmt::format(" q·k spreads by {}; a soft-cap or transform takes that away.", number(e.raw_sigma));
  if (!uniform && bias_spreads(e, j, t)) return fmt::format(" A bias or transform does that: c·q·k alone spreads by {}.", number(e.raw_sigma));
  std::string out;
  for (const Share& share : main_parts(e, !uniform)) out += fmt::format("{}{}", out.empty() ? " Why: " : ", and ", in_words(e, share));
  return out.empty() ? out : out + ".";
}

/// Scores are large because all keys point the same way, which moves whole rows and which softmax does not see.
bool mean_key_is_long(const Evidence& e) { return e.key_mean_norm > std::sqrt(e.dim_qk) * e.sigma_k; }

// Sentences -----------------------------------------------------------------------------------------------------------

std::string spread(const Judgement& j) {
  return fmt::format("σ = {} is {} times σ_c = {}, where {} keys freeze", number(j.sigma), number(j.sigma / j.sigma_c), number(j.sigma_c), number(j.keys));
}

std::string entropy(const Evidence& e, const Judgement& j) {
  const std::string most = number(std::log(e.keys + (e.sink_mass > 0 ? 1 : 0)));
  if (!known(e.entropy)) return fmt::format("Gaussian scores would leave an entropy of {} out of {}", number(j.predicted_entropy), most);
  const std::string predicted = known(j.predicted_entropy) ? fmt::format(" (Gaussian scores: {})", number(j.predicted_entropy)) : "";
  return fmt::format("the entropy is {} out of {}{}", number(e.entropy), most, predicted);
}

std::string p_max(const Evidence& e) {
  return known(e.median_p_max) ? fmt::format("half of the rows give one key {} or more", number(e.median_p_max))
                               : fmt::format("the largest probability is {} on average", number(e.mean_p_max));
}

std::string exploding(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::string out = fmt::format("Exploding: raw scores reach {}, which {} rounds by up to {}", number(e.raw_max), name_of(e.dtype), number(j.rounding));
  if (e.dtype == DType::kF16 && e.raw_max > t.f16_max) out += ", and f16 ends at 65504";
  out += ".";
  if (mean_key_is_long(e))
    return out + fmt::format(" Why: the mean key has length {}, and keys spread by only {} about it.", number(e.key_mean_norm),
                             number(std::sqrt(e.dim_qk) * e.sigma_k));
  return out;
}

std::string symptom(const Evidence& e, const Judgement& j, const Thresholds& t) {
  switch (j.verdict) {
    case Verdict::kUnknown: return "";
    case Verdict::kSoft: return fmt::format("Soft: {}, and {}.", spread(j), entropy(e, j));
    case Verdict::kOutliers:
      return fmt::format("Outliers: {}, yet {}: the spread is that of a few rows, or of keys so far below the others that softmax does not see them.",
                         spread(j), entropy(e, j));
    case Verdict::kSink: return fmt::format("Sink: it takes {} of the probability.", number(e.sink_mass));
    case Verdict::kSharp: return fmt::format("Sharp: {}, and {}.", spread(j), entropy(e, j));
    case Verdict::kUniform:
      return e.sigma == 0 ? "Uniform: all scores of a row are equal."
                          : fmt::format("Uniform: {}; every key gets nearly the same.", entropy(e, j));
    case Verdict::kFrozen:
      if (e.sigma > t.frozen * j.sigma_c)
        return fmt::format("Frozen: {}, and {}.", spread(j), known(e.median_p_max) ? p_max(e) : entropy(e, j));
      return known(e.sigma / j.sigma_c) ? fmt::format("Frozen: {}, although {}.", p_max(e), spread(j)) : fmt::format("Frozen: {}.", p_max(e));
    case Verdict::kExploding: return exploding(e, j, t);
    case Verdict::kNotFinite: return fmt::format("Not finite: NaN or Inf in {} % of the rows.", number(100 * e.not_finite));
  }
  return {};
}

/// " Also frozen, sink."
std::string others(const Judgement& j) {
  std::string out;
  for (std::size_t i = 1; i < j.codes.size(); ++i) out += fmt::format("{}{}", i == 1 ? " Also " : ", ", name_of(j.codes[i]));
  return out.empty() ? out : out + ".";
}

std::string not_judged(const Evidence& e) {
  if (e.rows == 0) return " No row sees two keys, so there is nothing else to judge.";
  if (known(e.sigma) && known(e.keys)) return "";
  return " Spread and entropy are not known (full statistics measure them), so whether the head is uniform, sharp or frozen was not judged.";
}

std::string unit_variance(const Judgement& j) {
  if (!known(j.unit_variance_factor)) return "";
  std::string out = j.unit_variance_factor >= 1 ? fmt::format("divide the scores by {}", number(j.unit_variance_factor))
                                                : fmt::format("multiply the scores by {}", number(1 / j.unit_variance_factor));
  if (!known(j.divisor)) return out + " for unit variance";
  if (std::fabs(j.divisor_over_sqrt_dk - 1) < 0.05) return out + " for unit variance: use the scale 1/√d_k";
  out += fmt::format(" for unit variance: use the scale 1/{}", number(j.divisor));
  return known(j.divisor_over_sqrt_dk) ? out + fmt::format(", a divisor of {}·√d_k", number(j.divisor_over_sqrt_dk)) : out;
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

}  // namespace

std::string words_of(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::string out = symptom(e, j, t);
  const bool of_spread = j.verdict == Verdict::kUniform || j.verdict == Verdict::kSharp || (j.verdict == Verdict::kFrozen && e.sigma > t.frozen * j.sigma_c) ||
                         (j.verdict == Verdict::kExploding && !mean_key_is_long(e));
  if (of_spread) out += cause(e, j, t);
  if (known(e.expected_sigma) && known(e.sigma)) out += fmt::format(" The weights let one expect σ = {}.", number(e.expected_sigma));
  out += others(j) + not_judged(e);
  return out.starts_with(' ') ? out.substr(1) : out;
}

std::string fix_of(const Evidence& e, const Judgement& j, const Thresholds& t) {
  const std::string divide = unit_variance(j);
  switch (j.verdict) {
    case Verdict::kUnknown:
      return e.rows == 0 ? "None: let rows see two keys or more to judge them." : "Measure with full statistics.";
    case Verdict::kSoft: return "None needed.";
    case Verdict::kOutliers: return "None needed; to hide keys use a mask rather than a large negative bias.";
    case Verdict::kSink: return "None needed, unless the head is meant to attend: then remove the sink or raise the scale.";
    case Verdict::kUniform:
      if (divide.empty()) return "Find out why q or k does not differ between keys: no scale can change that.";
      if (e.raw_sigma > 2 * e.sigma) return "Raise the soft-cap, or leave the transform out.";
      return capitalised(divide) + ".";
    case Verdict::kSharp:
    case Verdict::kFrozen:
      if (!(e.sigma > t.sharp * j.sigma_c))
        return "None if the head is meant to pick one key, as one that looks at the previous token is; otherwise soft-cap its scores or use QK-norm: one key "
               "stands out, not the spread.";
      if (bias_spreads(e, j, t)) return "Make the bias smaller: no scale of q·k can change what it adds.";
      return capitalised(divide) + "; or use QK-norm, which keeps σ there whatever the weights do.";
    case Verdict::kExploding: {
      const double tau = t.rounding / unit_roundoff(e.dtype);
      if (mean_key_is_long(e))
        return fmt::format("Subtract the mean key from all keys, which softmax does not see (unless positions are rotary); or use QK-clip with τ = {}.", number(tau));
      const std::string clip = fmt::format("use QK-norm, or QK-clip with τ = {}", number(tau));
      return j.unit_variance_factor > 2 && has(j, Verdict::kFrozen) ? capitalised(divide) + "; or " + clip + "." : capitalised(clip) + ".";
    }
    case Verdict::kNotFinite:
      return "Look for the first NaN or Inf among q, k and bias; where large scores made it, QK-norm or QK-clip bounds them.";
  }
  return {};
}

}  // namespace rootdk::theory
