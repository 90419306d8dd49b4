// Reads a header from front to back and never past its end.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "checkpoint/source.h"

namespace rootdk::checkpoint {

static_assert(std::endian::native == std::endian::little,
              "the formats are little-endian, and so is what this code was written for");

class Cursor {
 public:
  /// `ends` is said when something does not fit before `end`, which is at most the file's size.
  Cursor(const Source& source, std::uint64_t position, std::uint64_t end, const char* ends = "the file ends")
      : source_(source), position_(position), end_(end), ends_(ends) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return end_ - position_; }

  /// Refuses unless this many bytes are left; `what` they belong to goes into the message.
  void want(std::uint64_t bytes, const char* what) const {
    if (bytes > left())
      source_.refuse_at(position_, "{} in {}: {} bytes are wanted, {} are left", ends_, what, bytes, left());
  }
  template <class T>
  T number(const char* what) {
    want(sizeof(T), what);
    T value;
    std::memcpy(&value, source_.bytes(position_, sizeof(T)).data(), sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  std::string_view text(std::uint64_t length, const char* what) {
    want(length, what);
    position_ += length;
    return source_.text(position_ - length, length);
  }
  void skip(std::uint64_t bytes, const char* what) {
    want(bytes, what);
    position_ += bytes;
  }

 private:
  const Source& source_;
  std::uint64_t position_;
  std::uint64_t end_;
  const char* ends_;
};

}  // namespace rootdk::checkpoint
