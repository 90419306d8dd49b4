// Factors of each rule, how they change with context length, their gradients, and their words.
#include "rootdk/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/length_rules.h"
#include "base/refuse.h"

namespace rootdk {

using base::refuse;

namespace {

double yarn_factor(double extension) {
  const double m = 0.1 * std::log(extension) + 1;
  return m * m;
}

double one_of(std::span<const float> values, double otherwise, std::int64_t head) {
  return values.empty() ? otherwise : static_cast<double>(values[static_cast<std::size_t>(head)]);
}

double rule_factor(const Scale& scale, std::int64_t head, std::int64_t dim_qk) {
  const auto d = static_cast<double>(dim_qk);
  switch (scale.rule) {
    case Scale::Rule::kNone: return 1;
    case Scale::Rule::kInvSqrtDk: return 1 / std::sqrt(d);
    case Scale::Rule::kInvDk: return 1 / d;
    case Scale::Rule::kConstant: return scale.value;
    case Scale::Rule::kPerHead: return static_cast<double>(scale.head_values[static_cast<std::size_t>(head)]);
    case Scale::Rule::kAlphaOverDk: return scale.value / d;
    case Scale::Rule::kUnitVariance: return 1 / (std::sqrt(d) * scale.sigma_q * scale.sigma_k);
  }
  return 1;
}

std::string describe_rule(const Scale& scale) {
  switch (scale.rule) {
    case Scale::Rule::kNone: return "1 (none)";
    case Scale::Rule::kInvSqrtDk: return "1/√d_k";
    case Scale::Rule::kInvDk: return "1/d_k";
    case Scale::Rule::kConstant: return fmt::format("constant {:g}", scale.value);
    case Scale::Rule::kPerHead: return "one per head";
    case Scale::Rule::kAlphaOverDk: return fmt::format("{:g}/d_k", scale.value);
    case Scale::Rule::kUnitVariance: return fmt::format("1/(√d_k·{:g}·{:g})", scale.sigma_q, scale.sigma_k);
  }
  return "unknown";
}

std::string describe_log_n(const Scale& scale) {
  const std::string gain = scale.head_gains.empty() ? fmt::format("{:g}", scale.log_n_gain) : "a per head";
  if (!scale.head_offsets.empty()) return fmt::format("{} * ln n + b per head", gain);
  return scale.log_n_offset == 0 ? fmt::format("{} * ln n", gain)
                                 : fmt::format("{} * ln n + {:g}", gain, scale.log_n_offset);
}

Scale with_length(const Scale& scale, Scale::Length length) {
  if (scale.by_row())
    refuse("scale: \"{}\" has a length rule already, and two would correct for the length twice", scale.name());
  Scale out = scale;
  out.length = length;
  return out;
}

}  // namespace

double Scale::factor(std::int64_t head, std::int64_t dim_qk) const {
  const double c = rule_factor(*this, head, dim_qk);
  return yarn == 1 ? c : c * yarn_factor(yarn);
}

double Scale::length_factor(std::int64_t head, const ScaleRow& row) const {
  return base::length_factor(
      length, row, [&] { return one_of(head_gains, log_n_gain, head); },
      [&] { return one_of(head_offsets, log_n_offset, head); });
}

Scale::Slopes Scale::slopes(std::int64_t head, std::int64_t dim_qk, const ScaleRow& row) const {
  Slopes out;
  out.rule = (yarn == 1 ? 1 : yarn_factor(yarn)) * length_factor(head, row);
  if (length != Length::kLogN) return out;
  out.log_n_offset = factor(head, dim_qk);
  out.log_n_gain = out.log_n_offset * base::log_keys(row);
  return out;
}

Scale Scale::with_yarn(double extension) const {
  if (yarn != 1) refuse("scale: \"{}\" has a YaRN factor already", name());
  Scale out = *this;
  out.yarn = extension;
  return out;
}

Scale Scale::with_ssmax(double gain, double offset) const {
  Scale out = with_length(*this, Length::kLogN);
  out.log_n_gain = gain, out.log_n_offset = offset;
  return out;
}

Scale Scale::with_ssmax(std::span<const float> gains, std::span<const float> offsets) const {
  Scale out = with_length(*this, Length::kLogN);
  out.head_gains = gains, out.head_offsets = offsets;
  return out;
}

Scale Scale::with_entropy_invariance() const { return with_length(*this, Length::kEntropyInvariant); }
Scale Scale::with_llama4_temperature() const { return with_length(*this, Length::kLlama4); }

std::string Scale::describe() const {
  std::string text = describe_rule(*this);
  if (yarn != 1) text += fmt::format(" x YaRN {:g}", yarn);
  switch (length) {
    case Length::kNone: break;
    case Length::kLogN: text += fmt::format(" x ({}), n keys", describe_log_n(*this)); break;
    case Length::kEntropyInvariant: text += " x ln n/ln 512, n keys"; break;
    case Length::kLlama4: text += " x Llama 4 temperature"; break;
  }
  return text;
}

}  // namespace rootdk
