// What a checkpoint says about itself: text in safetensors, typed values in GGUF.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::checkpoint {

class Source;
struct MetadataValue;

/// Numbered as in GGUF.
enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// An array stays in the file until its values are asked for: a vocabulary can have millions. Keeps its file open.
class ROOTDK_API MetadataArray {
 public:
  ValueType element_type() const { return element_type_; }
  std::uint64_t size() const { return size_; }

  /// Values first … first + count − 1. Strings before `first` are walked over.
  std::vector<MetadataValue> values(std::uint64_t first, std::uint64_t count) const;
  std::vector<MetadataValue> values() const;

  MetadataArray(std::shared_ptr<const Source> source, ValueType element_type, std::uint64_t size, std::uint64_t offset);

 private:
  std::shared_ptr<const Source> source_;
  ValueType element_type_;
  std::uint64_t size_;
  std::uint64_t offset_;
};

/// Whole numbers are held in 64 bits, with or without sign as the file has them; f32 is widened. Strings are bytes:
/// files do not always keep to UTF-8 here.
struct MetadataValue {
  ValueType type = ValueType::kString;
  std::variant<std::string, bool, std::uint64_t, std::int64_t, double, MetadataArray> value;

  /// What it is worth as one of these; nothing if it is something else.
  const std::string* text() const { return std::get_if<std::string>(&value); }
  const MetadataArray* array() const { return std::get_if<MetadataArray>(&value); }
  std::optional<bool> boolean() const {
    if (const bool* b = std::get_if<bool>(&value)) return *b;
    return {};
  }
  std::optional<std::int64_t> integer() const {
    if (const auto* i = std::get_if<std::int64_t>(&value)) return *i;
    const auto* u = std::get_if<std::uint64_t>(&value);
    if (u != nullptr && *u <= static_cast<std::uint64_t>(INT64_MAX)) return static_cast<std::int64_t>(*u);
    return {};
  }
  std::optional<double> number() const {
    if (const double* d = std::get_if<double>(&value)) return *d;
    if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
    if (const auto* u = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*u);
    return {};
  }
};

struct MetadataEntry {
  std::string key;
  MetadataValue value;
};

}  // namespace rootdk::checkpoint
