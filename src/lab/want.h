// What the experiments ask of their options.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/refuse.h"

namespace rootdk::lab {

using base::refuse;

inline void want_between(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    refuse("{}: {}, but a whole number from {} to {} is wanted", name, value, least, most);
}

inline void want_all_between(std::string_view name, const std::vector<std::int64_t>& values, std::int64_t least,
                             std::int64_t most) {
  if (values.empty()) refuse("{}: none given, but at least one is wanted", name);
  for (const std::int64_t value : values) want_between(name, value, least, most);
}

inline void want_finite(std::string_view name, double value) {
  if (!std::isfinite(value)) refuse("{}: {}, but a finite number is wanted", name, value);
}

template <class T>
void want_some(std::string_view name, const std::vector<T>& values) {
  if (values.empty()) refuse("{}: none given, but at least one is wanted", name);
}

/// Largest d_k, number of keys and the like: beyond them a slip of the hand is likelier than a wish, and memory ends.
inline constexpr std::int64_t kMostDims = 1 << 16, kMostKeys = 1 << 20, kMostQueries = 1 << 16, kMostBatches = 1 << 16;

}  // namespace rootdk::lab
