// Text that somebody else wrote (a file's name, a tensor's) made fit to be shown: what would steer a terminal, or make
// a line read in another order than it is written in, becomes visible.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace rootdk::base {

namespace visible_detail {

/// Unicode's controls of direction, and its separators of lines: all of them take two or three bytes of UTF-8.
inline bool reorders(std::uint32_t code) {
  return code == 0x61C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
};

/// Of two or three bytes; anything else is the byte it begins with.
inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<std::uint8_t>(text[at + i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80; };
  if (byte(0) < 0x80) return {byte(0), 1};
  if ((byte(0) & 0xE0u) == 0xC0 && follows(1)) return {(byte(0) & 0x1Fu) << 6 | (byte(1) & 0x3Fu), 2};
  if ((byte(0) & 0xF0u) == 0xE0 && follows(1) && follows(2))
    return {(byte(0) & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {byte(0), 1};
}

/// What stays as it is is copied in runs: a JSON of thousands of numbers is one.
template <class Hides>
std::string escaped(std::string_view text, const Hides& hides) {
  std::string out;
  out.reserve(text.size());
  std::size_t copied = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto [code, bytes] = character_at(text, i);
    const bool turns = bytes > 1 && reorders(code);
    if (turns || hides(code, bytes)) {
      out += text.substr(copied, i - copied);
      out += turns ? fmt::format("\\u{:04x}", code) : fmt::format("\\x{:02x}", code);
      copied = i + bytes;
    }
    i += bytes;
  }
  return out += text.substr(copied);
}

}  // namespace visible_detail

/// Controls of direction as \u202e. In JSON that means the same: there such characters stand in strings only.
inline std::string with_visible_direction(std::string_view text) {
  return visible_detail::escaped(text, [](std::uint32_t, std::size_t) { return false; });
}

/// These, and control characters other than a newline as \x1b: for a line of text.
inline std::string visible(std::string_view text) {
  return visible_detail::escaped(text, [](std::uint32_t code, std::size_t bytes) {
    return (code < 0x20 && code != '\n') || code == 0x7F || (bytes == 2 && code >= 0x80 && code < 0xA0);
  });
}

}  // namespace rootdk::base
