// What the reader and the writer of safetensors agree on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rootdk/checkpoint/encoding.h"

namespace rootdk::checkpoint {

/// The format's own limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::string_view kMetadataKey = "__metadata__";

bool in_safetensors(Encoding encoding);
std::optional<Encoding> safetensors_encoding(std::string_view dtype);

}  // namespace rootdk::checkpoint
