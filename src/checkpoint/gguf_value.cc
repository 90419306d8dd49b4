// Scalars and strings read at a cursor; arrays are checked, skipped, and stay in the file until they are asked for.
#include "checkpoint/gguf_value.h"

#include <algorithm>
#include <utility>

namespace rootdk::checkpoint {

namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr int kMaxArrayDepth = 4;

ValueType type_here(const Source& source, Cursor& cursor) {
  const std::uint64_t at = cursor.position();
  const auto type = cursor.number<std::uint32_t>("a value's type");
  if (type > static_cast<std::uint32_t>(ValueType::kF64)) source.refuse_at(at, "value type {} is not known", type);
  return static_cast<ValueType>(type);
}

// Bytes of a value; 0 for those that say so themselves.
std::uint64_t size_of(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kString:
    case ValueType::kArray: break;
  }
  return 0;
}

bool boolean_here(const Source& source, Cursor& cursor) {
  const std::uint64_t at = cursor.position();
  const auto byte = cursor.number<std::uint8_t>("a boolean");
  if (byte > 1) source.refuse_at(at, "a boolean is {}, but 0 or 1 is wanted", byte);
  return byte == 1;
}

struct ArrayHead {
  ValueType element;
  std::uint64_t size;
};

ArrayHead array_head(const Source& source, Cursor& cursor) {
  const ValueType element = type_here(source, cursor);
  const std::uint64_t at = cursor.position();
  const auto size = cursor.number<std::uint64_t>("an array's length");
  // An array in an array begins with type and length, a string with its length.
  const std::uint64_t smallest = element == ValueType::kArray    ? 12
                                 : element == ValueType::kString ? 8
                                                                 : size_of(element);
  if (size > cursor.left() / smallest)
    source.refuse_at(at, "an array claims {} values, but the {} bytes that follow have room for {} at most", size,
                     cursor.left(), cursor.left() / smallest);
  return {element, size};
}

void skip_elements(const Source& source, Cursor& cursor, ArrayHead head, int depth) {
  if (depth > kMaxArrayDepth) source.refuse_at(cursor.position(), "arrays are nested deeper than {}", kMaxArrayDepth);
  switch (head.element) {
    case ValueType::kArray:
      for (std::uint64_t i = 0; i < head.size; ++i)
        skip_elements(source, cursor, array_head(source, cursor), depth + 1);
      break;
    case ValueType::kString:
      for (std::uint64_t i = 0; i < head.size; ++i)
        cursor.skip(cursor.number<std::uint64_t>("a text's length"), "a text");
      break;
    case ValueType::kBool:
      for (std::uint64_t i = 0; i < head.size; ++i) boolean_here(source, cursor);
      break;
    default: cursor.skip(head.size * size_of(head.element), "an array");
  }
}

template <class T>
std::uint64_t natural(Cursor& cursor) {
  return cursor.number<T>("a value");
}
template <class T>
std::int64_t whole(Cursor& cursor) {
  return cursor.number<T>("a value");
}

MetadataValue value_of(const std::shared_ptr<const Source>& source, Cursor& cursor, ValueType type, int depth) {
  switch (type) {
    case ValueType::kU8: return {type, natural<std::uint8_t>(cursor)};
    case ValueType::kU16: return {type, natural<std::uint16_t>(cursor)};
    case ValueType::kU32: return {type, natural<std::uint32_t>(cursor)};
    case ValueType::kU64: return {type, natural<std::uint64_t>(cursor)};
    case ValueType::kI8: return {type, whole<std::int8_t>(cursor)};
    case ValueType::kI16: return {type, whole<std::int16_t>(cursor)};
    case ValueType::kI32: return {type, whole<std::int32_t>(cursor)};
    case ValueType::kI64: return {type, whole<std::int64_t>(cursor)};
    case ValueType::kF32: return {type, static_cast<double>(cursor.number<float>("a value"))};
    case ValueType::kF64: return {type, cursor.number<double>("a value")};
    case ValueType::kBool: return {type, boolean_here(*source, cursor)};
    case ValueType::kString: {
      const auto length = cursor.number<std::uint64_t>("a text's length");
      return {type, std::string(cursor.text(length, "a text"))};
    }
    case ValueType::kArray: break;
  }
  const ArrayHead head = array_head(*source, cursor);
  const std::uint64_t begin = cursor.position();
  skip_elements(*source, cursor, head, depth + 1);
  return {type, MetadataArray(source, head.element, head.size, begin)};
}

}  // namespace

Cursor gguf_cursor(const Source& source, std::uint64_t position) {
  if (source.size() <= kMaxBytes) return Cursor(source, position, source.size());
  return Cursor(source, position, kMaxBytes, "the first GiB, which must hold all but the data, ends");
}

MetadataValue gguf_value(const std::shared_ptr<const Source>& source, Cursor& cursor) {
  const ValueType type = type_here(*source, cursor);
  return value_of(source, cursor, type, 0);
}

MetadataArray::MetadataArray(std::shared_ptr<const Source> source, ValueType element_type, std::uint64_t size,
                             std::uint64_t offset)
    : source_(std::move(source)), element_type_(element_type), size_(size), offset_(offset) {}

// The file may have been changed since it was checked, so everything is checked again.
std::vector<MetadataValue> MetadataArray::values(std::uint64_t first, std::uint64_t count) const {
  if (first > size_ || count > size_ - first)
    refuse("values: {} from {} on, but the array has {}", count, first, size_);
  Cursor cursor = gguf_cursor(*source_, offset_);
  skip_elements(*source_, cursor, {element_type_, first}, 1);
  std::vector<MetadataValue> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) values.push_back(value_of(source_, cursor, element_type_, 1));
  return values;
}

std::vector<MetadataValue> MetadataArray::values() const { return values(0, size_); }

}  // namespace rootdk::checkpoint
