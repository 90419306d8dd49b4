// A parser for the one Python dictionary that numpy writes, the dtypes we know, and a header of our own.
#include "checkpoint/npy_header.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cctype>
#include <cstring>
#include <optional>

#include "checkpoint/shape.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Kind {
  std::string_view code;
  Encoding encoding;
};
constexpr std::array<Kind, 12> kKinds = {{{"f8", Encoding::kF64},
                                          {"f4", Encoding::kF32},
                                          {"f2", Encoding::kF16},
                                          {"i8", Encoding::kI64},
                                          {"i4", Encoding::kI32},
                                          {"i2", Encoding::kI16},
                                          {"i1", Encoding::kI8},
                                          {"u8", Encoding::kU64},
                                          {"u4", Encoding::kU32},
                                          {"u2", Encoding::kU16},
                                          {"u1", Encoding::kU8},
                                          {"b1", Encoding::kBool}}};

// Just enough Python for the dictionary.
class Dictionary {
 public:
  Dictionary(const Source& source, std::uint64_t offset, std::string_view text)
      : source_(source), offset_(offset), text_(text) {}

  void parse(TensorInfo& info) {
    expect('{', "a dictionary");
    while (!accept('}')) {
      const std::uint64_t at = here();
      const std::string_view key = string("a key");
      expect(':', "a colon");
      if (key == "descr") {
        once(0, at, key);
        descr(info);
      } else if (key == "fortran_order") {
        once(1, at, key);
        info.order = boolean() ? Order::kColumnMajor : Order::kRowMajor;
      } else if (key == "shape") {
        once(2, at, key);
        shape(info);
      } else {
        source_.refuse_at(at, "the header has the key {}, which is none of descr, fortran_order and shape",
                          in_quotes(key));
      }
      if (!accept(',')) {
        expect('}', "a comma or the dictionary's end");
        break;
      }
    }
    space();
    if (place_ != text_.size()) source_.refuse_at(here(), "the header goes on after its dictionary");
    constexpr std::array<const char*, 3> kKeys = {"descr", "fortran_order", "shape"};
    for (std::size_t i = 0; i < kKeys.size(); ++i)
      if (!seen_[i]) source_.refuse_at(offset_, "the header has no {}", kKeys[i]);
  }

 private:
  std::uint64_t here() const { return offset_ + place_; }
  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }
  void space() {
    while (place_ < text_.size() && (peek() == ' ' || peek() == '\n' || peek() == '\t')) ++place_;
  }
  bool accept(char c) {
    space();
    if (place_ == text_.size() || text_[place_] != c) return false;
    ++place_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) source_.refuse_at(here(), "the header is wrong here: {} is wanted", what);
  }
  void once(std::size_t key, std::uint64_t at, std::string_view name) {
    if (seen_[key]) source_.refuse_at(at, "the header has the key {} twice", in_quotes(name));
    seen_[key] = true;
  }

  // Keys and types need no escapes.
  std::string_view string(const char* what) {
    space();
    const char quote = peek();
    if (quote != '\'' && quote != '"') source_.refuse_at(here(), "the header is wrong here: {} is wanted", what);
    const std::size_t begin = place_ + 1, end = text_.find(quote, begin);
    if (end == std::string_view::npos) source_.refuse_at(here(), "the header ends in {}", what);
    place_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  bool boolean() {
    space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(place_).starts_with(word)) {
        place_ += word.size();
        return value;
      }
    }
    source_.refuse_at(here(), "fortran_order is neither True nor False");
  }

  void descr(TensorInfo& info) {
    space();
    const std::uint64_t at = here();
    if (peek() == '[') source_.refuse_at(at, "descr is a list: arrays of records are not read");
    const std::string_view code = string("a type");
    if (code.find('O') != std::string_view::npos)
      source_.refuse_at(at, "descr {} is of Python objects: those are pickles, which can run code, and are never read",
                        in_quotes(code));
    if (code.size() == 3 && std::string_view("<>|").find(code[0]) != std::string_view::npos) {
      for (const Kind& kind : kKinds) {
        if (code.substr(1) != kind.code || (code[0] == '|' && traits(kind.encoding).block_bytes != 1)) continue;
        info.encoding = kind.encoding;
        info.byte_order = code[0] == '>' ? ByteOrder::kBig : ByteOrder::kLittle;
        return;
      }
    }
    source_.refuse_at(at, "descr {} is not known: f2 to f8, i1 to i8, u1 to u8 and b1 are, behind <, > or |",
                      in_quotes(code));
  }

  void shape(TensorInfo& info) {
    expect('(', "a tuple");
    while (!accept(')')) {
      space();
      const std::uint64_t at = here();
      if (info.shape.size() == kMaxAxes) source_.refuse_at(at, "shape has more than {} axes", kMaxAxes);
      info.shape.push_back(extent());
      if (!accept(',')) {
        if (info.shape.size() == 1) source_.refuse_at(at, "shape is a number, but a tuple is wanted");
        expect(')', "a comma or the tuple's end");
        break;
      }
    }
  }

  std::int64_t extent() {
    const std::uint64_t at = here();
    std::int64_t value = 0;
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0)
      source_.refuse_at(at, "shape has something that is not a whole number");
    for (; std::isdigit(static_cast<unsigned char>(peek())) != 0; ++place_) {
      const int digit = peek() - '0';
      if (value > (INT64_MAX - digit) / 10) source_.refuse_at(at, "shape has an extent beyond {}", INT64_MAX);
      value = value * 10 + digit;
    }
    if (peek() == 'L') ++place_;  // Python 2
    return value;
  }

  const Source& source_;
  const std::uint64_t offset_;
  const std::string_view text_;
  std::size_t place_ = 0;
  std::bitset<3> seen_;
};

}  // namespace

NpyHeader parse_npy_header(const Source& source, std::uint64_t offset, std::string_view begin, std::uint64_t total) {
  if (!begin.starts_with(kMagic)) source.refuse_at(offset, "an .npy begins with \"\\x93NUMPY\"");
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(begin[i]); };
  if (begin.size() < 8) source.refuse_at(offset, "the .npy ends in its version");
  const int major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0)
    source.refuse_at(offset + 6, ".npy version {}.{}: only 1.0, 2.0 and 3.0 are read", major, minor);
  const std::size_t length_bytes = major == 1 ? 2 : 4, prelude = 8 + length_bytes;
  if (begin.size() < prelude) source.refuse_at(offset + 8, "the .npy ends in its header's length");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::uint64_t{byte(8 + i)} << (8 * i);
  if (length > kMaxNpyHeaderBytes)
    source.refuse_at(offset + 8, "the header's length is {}, but at most {} is taken", length, kMaxNpyHeaderBytes);
  if (length > begin.size() - prelude)
    source.refuse_at(offset + 8, "the header's length is {}, but {} bytes follow", length, begin.size() - prelude);

  NpyHeader header;
  header.header_bytes = prelude + length;
  Dictionary(source, offset + prelude, begin.substr(prelude, length)).parse(header.info);
  TensorInfo& info = header.info;
  const auto count = count_of(info.shape);
  const auto bytes = count ? bytes_of(info.encoding, *count) : std::nullopt;
  if (!bytes)
    source.refuse_at(offset + prelude, "no array of {} can have the shape {}", traits(info.encoding).name,
                     show(info.shape));
  info.bytes = *bytes;
  if (total - header.header_bytes != *bytes)
    source.refuse_at(offset + header.header_bytes, "{} bytes follow the header, but {} of shape {} has {}",
                     total - header.header_bytes, traits(info.encoding).name, show(info.shape), *bytes);
  return header;
}

std::string npy_header(std::string_view descr, std::span<const std::int64_t> shape) {
  std::string tuple;
  for (const std::int64_t extent : shape) tuple += fmt::format("{}, ", extent);
  if (shape.size() > 1) tuple.resize(tuple.size() - 2);
  if (shape.size() == 1) tuple.resize(tuple.size() - 1);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, tuple);
  // Spaces and a line's end, so that the numbers begin at a multiple of 64.
  const std::size_t prelude = kMagic.size() + 4, unpadded = prelude + text.size() + 1;
  text.append((64 - unpadded % 64) % 64, ' ');
  text += '\n';
  std::string out(kMagic);
  out += {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return out + text;
}

}  // namespace rootdk::checkpoint
