// Full statistics of rows of 32 k to a million keys on a GPU, against formulas in double.
#pragma once

#include <cstdint>
#include <string>

namespace rootdk::test {

/// The first so many problems are the Hopper kernel's, then come the plain and the mma kernel's.
inline constexpr int kLongOnHopper = 54, kLongOnPlain = 18, kLongOnMma = 18;

/// What is wrong in problem `number`, in words; empty if nothing is.
std::string long_statistics(std::uint64_t number);

}  // namespace rootdk::test
