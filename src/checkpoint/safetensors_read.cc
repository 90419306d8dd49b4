// The safetensors format: a length (u64), a JSON header of that length, the tensors' bytes without gaps.
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
#include <array>
#include <string_view>
#include <utility>

#include "checkpoint/contents.h"
#include "checkpoint/cursor.h"
#include "checkpoint/json.h"
#include "checkpoint/ranges.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shape.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace {

class HeaderVisitor final : public JsonVisitor {
 public:
  HeaderVisitor(const Source& source, std::uint64_t data_begin)
      : source_(source), data_begin_(data_begin), data_bytes_(source.size() - data_begin) {}

  void begin_object(std::uint64_t at) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader) {
      place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kTensor) begin_tensor();
    } else {
      unwanted(at, "an object");
    }
  }
  void begin_array(std::uint64_t at) override {
    if (place_ == Place::kTensor && field_ == Field::kShape) {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == Field::kOffsets) {
      place_ = Place::kOffsets;
    } else {
      unwanted(at, "a list");
    }
  }
  void end_array(std::uint64_t) override { place_ = Place::kTensor; }

  void key(std::uint64_t at, std::string key) override {
    if (place_ == Place::kTensor) {
      field_ = key == "dtype"          ? Field::kDtype
               : key == "shape"        ? Field::kShape
               : key == "data_offsets" ? Field::kOffsets
                                       : Field::kNone;
      if (field_ == Field::kNone)
        source_.refuse_at(at, "tensor {}: {} is not a field of a tensor", in_quotes(key_), in_quotes(key));
      seen_[static_cast<std::size_t>(field_)] = true;
    } else {
      if (place_ == Place::kHeader && !is_name(key))
        source_.refuse_at(at, "{} is empty or has control characters: not a tensor's name", in_quotes(key));
      (place_ == Place::kMetadata ? metadata_key_ : key_) = std::move(key);
      if (place_ == Place::kHeader) described_at_ = at;
    }
  }

  void scalar(std::uint64_t at, JsonScalar value) override {
    const auto* number = std::get_if<std::uint64_t>(&value);
    auto* text = std::get_if<std::string>(&value);
    if (place_ == Place::kMetadata && text != nullptr) {
      metadata.push_back({std::move(metadata_key_), {ValueType::kString, std::move(*text)}});
    } else if (place_ == Place::kTensor && field_ == Field::kDtype && text != nullptr) {
      set_encoding(at, *text);
    } else if (place_ == Place::kShape && number != nullptr && *number <= static_cast<std::uint64_t>(INT64_MAX)) {
      if (info_.shape.size() == kMaxAxes)
        source_.refuse_at(at, "tensor {}: more than {} axes", in_quotes(key_), kMaxAxes);
      info_.shape.push_back(static_cast<std::int64_t>(*number));
    } else if (place_ == Place::kOffsets && number != nullptr) {
      if (offsets_ == 2) source_.refuse_at(at, "tensor {}: data_offsets has more than two numbers", in_quotes(key_));
      offset_[offsets_++] = *number;
    } else {
      unwanted(at, show(value));
    }
  }

  void end_object(std::uint64_t) override {
    if (place_ == Place::kTensor) end_tensor();
    place_ = place_ == Place::kHeader ? Place::kOutside : Place::kHeader;
  }

  std::vector<StoredTensor> tensors;
  std::vector<Range> ranges;
  std::vector<MetadataEntry> metadata;

 private:
  enum class Place : std::uint8_t { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets };
  enum class Field : std::uint8_t { kDtype, kShape, kOffsets, kNone };
  static constexpr std::array<const char*, 3> kFields = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void unwanted(std::uint64_t at, std::string_view came) const {
    switch (place_) {
      case Place::kOutside: source_.refuse_at(at, "the header is {}, but an object is wanted", came);
      case Place::kHeader: source_.refuse_at(at, "{} is {}, but an object is wanted", in_quotes(key_), came);
      case Place::kMetadata:
        source_.refuse_at(at, "{}: {} is {}, but a text is wanted", kMetadataKey, in_quotes(metadata_key_), came);
      case Place::kTensor:
        source_.refuse_at(at, "tensor {}: {} is {}, but {} is wanted", in_quotes(key_),
                          kFields[static_cast<std::size_t>(field_)], came,
                          field_ == Field::kDtype ? "a text" : "a list");
      case Place::kShape:
      case Place::kOffsets: break;
    }
    source_.refuse_at(at, "tensor {}: {} has {}, but whole numbers from 0 to {} are wanted", in_quotes(key_),
                      place_ == Place::kShape ? "shape" : "data_offsets", came,
                      place_ == Place::kShape ? INT64_MAX : UINT64_MAX);
  }

  void begin_tensor() {
    info_ = {};
    info_.name = key_;
    seen_ = {};
    offsets_ = 0;
    field_ = Field::kNone;
  }

  void set_encoding(std::uint64_t at, std::string_view dtype) {
    const auto encoding = safetensors_encoding(dtype);
    if (!encoding) source_.refuse_at(at, "tensor {}: dtype {} is not known", in_quotes(key_), in_quotes(dtype));
    info_.encoding = *encoding;
  }

  void end_tensor() {
    const std::uint64_t at = described_at_;
    for (std::size_t i = 0; i < kFields.size(); ++i)
      if (!seen_[i]) source_.refuse_at(at, "tensor {} has no {}", in_quotes(key_), kFields[i]);
    if (offsets_ != 2)
      source_.refuse_at(at, "tensor {}: data_offsets has {} numbers, but two are wanted", in_quotes(key_), offsets_);
    const auto [begin, end] = std::pair{offset_[0], offset_[1]};
    const auto count = count_of(info_.shape);
    const auto bytes = count ? bytes_of(info_.encoding, *count) : std::nullopt;
    if (!bytes)
      source_.refuse_at(at, "tensor {}: no tensor of {} can have the shape {}", in_quotes(key_),
                        traits(info_.encoding).name, show(info_.shape));
    if (begin > end || end > data_bytes_)
      source_.refuse_at(at, "tensor {}: data_offsets are {} and {}, but the data have {} bytes", in_quotes(key_), begin,
                        end, data_bytes_);
    if (*bytes != end - begin)
      source_.refuse_at(at, "tensor {}: {} bytes, but {} of shape {} has {}", in_quotes(key_), end - begin,
                        traits(info_.encoding).name, show(info_.shape), *bytes);
    info_.offset = data_begin_ + begin;
    info_.bytes = *bytes;
    ranges.push_back({info_.offset, data_begin_ + end, at, info_.name});
    tensors.push_back({std::move(info_)});
  }

  const Source& source_;
  const std::uint64_t data_begin_;
  const std::uint64_t data_bytes_;
  Place place_ = Place::kOutside;
  Field field_ = Field::kNone;
  std::string key_, metadata_key_;
  std::uint64_t described_at_ = 0;
  // The tensor being read.
  TensorInfo info_;
  std::array<bool, 3> seen_ = {};
  std::array<std::uint64_t, 2> offset_ = {};
  std::size_t offsets_ = 0;
};

}  // namespace

std::optional<Encoding> safetensors_encoding(std::string_view dtype) {
  for (int i = 0; i < kEncodings; ++i) {
    const auto encoding = static_cast<Encoding>(i);
    if (traits(encoding).name == dtype && in_safetensors(encoding)) return encoding;
  }
  return {};
}

bool in_safetensors(Encoding encoding) {
  return encoding <= Encoding::kBool || (encoding >= Encoding::kC64 && encoding <= Encoding::kF4);
}

Contents read_safetensors(const Source& source) {
  Cursor cursor(source, 0, source.size());
  const auto length = cursor.number<std::uint64_t>("the header's length");
  if (length > kMaxHeaderBytes)
    source.refuse_at(0, "the header's length is {}, but at most {} is taken", length, kMaxHeaderBytes);
  cursor.want(length, "the header");
  if (!source.text(cursor.position(), length).starts_with('{'))
    source.refuse_at(cursor.position(), "the header does not begin with {{");
  HeaderVisitor visitor(source, cursor.position() + length);
  walk_json(source, cursor.position(), length, "the header", visitor);
  check_ranges(source, visitor.ranges, cursor.position() + length, source.size(), Gaps::kRefuse);
  sort_tensors(source, visitor.tensors);
  return {std::move(visitor.tensors), std::move(visitor.metadata)};
}

}  // namespace rootdk::checkpoint
