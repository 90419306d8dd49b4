// Splitting at commas outside of parentheses, and reading each part as a number, a word of a list or a scale.
#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/nearest.h"
#include "base/read_number.h"
#include "base/refuse.h"

namespace rootdk::app {

using base::refuse;

namespace {

template <class Number>
std::vector<Number> parse_all(std::string_view option, std::string_view text, std::string_view wanted) {
  std::vector<Number> out;
  for (const std::string& part : split_list(option, text)) {
    const std::optional<Number> value = base::read_number<Number>(part);
    if (!value || !std::isfinite(static_cast<double>(*value))) refuse("{}: \"{}\" is not {}", option, part, wanted);
    out.push_back(*value);
  }
  return out;
}

template <class Value, class ToText>
std::string join(const std::vector<Value>& values, const ToText& to_text) {
  std::string out;
  for (const Value& value : values) out += (out.empty() ? "" : ",") + to_text(value);
  return out;
}

}  // namespace

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::size_t choice(std::string_view option, std::string_view text, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  refuse("{}: \"{}\", but {} is wanted{}", option, text, base::either(words), base::did_you_mean(text, words));
}

std::string joined(const std::vector<std::int64_t>& values) {
  return join(values, [](std::int64_t x) { return fmt::format("{}", x); });
}
std::string joined(const std::vector<double>& values) {
  return join(values, [](double x) { return fmt::format("{:g}", x); });
}
std::string joined(const std::vector<Scale>& values) {
  return join(values, [](const Scale& x) { return x.name(); });
}

std::vector<std::string> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  int depth = 0;
  const auto take = [&](std::size_t to) {
    const std::string_view part = trim(text.substr(from, to - from));
    if (part.empty()) refuse("{}: \"{}\" has an empty place; a list like 1,2,3 is wanted", option, text);
    parts.emplace_back(part);
    from = to + 1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (text[i] == ',' && depth == 0) take(i);
  }
  take(text.size());
  return parts;
}

std::vector<std::int64_t> whole_numbers(std::string_view option, std::string_view text) {
  return parse_all<std::int64_t>(option, text, "a whole number");
}

std::vector<double> numbers(std::string_view option, std::string_view text) {
  return parse_all<double>(option, text, "a finite number");
}

std::vector<Scale> scales(std::string_view option, std::string_view text) {
  std::vector<Scale> out;
  for (const std::string& part : split_list(option, text)) {
    try {
      out.push_back(Scale::parse(part));
    } catch (const Error& error) {
      refuse("{}: {}", option, error.what());
    }
  }
  return out;
}

}  // namespace rootdk::app
