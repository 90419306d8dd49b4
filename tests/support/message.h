// The message of the refusal that a call ends in.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "rootdk/error.h"

namespace rootdk::test {

template <class Call>
std::string message_of(const Call& call, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace rootdk::test
