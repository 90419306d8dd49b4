// Writes GGUF files, right ones and, where a field is set by hand, wrong ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace rootdk::test {

/// Numbers of value types and tensor types in the format.
enum GgufType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };
enum GgmlType : std::uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ4_1 = 3,
  kGgmlQ5_0 = 6,
  kGgmlQ5_1 = 7,
  kGgmlQ8_0 = 8,
  kGgmlQ2_K = 10,
  kGgmlQ4_K = 12,
  kGgmlQ5_K = 13,
  kGgmlQ6_K = 14,
  kGgmlI8 = 24,
  kGgmlI16 = 25,
  kGgmlI32 = 26,
  kGgmlI64 = 27,
  kGgmlF64 = 28,
  kGgmlBF16 = 30,
};

/// A length and that many bytes.
inline std::string gguf_text(std::string_view text) {
  return Bytes().number(std::uint64_t{text.size()}).raw(text).text();
}

/// The elements' type, their number and the elements.
inline std::string gguf_array(GgufType type, std::uint64_t count, std::string_view elements) {
  return Bytes().number<std::uint32_t>(type).number(count).raw(elements).text();
}

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> extents;  ///< innermost first
  std::uint32_t type = kGgmlF32;
  std::string data;
  std::optional<std::uint64_t> offset = {};  ///< where it says its data are; one behind the other if absent
};

struct GgufWriter {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::optional<std::uint64_t> tensor_count = {}, pair_count = {};  ///< what is claimed; the truth if absent
  std::string pairs;                                                ///< as they stand in the file
  std::uint64_t pairs_written = 0;
  std::vector<GgufTensor> tensors;

  GgufWriter& pair(std::string_view key, std::uint32_t type, std::string_view value) {
    pairs += gguf_text(key) + Bytes().number(type).raw(value).text();
    ++pairs_written;
    return *this;
  }
  template <class T>
  GgufWriter& number(std::string_view key, GgufType type, T value) {
    return pair(key, type, Bytes().number(value).text());
  }
  GgufWriter& text(std::string_view key, std::string_view value) { return pair(key, kText, gguf_text(value)); }
  GgufWriter& tensor(GgufTensor tensor) {
    tensors.push_back(std::move(tensor));
    return *this;
  }

  /// All but the data, and the padding before those.
  std::string header() const {
    Bytes out;
    out.raw(magic)
        .number(version)
        .number(tensor_count.value_or(tensors.size()))
        .number(pair_count.value_or(pairs_written))
        .raw(pairs);
    std::uint64_t next = 0;
    for (const GgufTensor& tensor : tensors) {
      out.raw(gguf_text(tensor.name)).number(static_cast<std::uint32_t>(tensor.extents.size()));
      for (const std::uint64_t extent : tensor.extents) out.number(extent);
      out.number(tensor.type).number(tensor.offset.value_or(next));
      next += (tensor.data.size() + alignment - 1) / alignment * alignment;
    }
    return out.text();
  }
  std::string bytes() const {
    Bytes out;
    out.raw(header());
    for (const GgufTensor& tensor : tensors) out.pad_to(alignment).raw(tensor.data);
    return out.text();
  }
};

}  // namespace rootdk::test
