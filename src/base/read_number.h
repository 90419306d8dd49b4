// Numbers from text, whatever the locale says.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace rootdk::base {

/// All of the text, as std::from_chars reads it; nothing if it is no such number.
template <class Number>
std::optional<Number> read_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace rootdk::base
