#include "report/text.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rootdk::report {

namespace {

struct Decoded {
  std::uint32_t code;
  std::size_t bytes;
};

Decoded decode(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
  if (length == 0 || length > text.size()) return {0xFFFD, 1};
  std::uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if (next >> 6 != 2) return {0xFFFD, 1};
    code = code << 6 | (next & 0x3Fu);
  }
  return {code, length};
}

using Range = std::pair<std::uint32_t, std::uint32_t>;

// Combining marks and what joins characters.
constexpr Range kZeroWidth[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x610, 0x61A},
                                {0x64B, 0x65F},   {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F},
                                {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xAC00, 0xD7A3},
                           {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},
                           {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

template <std::size_t kCount>
bool within(std::uint32_t code, const Range (&ranges)[kCount]) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& r) { return r.first <= code && code <= r.second; });
}

}  // namespace

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Decoded next = decode(text);
    width += within(next.code, kZeroWidth) ? 0 : within(next.code, kWide) ? 2 : 1;
    text.remove_prefix(next.bytes);
  }
  return width;
}

std::string wrap(std::string_view text, std::string_view indent, std::size_t width) {
  std::string out, line(indent);
  bool empty = true;
  while (!text.empty()) {
    std::size_t end = std::min(text.find(' '), text.size());
    if (text.substr(end).starts_with(" %"))
      end = std::min(text.find(' ', end + 1), text.size());  // a number keeps its %
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!empty && display_width(line) + 1 + display_width(word) > width) {
      out += line + "\n";
      line = indent;
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return out + line + "\n";
}

}  // namespace rootdk::report
