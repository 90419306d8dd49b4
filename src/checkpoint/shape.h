// Shapes from files: products that cannot overflow, and the bytes a tensor must have.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "rootdk/checkpoint/encoding.h"

namespace rootdk::checkpoint {

/// More axes than any format or library has use for.
inline constexpr std::size_t kMaxAxes = 64;

/// "[2, 3]"
std::string show(std::span<const std::int64_t> shape);

/// How many numbers; nothing if the product overflows, also when it is only a 0 among the extents that hides it (so
/// that the product of any of them fits, too).
std::optional<std::int64_t> count_of(std::span<const std::int64_t> shape);

/// How many bytes they take; nothing if that overflows or they do not fill whole blocks.
std::optional<std::uint64_t> bytes_of(Encoding encoding, std::int64_t count);

}  // namespace rootdk::checkpoint
