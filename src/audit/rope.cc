// Frequencies base^(−2i/d), and what linear, Llama 3, YaRN and LongRoPE scaling make of them.
#include "audit/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;

namespace {

// A value of rope_scaling, where config.json and GGUF keep it.
std::optional<double> value_of(const Settings& s, const std::string& name) {
  const std::string in_gguf = name == "original_max_position_embeddings" ? "original_context_length" : name;
  return s.number({"rope_scaling." + name, "rope_parameters." + name, "rope_parameters.full_attention." + name,
                   "rope.scaling." + in_gguf});
}

double wanted(const Settings& s, const std::string& name) {
  const auto value = value_of(s, name);
  if (!value) refuse("{}: rope_scaling has no {}", s.name(), name);
  if (!(*value > 0)) refuse("{}: rope_scaling.{} is {}, but a number above 0 is wanted", s.name(), name, *value);
  return *value;
}

double original_context(const Settings& s, std::int64_t context) {
  const auto value = value_of(s, "original_max_position_embeddings");
  const double n =
      value ? *value : s.number({"original_max_position_embeddings"}).value_or(static_cast<double>(context));
  if (!(n > 1)) refuse("{}: original_max_position_embeddings is {}, but at least 2 is wanted", s.name(), n);
  return n;
}

// Long waves are slowed down by the factor, short ones stay, those between are mixed.
void stretch_llama3(const Settings& s, std::int64_t context, std::vector<double>& frequencies) {
  const double factor = wanted(s, "factor"), low = wanted(s, "low_freq_factor"), high = wanted(s, "high_freq_factor");
  const double original = original_context(s, context);
  if (!(high > low))
    refuse("{}: rope_scaling.high_freq_factor is {}, but above low_freq_factor = {} is wanted", s.name(), high, low);
  for (double& f : frequencies) {
    const double turns = original * f / (2 * std::numbers::pi);
    const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = (1 - keep) * f / factor + keep * f;
  }
}

double yarn_magnitude(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

void stretch_yarn(const Settings& s, double base, std::int64_t context, Stretched& out) {
  const double factor = wanted(s, "factor"), original = original_context(s, context);
  const auto dims = static_cast<double>(2 * out.frequencies.size());
  // Where a pair turns so many times in the original context.
  const auto pair_with = [&](double turns) {
    return dims * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double low = std::max(std::floor(pair_with(value_of(s, "beta_fast").value_or(32))), 0.0);
  double high = std::min(std::ceil(pair_with(value_of(s, "beta_slow").value_or(1))), dims - 1);
  if (high <= low) high = low + 0.001;
  for (std::size_t i = 0; i < out.frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out.frequencies[i] *= (1 - slow) + slow / factor;
  }
  const double mscale = value_of(s, "mscale").value_or(0), all_dims = value_of(s, "mscale_all_dim").value_or(0);
  if (const auto given = value_of(s, "attention_factor")) {
    out.magnitude = *given;
  } else if (mscale != 0 && all_dims != 0) {
    out.magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dims);
  } else {
    out.magnitude = yarn_magnitude(factor, 1);
  }
  if (all_dims != 0 && s.model_type().starts_with("deepseek"))
    out.scale_factor = std::pow(yarn_magnitude(factor, all_dims), 2);
}

// The base frequencies, each over its factor.
std::vector<double> over_factors(const Settings& s, const std::string& name, std::vector<double> frequencies) {
  const Json* factors = s.find("rope_scaling." + name);
  if (factors == nullptr) factors = s.find("rope_parameters." + name);
  if (factors == nullptr || !factors->is_array() || factors->size() != frequencies.size())
    refuse("{}: rope_scaling.{} is to be an array of {} numbers", s.name(), name, frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const Json& factor = (*factors)[i];
    if (!factor.is_number() || !(factor.get<double>() > 0))
      refuse("{}: rope_scaling.{}[{}] is {}, but a number above 0 is wanted", s.name(), name, i, in_short(factor));
    frequencies[i] /= factor.get<double>();
  }
  return frequencies;
}

void stretch_longrope(const Settings& s, std::int64_t context, Stretched& out) {
  const double original = original_context(s, context), extended = static_cast<double>(context) / original;
  if (extended > 1) {
    out.short_frequencies = over_factors(s, "short_factor", out.frequencies);
    out.short_length = static_cast<std::int64_t>(original);
  }
  out.frequencies = over_factors(s, extended > 1 ? "long_factor" : "short_factor", std::move(out.frequencies));
  const auto given = value_of(s, "attention_factor");
  const double factor = value_of(s, "factor").value_or(extended);
  out.magnitude = given ? *given : factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
}

}  // namespace

std::vector<double> plain_frequencies(double base, std::int64_t dims) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < dims / 2; ++i)
    out.push_back(std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(dims)));
  return out;
}

Stretched frequencies_of(const Settings& s, double base, std::int64_t dims, std::int64_t context) {
  Stretched out;
  out.frequencies = plain_frequencies(base, dims);
  const std::string type = s.text({"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type",
                                   "rope_parameters.full_attention.rope_type", "rope.scaling.type"})
                               .value_or("default");
  if (type == "default" || type == "none" || type == "mrope") return out;
  if (type == "linear") {
    const double factor = wanted(s, "factor");
    for (double& f : out.frequencies) f /= factor;
  } else if (type == "llama3") {
    stretch_llama3(s, context, out.frequencies);
  } else if (type == "yarn") {
    stretch_yarn(s, base, context, out);
  } else if (type == "longrope" || type == "su") {
    out.exact = !s.is_gguf();
    if (s.is_gguf())
      out.note = "GGUF keeps the factors of longrope in tensors, which were not applied: the rotary curve is that of "
                 "the base frequencies";
    else stretch_longrope(s, context, out);
  } else if (type == "dynamic") {
    out.note = "rope_scaling is dynamic: the rotary curve is that of the original context";
  } else {
    out.exact = false;
    out.note =
        fmt::format("rope_scaling {} is not known: the rotary curve is that of the base frequencies", in_quotes(type));
  }
  return out;
}

}  // namespace rootdk::audit
