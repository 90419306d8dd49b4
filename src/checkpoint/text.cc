// A strict UTF-8 decoder, and escapes for whatever could steer a terminal.
#include "checkpoint/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace rootdk::checkpoint {

namespace {

constexpr std::size_t kShown = 120;

// Length of the UTF-8 sequence at `at`, and its code point; 0 if it is none (overlong forms and surrogates are none).
struct Sequence {
  std::size_t length = 0;
  std::uint32_t code = 0;
};

Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(at);
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 0;
  if (length == 0 || text.size() - at < length) return {};
  std::uint32_t code = lead & (0x7fu >> length);
  for (std::size_t i = at + 1; i < at + length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {length, code};
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

std::string escaped(std::string_view text, std::string_view also, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const Sequence sequence = sequence_at(text, i);
    const std::size_t length = sequence.length == 0 ? 1 : sequence.length;
    if (i + length > limit) return out + "…";
    if (sequence.length == 0 || is_control(sequence.code)) {
      for (std::size_t j = i; j < i + length; ++j) out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(text[j]));
    } else {
      if (also.find(text[i]) != std::string_view::npos) out += '\\';
      out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

}  // namespace

std::size_t first_not_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_at(text, i).length;
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

bool is_name(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Sequence sequence = sequence_at(text, i);
    if (sequence.length == 0 || is_control(sequence.code)) return false;
    i += sequence.length;
  }
  return !text.empty();
}

std::string in_quotes(std::string_view text) { return '"' + escaped(text, "\"\\", kShown) + '"'; }

std::string printable(std::string_view text) { return escaped(text, "", std::string_view::npos); }

}  // namespace rootdk::checkpoint
