// What goes wrong, and how it is said: one exception type with a code. The message names the argument, what came and
// what was wanted. Nothing has been written to any output when one is thrown.
#pragma once

#include <stdexcept>
#include <string>

#include "rootdk/export.h"

namespace rootdk {

enum class ErrorCode : int {
  kInvalidArgument = 1,  ///< an argument is wrong on its own or does not fit the others
  kOutOfMemory = 2,      ///< memory could not be had, or would not suffice for what was asked
  kInternal = 3,         ///< a bug in rootdk; please report it
  kRankFailed = 4,       ///< another rank died, stalled or raised (rootdk/distributed.h)
};

class ROOTDK_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace rootdk
