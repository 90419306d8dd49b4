// Multiplication with a look at overflow, and how a shape is shown in a message.
#include "checkpoint/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

namespace rootdk::checkpoint {

std::string show(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::optional<std::int64_t> count_of(std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return {};
    if (extent == 0) {
      empty = true;
    } else {
      if (product > std::numeric_limits<std::int64_t>::max() / extent) return {};
      product *= extent;
    }
  }
  return empty ? 0 : product;
}

std::optional<std::uint64_t> bytes_of(Encoding encoding, std::int64_t count) {
  const EncodingTraits& t = traits(encoding);
  if (count % t.block_values != 0) return {};
  const std::int64_t blocks = count / t.block_values;
  if (blocks > std::numeric_limits<std::int64_t>::max() / t.block_bytes) return {};
  return static_cast<std::uint64_t>(blocks * t.block_bytes);
}

}  // namespace rootdk::checkpoint
