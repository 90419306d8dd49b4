// What the options of training must satisfy, checked where they come in.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/refuse.h"

namespace rootdk::lab {

inline void check_between(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) base::refuse("{}: {}, but {} to {} is wanted", name, value, least, most);
}

inline void check_positive(std::string_view name, double value) {
  if (!(value > 0 && std::isfinite(value))) base::refuse("{}: {}, but a finite positive number is wanted", name, value);
}

inline void check_share(std::string_view name, double value) {
  if (!(value >= 0 && value <= 1)) base::refuse("{}: {}, but 0 to 1 is wanted", name, value);
}

}  // namespace rootdk::lab
