// The part of a scale that depends on the row, which sharpens softmax for longer contexts: the rules of Scale::Length,
// once for host and device.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/on_both.h"
#include "base/visibility.h"
#include "rootdk/scale.h"

namespace rootdk::base {

inline constexpr double kEntropyInvariantKeys = 512;  ///< the length at which that rule multiplies by 1
inline constexpr double kLlama4Step = 8192, kLlama4Strength = 0.1;

// A row is a ScaleRow or the run of its keys.
ROOTDK_ON_BOTH inline std::int64_t keys_of(const ScaleRow& row) { return row.keys; }
ROOTDK_ON_BOTH inline std::int64_t keys_of(const KeyRange& row) { return row.end - row.begin; }
ROOTDK_ON_BOTH inline std::int64_t place_of(const ScaleRow& row) { return row.position; }
ROOTDK_ON_BOTH inline std::int64_t place_of(const KeyRange& row) { return row.position - row.origin; }

/// ln n; a row that sees nothing counts as seeing one key.
template <class Row>
ROOTDK_ON_BOTH inline double log_keys(const Row& row) {
  return std::log(static_cast<double>(larger(keys_of(row), std::int64_t{1})));
}

/// `gain` and `offset` are functions: SSMax's numbers, asked for only where the rule is that one.
template <class Row, class Gain, class Offset>
ROOTDK_ON_BOTH inline double length_factor(Scale::Length length, const Row& row, const Gain& gain,
                                           const Offset& offset) {
  switch (length) {
    case Scale::Length::kNone: return 1;
    case Scale::Length::kLogN: return gain() * log_keys(row) + offset();
    case Scale::Length::kEntropyInvariant: return log_keys(row) / std::log(kEntropyInvariantKeys);
    case Scale::Length::kLlama4: {
      const auto place = static_cast<double>(larger(place_of(row), std::int64_t{0}) + 1);
      return 1 + kLlama4Strength * std::log(1 + std::floor(place / kLlama4Step));
    }
  }
  return 1;
}

}  // namespace rootdk::base
