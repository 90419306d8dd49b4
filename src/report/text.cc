// UTF-8 decoded, widths from ranges of code points, lines broken at spaces.
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

// Combining marks and what joins characters; the vowels and finals of Hangul that is written in parts.
constexpr Range kZeroWidth[] = {
    {0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x610, 0x61A},   {0x64B, 0x65F},   {0x900, 0x902},
    {0x93C, 0x93C},   {0x941, 0x948},   {0x94D, 0x94D},   {0xE31, 0xE31},   {0xE34, 0xE3A},   {0xE47, 0xE4E},
    {0x1160, 0x11FF}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x2060, 0x2064}, {0x20D0, 0x20FF},
    {0x302A, 0x302D}, {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0100, 0xE01EF}};
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xA960, 0xA97F},
                           {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
                           {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F7E0, 0x1F7EB},
                           {0x1F900, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD}};

template <std::size_t kCount>
bool within(std::uint32_t code, const Range (&ranges)[kCount]) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& r) { return r.first <= code && code <= r.second; });
}

std::size_t width_of(std::uint32_t code) { return within(code, kZeroWidth) ? 0 : within(code, kWide) ? 2 : 1; }

constexpr char kSpaceThatStays = '\x1f';  // no text that is shown has control characters

void put_spaces_back(std::string& text) { std::replace(text.begin(), text.end(), kSpaceThatStays, ' '); }

}  // namespace

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Decoded next = decode(text);
    width += width_of(next.code);
    text.remove_prefix(next.bytes);
  }
  return width;
}

// A number keeps its %, an equation both of its sides.
static bool stays_together(std::string_view before, std::string_view after) {
  return after.starts_with('%') || after.starts_with("= ") || before.ends_with(" =");
}

std::string wrap(std::string_view text, std::string_view indent, std::size_t width) {
  std::string out, line(indent);
  bool empty = true;
  while (!text.empty()) {
    std::size_t end = std::min(text.find(' '), text.size());
    while (end < text.size() && stays_together(text.substr(0, end), text.substr(end + 1)))
      end = std::min(text.find(' ', end + 1), text.size());
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
  out += line + "\n";
  put_spaces_back(out);
  return out;
}

std::string unbroken(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), ' ', kSpaceThatStays);
  return out;
}

std::string hanging(std::string_view label, std::size_t column, std::string_view text, std::size_t width) {
  constexpr std::size_t kLittle = 6;
  if (2 * column > width) column = kLittle;
  const std::string indent(column, ' ');
  const std::size_t reach = display_width(label);
  if (text.empty() || reach >= column)
    return std::string(label) + "\n" + (text.empty() ? "" : wrap(text, indent, width));
  return std::string(label) + std::string(column - reach, ' ') + wrap(text, indent, width).substr(column);
}

std::string cut(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  std::string out;
  for (std::size_t used = 1; !text.empty();) {
    const Decoded next = decode(text);
    used += width_of(next.code);
    if (used > width) break;
    out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return width == 0 ? "" : out + "…";
}

Layout Layout::of_terminal(std::size_t columns, Detail detail) {
  const std::size_t wide = std::max(columns, kFewest);
  return {std::min(wide, kMostProse), wide, detail};
}

}  // namespace rootdk::report
