// Symptom, cause and remedy, each a clause that knows whether it was measured or predicted.
#include "theory/judge_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace rootdk::theory {

namespace {

bool known(double x) { return !std::isnan(x); }

/// Three digits, and whole numbers of up to six as they are: 0.867, 13.7, 4,096.
std::string number(double x) {
  const double size = std::fabs(x);
  if (size < 100 || size >= 1e6) return fmt::format("{:.3g}", x);
  const std::string digits = fmt::format("{:.0f}", x);
  if (size < 999.5) return digits;
  return fmt::format("{},{}", std::string_view(digits).substr(0, digits.size() - 3),
                     std::string_view(digits).substr(digits.size() - 3));
}

// What never ran is spoken of as "would be": the words of a measurement, and those of a condition. -----------------

bool measured(const Evidence& e) { return e.ground == Ground::kMeasured; }

std::string_view is_or(const Evidence& e, std::string_view fact, std::string_view would) {
  return measured(e) ? fact : would;
}

/// "Frozen: ", or "Would be frozen if inputs were isotropic: ".
std::string opening(const Evidence& e, Verdict verdict) {
  std::string name = name_of(verdict);
  std::replace(name.begin(), name.end(), '_', ' ');
  switch (e.ground) {
    case Ground::kMeasured: break;
    case Ground::kEmbeddings:
      return fmt::format("Would be {} if every layer's inputs were like the embeddings: ", name);
    case Ground::kWeights: return fmt::format("Would be {} if inputs were isotropic: ", name);
  }
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name + ": ";
}

bool has(const Judgement& j, Verdict verdict) {
  return std::find(j.codes.begin(), j.codes.end(), verdict) != j.codes.end();
}

/// q·k would be within bounds by itself; a bias or a transform spreads the scores.
bool bias_spreads(const Evidence& e, const Judgement& j, const Thresholds& t) {
  return e.sigma > t.sharp * j.sigma_c && e.raw_sigma <= t.sharp * j.sigma_c;
}

// σ of c·q·k within a row is the product of four parts, each 1 in the ordinary case. ---------------------------------

enum class Part { kScale, kQueries, kKeys, kAlignment };

struct Share {
  Part part;
  double factor;
};

/// Those that push σ up (or down), the strongest first; what matters little beside it is left out.
std::vector<Share> main_parts(const Evidence& e, bool up) {
  std::vector<Share> parts;
  for (const Share share : {Share{Part::kScale, e.scale * std::sqrt(e.dim_qk)}, Share{Part::kQueries, e.sigma_q},
                            Share{Part::kKeys, e.sigma_k}, Share{Part::kAlignment, std::sqrt(e.alignment)}})
    if (up ? share.factor > 1.25 : share.factor < 0.8) parts.push_back(share);
  const auto strength = [](const Share& s) { return std::fabs(std::log(s.factor)); };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Share& a, const Share& b) { return strength(a) > strength(b); });
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
    case Part::kQueries:
      return fmt::format("queries {} {} times as large as unit variance", is_or(e, "are", "would be"),
                         number(share.factor));
    case Part::kKeys:
      return fmt::format("keys {} {} times as far as unit variance", is_or(e, "spread", "would spread"),
                         number(share.factor));
    case Part::kAlignment:
      return fmt::format("q and k {} {}: q·k {} {} times as much as in unrelated directions",
                         is_or(e, "are", "would be"), share.factor > 1 ? "aligned" : "turned away from each other",
                         is_or(e, "varies", "would vary"), number(share.factor * share.factor));
  }
  return {};
}

/// " Because …", or nothing where no part stands out.
std::string cause(const Evidence& e, const Judgement& j, const Thresholds& t) {
  const bool uniform = j.verdict == Verdict::kUniform;
  if (uniform && e.raw_sigma > 2 * e.sigma)
    return fmt::format(" q·k spreads by {}; a soft-cap or transform takes that away.", number(e.raw_sigma));
  if (!uniform && bias_spreads(e, j, t))
    return fmt::format(" A bias or transform does that: c·q·k alone spreads by {}.", number(e.raw_sigma));
  std::string out;
  for (const Share& share : main_parts(e, !uniform))
    out += fmt::format("{}{}", out.empty() ? " Why: " : ", and ", in_words(e, share));
  return out.empty() ? out : out + ".";
}

/// Scores are large because all keys point the same way, which moves whole rows and which softmax does not see.
bool mean_key_is_long(const Evidence& e) { return e.key_mean_norm > std::sqrt(e.dim_qk) * e.sigma_k; }

// Sentences ----------------------------------------------------------------------------------------------------------

std::string spread(const Evidence& e, const Judgement& j) {
  return fmt::format("σ {} {}{} {} times σ_c = {}, where {} keys freeze", is_or(e, "=", "would be"), number(j.sigma),
                     is_or(e, " is", ","), number(j.sigma / j.sigma_c), number(j.sigma_c), number(j.keys));
}

std::string entropy(const Evidence& e, const Judgement& j) {
  const std::string most = number(std::log(e.keys + (e.sink > 0 ? 1 : 0)));
  if (!known(e.entropy))
    return fmt::format("Gaussian scores would leave an entropy of {} out of {}", number(j.predicted_entropy), most);
  const std::string predicted =
      known(j.predicted_entropy) ? fmt::format(" (Gaussian scores: {})", number(j.predicted_entropy)) : "";
  return fmt::format("the entropy {} {} out of {}{}", is_or(e, "is", "would be"), number(e.entropy), most, predicted);
}

std::string p_max(const Evidence& e) {
  constexpr double kAll = 0.9995;  // would be written as 1
  if (known(e.median_p_max) && e.median_p_max > kAll)
    return fmt::format("half of the rows {} one key practically all", is_or(e, "give", "would give"));
  return known(e.median_p_max) ? fmt::format("half of the rows {} one key {} or more", is_or(e, "give", "would give"),
                                             number(e.median_p_max))
                               : fmt::format("the largest probability {} {} on average", is_or(e, "is", "would be"),
                                             number(e.mean_p_max));
}

std::string exploding(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::string out =
      fmt::format("{}raw scores {} {}, which {} rounds by up to {}", opening(e, j.verdict),
                  is_or(e, "reach", "would reach"), number(e.raw_max), name_of(e.dtype), number(j.rounding));
  if (e.dtype == DType::kF16 && e.raw_max > t.f16_max) out += ", and f16 ends at 65,504";
  out += ".";
  if (mean_key_is_long(e))
    return out + fmt::format(" Why: the mean key has length {}, and keys spread by only {} about it.",
                             number(e.key_mean_norm), number(std::sqrt(e.dim_qk) * e.sigma_k));
  return out;
}

/// Of weights it is a fact: no input changes it.
std::string not_finite(const Evidence& e) {
  if (e.overflows) return "Not finite: its weights are finite, but products of them overflow f32.";
  if (!measured(e)) return "Not finite: NaN or Inf among its weights.";
  return e.not_finite >= 1 ? "Not finite: NaN or Inf in every row."
                           : fmt::format("Not finite: NaN or Inf in {} % of the rows.", number(100 * e.not_finite));
}

std::string symptom(const Evidence& e, const Judgement& j, const Thresholds& t) {
  if (j.verdict == Verdict::kUnknown) return "";
  if (j.verdict == Verdict::kNotFinite) return not_finite(e);
  if (j.verdict == Verdict::kExploding) return exploding(e, j, t);
  const std::string open = opening(e, j.verdict), wide = spread(e, j);
  switch (j.verdict) {
    case Verdict::kOutliers:
      return fmt::format("{}{}, yet {}: the spread {} that of a few rows, or of keys so far below the others that "
                         "softmax does not see them.",
                         open, wide, entropy(e, j), is_or(e, "is", "would be"));
    case Verdict::kSink:
      return fmt::format("{}it {} {} of the probability.", open, is_or(e, "takes", "would take"), number(e.sink));
    case Verdict::kUniform:
      return e.sigma == 0 ? fmt::format("{}all scores of a row {} equal.", open, is_or(e, "are", "would be"))
                          : fmt::format("{}{}; every key {} nearly the same.", open, entropy(e, j),
                                        is_or(e, "gets", "would get"));
    case Verdict::kFrozen:
      if (e.sigma > t.frozen * j.sigma_c)
        return fmt::format("{}{}, and {}.", open, wide, known(e.median_p_max) ? p_max(e) : entropy(e, j));
      return known(e.sigma / j.sigma_c) ? fmt::format("{}{}, although {}.", open, p_max(e), wide)
                                        : fmt::format("{}{}.", open, p_max(e));
    default: return fmt::format("{}{}, and {}.", open, wide, entropy(e, j));
  }
}

/// " Also frozen, sink."
std::string others(const Evidence& e, const Judgement& j) {
  std::string out;
  for (std::size_t i = 1; i < j.codes.size(); ++i)
    out += fmt::format("{}{}", i > 1 ? ", " : is_or(e, " Also ", " Would also be "), name_of(j.codes[i]));
  return out.empty() ? out : out + ".";
}

std::string not_judged(const Evidence& e) {
  if (e.not_finite >= 1) return "";  // in every row, or in the weights: there is nothing else
  if (e.rows == 0)
    return e.not_finite > 0 ? " No finite row sees two keys, so there is nothing else to judge."
                            : " No row sees two keys, so there is nothing else to judge.";
  if (known(e.sigma) && known(e.keys)) return "";
  return " Spread and entropy are not known (full statistics measure them), so whether the head is uniform, sharp or "
         "frozen was not judged.";
}

std::string unit_variance(const Judgement& j) {
  if (!known(j.unit_variance_factor)) return "";
  std::string out = j.unit_variance_factor >= 1
                        ? fmt::format("divide the scores by {}", number(j.unit_variance_factor))
                        : fmt::format("multiply the scores by {}", number(1 / j.unit_variance_factor));
  if (!known(j.divisor)) return out + " for unit variance";
  if (std::fabs(j.divisor_over_sqrt_dk - 1) < 0.05) return out + " for unit variance: use the scale 1/√d_k";
  out += fmt::format(" for unit variance: use the scale 1/{}", number(j.divisor));
  return known(j.divisor_over_sqrt_dk) ? out + fmt::format(", a divisor of {}·√d_k", number(j.divisor_over_sqrt_dk))
                                       : out;
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

/// As if all of it had been measured.
std::string plain_fix(const Evidence& e, const Judgement& j, const Thresholds& t) {
  const std::string divide = unit_variance(j);
  switch (j.verdict) {
    case Verdict::kUnknown:
      return e.rows == 0 ? "None: let rows see two keys or more to judge them." : "Measure with full statistics.";
    case Verdict::kSoft: return "No fix is needed.";
    case Verdict::kOutliers: return "No fix is needed; to hide keys use a mask rather than a large negative bias.";
    case Verdict::kSink:
      return "No fix is needed, unless the head is meant to attend: then remove the sink or raise the scale.";
    case Verdict::kUniform:
      if (divide.empty()) return "Find out why q or k does not differ between keys: no scale can change that.";
      if (e.raw_sigma > 2 * e.sigma) return "Raise the soft-cap, or leave the transform out.";
      return capitalised(divide) + ".";
    case Verdict::kSharp:
    case Verdict::kFrozen:
      if (!(e.sigma > t.sharp * j.sigma_c))
        return "None if the head is meant to pick one key, as one that looks at the previous token is; otherwise "
               "soft-cap its scores or use QK-norm: one key "
               "stands out, not the spread.";
      if (bias_spreads(e, j, t)) return "Make the bias smaller: no scale of q·k can change what it adds.";
      return capitalised(divide) + "; or use QK-norm, which keeps σ there whatever the weights do.";
    case Verdict::kExploding: {
      const double tau = t.rounding / unit_roundoff(e.dtype);
      if (mean_key_is_long(e))
        return fmt::format("Subtract the mean key from all keys, which softmax does not see (unless positions are "
                           "rotary); or use QK-clip with τ = {}.",
                           number(tau));
      const std::string clip = fmt::format("use QK-norm, or QK-clip with τ = {}", number(tau));
      return j.unit_variance_factor > 2 && has(j, Verdict::kFrozen) ? capitalised(divide) + "; or " + clip + "."
                                                                    : capitalised(clip) + ".";
    }
    case Verdict::kNotFinite:
      if (e.overflows)
        return "Go back to a checkpoint from before its weights ran away: no scale helps once q·k itself overflows.";
      if (!measured(e))
        return "Go back to a checkpoint whose weights are finite, and look for the step that made the first NaN or "
               "Inf.";
      return "Look for the first NaN or Inf among q, k and bias; where large scores made it, QK-norm or QK-clip bounds "
             "them.";
  }
  return {};
}

}  // namespace

std::string words_of(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::string out = symptom(e, j, t);
  const bool of_spread = j.verdict == Verdict::kUniform || j.verdict == Verdict::kSharp ||
                         (j.verdict == Verdict::kFrozen && e.sigma > t.frozen * j.sigma_c) ||
                         (j.verdict == Verdict::kExploding && !mean_key_is_long(e));
  if (of_spread) out += cause(e, j, t);
  if (known(e.expected_sigma) && known(e.sigma))
    out += fmt::format(" From the weights alone one would expect σ = {}.", number(e.expected_sigma));
  out += others(e, j) + not_judged(e);
  return out.starts_with(' ') ? out.substr(1) : out;
}

std::string fix_of(const Evidence& e, const Judgement& j, const Thresholds& t) {
  std::string fix = plain_fix(e, j, t);
  if (measured(e) || j.verdict == Verdict::kUnknown || j.verdict == Verdict::kNotFinite) return fix;
  if (j.verdict == Verdict::kSoft) return "No fix is needed, if measuring bears this out.";
  fix[0] = static_cast<char>(fix[0] - 'A' + 'a');
  return "If measuring bears this out, " + fix;
}

}  // namespace rootdk::theory
