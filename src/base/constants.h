// Numbers that kernels of the CPU and of a GPU share, each once.
#pragma once

#include <cstdint>

namespace rootdk::base {

inline constexpr float kLog2E = 1.4426950408889634f;  ///< e^x = 2^(x·log₂e): exponents are of base 2 inside kernels
inline constexpr float kLn2 = 0.6931471805599453f;

/// Farther than any two positions can be apart (sizes and offsets are validated), and far from overflow.
inline constexpr std::int64_t kFar = std::int64_t{1} << 42;

}  // namespace rootdk::base
