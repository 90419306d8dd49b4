// GGUF, versions 2 and 3: "GGUF", version (u32), number of tensors and of metadata pairs (u64 each), the pairs, the
// tensors' names, shapes, types and offsets, then their bytes, aligned. Extents come innermost first.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/contents.h"
#include "checkpoint/cursor.h"
#include "checkpoint/gguf_value.h"
#include "checkpoint/ranges.h"
#include "checkpoint/shape.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

constexpr std::uint64_t kMaxKeyBytes = 65535;  // the format's limit for keys; tensors' names get as much
constexpr std::uint32_t kMaxGgufAxes = 4;      // the format's limit
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kSmallestPair = 8 + 1 + 4 + 1;        // length and text of a key, type, a value of one byte
constexpr std::uint64_t kSmallestTensor = 8 + 1 + 4 + 4 + 8;  // length and text of a name, axes, type, offset

std::optional<Encoding> gguf_encoding(std::uint32_t type) {
  switch (type) {
    case 0: return Encoding::kF32;
    case 1: return Encoding::kF16;
    case 2: return Encoding::kQ4_0;
    case 3: return Encoding::kQ4_1;
    case 6: return Encoding::kQ5_0;
    case 7: return Encoding::kQ5_1;
    case 8: return Encoding::kQ8_0;
    case 10: return Encoding::kQ2_K;
    case 11: return Encoding::kQ3_K;
    case 12: return Encoding::kQ4_K;
    case 13: return Encoding::kQ5_K;
    case 14: return Encoding::kQ6_K;
    case 16: return Encoding::kIQ2_XXS;
    case 17: return Encoding::kIQ2_XS;
    case 18: return Encoding::kIQ3_XXS;
    case 19: return Encoding::kIQ1_S;
    case 20: return Encoding::kIQ4_NL;
    case 21: return Encoding::kIQ3_S;
    case 22: return Encoding::kIQ2_S;
    case 23: return Encoding::kIQ4_XS;
    case 24: return Encoding::kI8;
    case 25: return Encoding::kI16;
    case 26: return Encoding::kI32;
    case 27: return Encoding::kI64;
    case 28: return Encoding::kF64;
    case 29: return Encoding::kIQ1_M;
    case 30: return Encoding::kBF16;
    case 34: return Encoding::kTQ1_0;
    case 35: return Encoding::kTQ2_0;
    case 39: return Encoding::kMXFP4;
    case 40: return Encoding::kNVFP4;
    case 41: return Encoding::kQ1_0;
    default: return {};  // 9 and 15 (Q8_1, Q8_K) exist in memory only; others were withdrawn or are not known yet
  }
}

std::string name_here(const Source& source, Cursor& cursor, const char* what) {
  const std::uint64_t at = cursor.position();
  const auto length = cursor.number<std::uint64_t>(what);
  if (length > kMaxKeyBytes)
    source.refuse_at(at, "{} has {} bytes, but at most {} are taken", what, length, kMaxKeyBytes);
  const std::string_view text = cursor.text(length, what);
  if (!is_name(text))
    source.refuse_at(at + 8, "{} is {}: empty, not UTF-8 or with control characters", what, in_quotes(text));
  return std::string(text);
}

std::uint64_t count_here(const Source& source, Cursor& cursor, const char* what, std::uint64_t smallest) {
  const std::uint64_t at = cursor.position();
  const auto count = cursor.number<std::uint64_t>(what);
  if (count > cursor.left() / smallest)
    source.refuse_at(at, "{} {} are claimed, but the {} bytes that follow have room for {} at most", count, what,
                     cursor.left(), cursor.left() / smallest);
  return count;
}

std::uint64_t alignment_of(const Source& source, const MetadataEntry& entry, std::uint64_t at) {
  const auto value = entry.value.integer();
  if (!value || *value < 8 || *value % 8 != 0 || *value > (std::int64_t{1} << 31))
    source.refuse_at(at, "general.alignment must be a whole number, a multiple of 8 from 8 to 2147483648");
  return static_cast<std::uint64_t>(*value);
}

// A tensor's description; its offset counts from where the data begin, which is not known yet.
struct Described {
  TensorInfo info;
  std::uint64_t at = 0;
};

Described tensor_here(const Source& source, Cursor& cursor) {
  Described tensor;
  TensorInfo& info = tensor.info;
  tensor.at = cursor.position();
  info.name = name_here(source, cursor, "a tensor's name");
  const auto axes = cursor.number<std::uint32_t>("a tensor's number of axes");
  if (axes > kMaxGgufAxes)
    source.refuse_at(tensor.at, "tensor {}: {} axes, but at most {} are taken", in_quotes(info.name), axes,
                     kMaxGgufAxes);
  for (std::uint32_t axis = 0; axis < axes; ++axis) {
    const auto extent = cursor.number<std::uint64_t>("a tensor's shape");
    if (extent > static_cast<std::uint64_t>(INT64_MAX))
      source.refuse_at(tensor.at, "tensor {}: an extent of {}, but at most {} is taken", in_quotes(info.name), extent,
                       INT64_MAX);
    info.shape.push_back(static_cast<std::int64_t>(extent));
  }
  std::reverse(info.shape.begin(), info.shape.end());
  const auto type = cursor.number<std::uint32_t>("a tensor's type");
  const auto encoding = gguf_encoding(type);
  if (!encoding) source.refuse_at(tensor.at, "tensor {}: type {} is not known", in_quotes(info.name), type);
  info.encoding = *encoding;
  const auto count = count_of(info.shape);
  const auto bytes =
      count && info.width() % traits(*encoding).block_values == 0 ? bytes_of(*encoding, *count) : std::nullopt;
  if (!bytes)
    source.refuse_at(tensor.at, "tensor {}: no tensor of {} can have the shape {}", in_quotes(info.name),
                     traits(*encoding).name, show(info.shape));
  info.bytes = *bytes;
  info.offset = cursor.number<std::uint64_t>("a tensor's offset");
  return tensor;
}

void place(const Source& source, Described& tensor, std::uint64_t data_begin, std::uint64_t alignment) {
  TensorInfo& info = tensor.info;
  const std::uint64_t data_bytes = source.size() - data_begin;
  if (info.offset % alignment != 0)
    source.refuse_at(tensor.at, "tensor {}: offset {} is not a multiple of the alignment, {}", in_quotes(info.name),
                     info.offset, alignment);
  if (info.offset > data_bytes || info.bytes > data_bytes - info.offset)
    source.refuse_at(tensor.at, "tensor {}: {} bytes at offset {}, but the data have {} bytes", in_quotes(info.name),
                     info.bytes, info.offset, data_bytes);
  info.offset += data_begin;
}

}  // namespace

Contents read_gguf(const std::shared_ptr<const Source>& shared) {
  const Source& source = *shared;
  Cursor cursor = gguf_cursor(source, 0);
  if (cursor.text(4, "the first four bytes") != "GGUF") source.refuse_at(0, "a GGUF file begins with \"GGUF\"");
  const auto version = cursor.number<std::uint32_t>("the version");
  if ((version & 0xffff) == 0 && version != 0)
    source.refuse_at(4, "a big-endian GGUF file: only little-endian ones are read");
  if (version != 2 && version != 3) source.refuse_at(4, "GGUF version {}: only 2 and 3 are read", version);
  const std::uint64_t tensors = count_here(source, cursor, "tensors", kSmallestTensor);
  const std::uint64_t pairs = count_here(source, cursor, "metadata pairs", kSmallestPair);

  Contents contents;
  std::uint64_t alignment = kDefaultAlignment;
  std::set<std::string, std::less<>> names;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const std::uint64_t at = cursor.position();
    std::string key = name_here(source, cursor, "a metadata key");
    if (!names.insert(key).second) source.refuse_at(at, "the metadata have the key {} twice", in_quotes(key));
    contents.metadata.push_back({std::move(key), gguf_value(shared, cursor)});
    const MetadataEntry& entry = contents.metadata.back();
    if (entry.key == "general.alignment") alignment = alignment_of(source, entry, at);
  }

  names.clear();
  std::vector<Described> described;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    described.push_back(tensor_here(source, cursor));
    if (!names.insert(described.back().info.name).second)
      source.refuse_at(described.back().at, "two tensors have the name {}", in_quotes(described.back().info.name));
  }

  // Padding before the data may be missing where there are none.
  const std::uint64_t padding = (alignment - cursor.position() % alignment) % alignment;
  const std::uint64_t data_begin = cursor.position() + std::min(padding, source.size() - cursor.position());
  std::vector<Range> ranges;
  for (Described& tensor : described) {
    place(source, tensor, data_begin, alignment);
    ranges.push_back({tensor.info.offset, tensor.info.offset + tensor.info.bytes, tensor.at, tensor.info.name});
    contents.tensors.push_back({std::move(tensor.info)});
  }
  check_ranges(source, ranges, data_begin, source.size(), Gaps::kAllow);
  sort_tensors(source, contents.tensors);
  return contents;
}

}  // namespace rootdk::checkpoint
