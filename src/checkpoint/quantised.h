// GGUF's quantised blocks.
#pragma once

#include <cstddef>

#include "rootdk/checkpoint/encoding.h"

namespace rootdk::checkpoint {

inline constexpr std::size_t kLargestBlock = 256;

/// One block of `block_bytes` to `block_values` numbers, in f32 as GGUF's own software does it: (scale · quant) ±
/// minimum.
using Dequantiser = void (*)(const std::byte* block, float* out);
Dequantiser dequantiser_of(Encoding encoding);

}  // namespace rootdk::checkpoint
