// The registry of scale rules: names for the command line, Python and configuration files. One table; parse, name and
// the list of names all read it.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "base/read_number.h"
#include "base/refuse.h"
#include "rootdk/scale.h"

namespace rootdk {

using base::refuse;

namespace {

struct Entry {
  ScaleName text;
  std::size_t fewest, most;  ///< parameters
  bool is_rule;              ///< takes the place of sqrt_dk; else multiplies it
  Scale (*apply)(const Scale& scale, const std::vector<double>& x);
};

// A rule keeps the parts that were named before it.
Scale with_rule(const Scale& before, const Scale& rule) {
  Scale out = before;
  out.rule = rule.rule, out.value = rule.value, out.sigma_q = rule.sigma_q, out.sigma_k = rule.sigma_k;
  return out;
}

using Numbers = std::vector<double>;

constexpr std::array kEntries = {
    Entry{
        {"none", "", "c = 1"}, 0, 0, true, [](const Scale& s, const Numbers&) { return with_rule(s, Scale::none()); }},
    Entry{{"sqrt_dk", "", "c = 1/√d_k"},
          0,
          0,
          true,
          [](const Scale& s, const Numbers&) { return with_rule(s, Scale::inv_sqrt_dk()); }},
    Entry{{"dk", "([alpha])", "c = alpha/d_k; alpha is 1 if not given"},
          0,
          1,
          true,
          [](const Scale& s, const Numbers& x) {
            return with_rule(s, x.empty() ? Scale::inv_dk() : Scale::alpha_over_dk(x[0]));
          }},
    Entry{{"constant", "(c)", "c as given"},
          1,
          1,
          true,
          [](const Scale& s, const Numbers& x) { return with_rule(s, Scale::constant(x[0])); }},
    Entry{{"unit_variance", "(sigma_q, sigma_k)", "c = 1/(√d_k·σ_q·σ_k): unit variance at initialisation"},
          2,
          2,
          true,
          [](const Scale& s, const Numbers& x) { return with_rule(s, Scale::unit_variance(x[0], x[1])); }},
    Entry{{"yarn", "(f)", "times (0.1·ln f + 1)², for a context extended f times"},
          1,
          1,
          false,
          [](const Scale& s, const Numbers& x) { return s.with_yarn(x[0]); }},
    Entry{{"ssmax", "(a[, b])", "times a·ln n + b, n keys visible to the query"},
          1,
          2,
          false,
          [](const Scale& s, const Numbers& x) { return s.with_ssmax(x[0], x.size() > 1 ? x[1] : 0); }},
    Entry{{"entropy_invariant", "", "times ln n/ln 512, n keys visible to the query"},
          0,
          0,
          false,
          [](const Scale& s, const Numbers&) { return s.with_entropy_invariance(); }},
    Entry{{"llama4", "", "times 1 + 0.1·ln(1 + floor((position + 1)/8192))"},
          0,
          0,
          false,
          [](const Scale& s, const Numbers&) { return s.with_llama4_temperature(); }},
};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0;;) {
    const std::size_t to = text.find(at, from);
    parts.push_back(trim(text.substr(from, to == text.npos ? to : to - from)));
    if (to == text.npos) return parts;
    from = to + 1;
  }
}

double parse_number(std::string_view part, std::string_view text) {
  const std::optional<double> value = base::read_number<double>(text);
  if (!value || !std::isfinite(*value)) refuse("scale: \"{}\": \"{}\" is not a finite number", part, text);
  return *value;
}

// "ssmax(0.43, 1)" → the entry and its numbers.
struct Part {
  const Entry* entry;
  Numbers numbers;
};

Part parse_part(std::string_view part) {
  const std::size_t open = part.find('(');
  const std::string_view name = trim(part.substr(0, open));
  Part out{nullptr, {}};
  for (const Entry& entry : kEntries)
    if (entry.text.name == name) out.entry = &entry;
  if (out.entry == nullptr) {
    if (name == "per_head") refuse("scale: per_head is a number for each head; give those instead of the name");
    std::string known;
    std::vector<std::string> names;
    for (const Entry& entry : kEntries) {
      known += fmt::format("{}{}{}", known.empty() ? "" : ", ", entry.text.name, entry.text.parameters);
      names.emplace_back(entry.text.name);
    }
    refuse("scale: \"{}\" is not known; known are {}{}", name, known, base::did_you_mean(name, names));
  }
  if (open != part.npos) {
    if (part.back() != ')') refuse("scale: \"{}\": the ) is missing, or not the last character", part);
    const std::string_view inside = part.substr(open + 1, part.size() - open - 2);
    if (!trim(inside).empty())
      for (const std::string_view number : split(inside, ',')) {
        if (number == "per_head") refuse("scale: \"{}\": an array is given in code, not as text", part);
        out.numbers.push_back(parse_number(part, number));
      }
  }
  if (out.numbers.size() < out.entry->fewest || out.numbers.size() > out.entry->most)
    refuse("scale: \"{}\": {} parameter{}, but {}{} is wanted", part, out.numbers.size(),
           out.numbers.size() == 1 ? "" : "s", name, out.entry->text.parameters);
  return out;
}

std::string rule_name(const Scale& scale) {
  switch (scale.rule) {
    case Scale::Rule::kNone: return "none";
    case Scale::Rule::kInvSqrtDk: return "sqrt_dk";
    case Scale::Rule::kInvDk: return "dk";
    case Scale::Rule::kConstant: return fmt::format("constant({})", scale.value);
    case Scale::Rule::kPerHead: return "per_head";
    case Scale::Rule::kAlphaOverDk: return fmt::format("dk({})", scale.value);
    case Scale::Rule::kUnitVariance: return fmt::format("unit_variance({}, {})", scale.sigma_q, scale.sigma_k);
  }
  return "unknown";
}

std::string length_name(const Scale& scale) {
  switch (scale.length) {
    case Scale::Length::kNone: return "";
    case Scale::Length::kEntropyInvariant: return "*entropy_invariant";
    case Scale::Length::kLlama4: return "*llama4";
    case Scale::Length::kLogN: break;
  }
  const auto one = [](std::span<const float> heads, double value) {
    return heads.empty() ? fmt::format("{}", value) : "per_head";
  };
  return fmt::format("*ssmax({}, {})", one(scale.head_gains, scale.log_n_gain),
                     one(scale.head_offsets, scale.log_n_offset));
}

}  // namespace

Scale Scale::parse(std::string_view text) {
  Scale scale;
  std::string_view rule;
  for (const std::string_view part : split(text, '*')) {
    const Part parsed = parse_part(part);
    if (parsed.entry->is_rule) {
      if (!rule.empty())
        refuse("scale: \"{}\": {} and {} both say what c is; one is wanted", text, rule, parsed.entry->text.name);
      rule = parsed.entry->text.name;
    }
    scale = parsed.entry->apply(scale, parsed.numbers);
  }
  return scale;
}

std::string Scale::name() const {
  return rule_name(*this) + (yarn == 1 ? std::string() : fmt::format("*yarn({})", yarn)) + length_name(*this);
}

std::span<const ScaleName> Scale::names() {
  static const auto all = [] {
    std::array<ScaleName, kEntries.size()> out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = kEntries[i].text;
    return out;
  }();
  return all;
}

}  // namespace rootdk
