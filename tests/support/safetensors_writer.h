// A safetensors file from a header that is taken as it is: for files that rootdk's own writer would not write.
#pragma once

#include <string>
#include <string_view>

#include "support/files.h"

namespace rootdk::test {

inline std::string safetensors(std::string_view header, std::string_view data = {}) {
  return Bytes().number(std::uint64_t{header.size()}).raw(header).raw(data).text();
}

}  // namespace rootdk::test
