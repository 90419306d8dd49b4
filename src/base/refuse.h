// How the library says no: rootdk::Error with a message that names the argument, what came and what was wanted. What
// came may be a file's name or a tensor's, so nothing in a message steers a terminal.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/visible.h"
#include "rootdk/error.h"

namespace rootdk::base {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, visible(fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace rootdk::base
