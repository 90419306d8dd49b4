// Numbers from text, where the standard library reads only whole ones from characters; the locale is always "C" here.
// What src/base/read_number.h is elsewhere.
#pragma once

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace rootdk::base {

template <class Number>
std::optional<Number> read_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

template <>
inline std::optional<double> read_number<double>(std::string_view text) {
  // Beyond what from_chars takes, strtod takes spaces and a plus sign in front, and hexadecimal digits.
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.front() <= ' ' || digits.front() == '+' || digits.front() == '-') return {};
  if (digits.starts_with("0x") || digits.starts_with("0X")) return {};
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(copy.c_str(), &end);
  if ((errno == ERANGE && (value == 0 || std::isinf(value))) || end != copy.c_str() + copy.size()) return {};
  return value;
}

}  // namespace rootdk::base
