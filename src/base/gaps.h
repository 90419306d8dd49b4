// Which bin of a GapHistogram a distance falls into: the upper bits of the number itself.
#pragma once

#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "base/on_both.h"
#include "rootdk/stats.h"

namespace rootdk::base {

inline constexpr int kGapShift =
    23 - std::countr_zero(static_cast<unsigned>(GapHistogram::kPerOctave));  ///< exponent and 4 bits remain
inline constexpr std::int32_t kFirstGapBits = (127 + GapHistogram::kLowest) * GapHistogram::kPerOctave;

/// Negative distances (a score rounded in another order) count as 0.
ROOTDK_ON_BOTH inline std::int32_t gap_bin(float gap) {
#ifdef __CUDA_ARCH__
  const std::int32_t bits = __float_as_int(gap);
#else
  const auto bits = base::bit_cast<std::int32_t>(gap);
#endif
  return smaller(larger((bits >> kGapShift) - kFirstGapBits, 0), GapHistogram::kBins - 1);
}

}  // namespace rootdk::base
