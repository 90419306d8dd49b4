// Which probabilities dropout keeps. Four neighbouring keys of one query share a Philox call:
// counter = (key / 4, query, head, batch), key = seed; key j keeps its probability iff word j % 4 is below the
// threshold.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "rootdk/problem.h"

namespace rootdk::base {

/// Keep iff the random word is below this; (1 − p)·2³² rounded down, computed in double from the f32 p.
inline std::uint32_t keep_threshold(const Dropout& dropout) {
  const double keep = (1.0 - static_cast<double>(dropout.p)) * 4294967296.0;
  return keep >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<std::uint32_t>(keep);
}

/// What a kept probability is multiplied by.
inline double keep_gain(const Dropout& dropout) { return 1.0 / (1.0 - static_cast<double>(dropout.p)); }

ROOTDK_ON_BOTH inline PhiloxKey philox_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

/// The random word of a pair.
ROOTDK_ON_BOTH inline std::uint32_t dropout_word(const PhiloxKey& seed, std::int64_t batch, std::int64_t head,
                                                 std::int64_t query, std::int64_t key) {
  std::uint32_t x[4] = {static_cast<std::uint32_t>(key / 4), static_cast<std::uint32_t>(query),
                        static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(batch)};
  philox(seed, x);
  const int word = static_cast<int>(key % 4);
  return word == 0 ? x[0] : word == 1 ? x[1] : word == 2 ? x[2] : x[3];  // registers have no index
}

inline bool keeps(const Dropout& dropout, std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) {
  return dropout_word(philox_key(dropout.seed), batch, head, query, key) < keep_threshold(dropout);
}

}  // namespace rootdk::base
