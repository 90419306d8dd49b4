// How the library says no: rootdk::Error with a message that names the argument, what came and what was wanted.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "rootdk/error.h"

namespace rootdk::base {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace rootdk::base
