// How this component says no: rootdk::Error with a message that names the argument, what came and what was wanted.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "rootdk/error.h"

namespace rootdk::theory {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

inline void want_at_least_0(const char* name, double value) {
  if (!(value >= 0 && std::isfinite(value))) refuse("{}: {}, but a finite number of at least 0 is wanted", name, value);
}

inline void want_at_least_1(const char* name, std::int64_t value) {
  if (value < 1) refuse("{}: {}, but at least 1 is wanted", name, value);
}

}  // namespace rootdk::theory
