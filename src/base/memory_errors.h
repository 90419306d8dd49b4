// Running out of memory, said as every other error is.
#pragma once

#include <new>
#include <stdexcept>

#include "rootdk/error.h"

namespace rootdk::base {

/// run(), with memory that could not be had turned into an Error.
template <class Run>
auto with_memory_errors(const Run& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::length_error&) {  // more than any vector can hold
    throw Error(ErrorCode::kOutOfMemory, "out of memory");
  }
}

}  // namespace rootdk::base
