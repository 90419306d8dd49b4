// How an argument is refused: an Error whose message names it, says what came and what was wanted.
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
