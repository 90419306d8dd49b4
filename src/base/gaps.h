// Which bin of a GapHistogram a distance falls into: the upper bits of the number itself.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "rootdk/stats.h"

namespace rootdk::base {

inline constexpr int kGapShift =
    23 - std::countr_zero(static_cast<unsigned>(GapHistogram::kPerOctave));  ///< exponent and 4 bits remain
inline constexpr std::int32_t kFirstGapBits = (127 + GapHistogram::kLowest) * GapHistogram::kPerOctave;

/// Negative distances (a score rounded in another order) count as 0.
inline std::int32_t gap_bin(float gap) {
  const std::int32_t bits = base::bit_cast<std::int32_t>(gap) >> kGapShift;
  return std::clamp(bits - kFirstGapBits, 0, GapHistogram::kBins - 1);
}

}  // namespace rootdk::base
