// What this component asks of its numbers.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/refuse.h"

namespace rootdk::theory {

using base::refuse;

inline void want_at_least_0(const char* name, double value) {
  if (!(value >= 0 && std::isfinite(value))) refuse("{}: {}, but a finite number of at least 0 is wanted", name, value);
}

inline void want_at_least_1(const char* name, std::int64_t value) {
  if (value < 1) refuse("{}: {}, but at least 1 is wanted", name, value);
}

}  // namespace rootdk::theory
