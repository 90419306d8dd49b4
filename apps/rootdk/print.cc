// print, on standard output.
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/refuse.h"
#include "output.h"

namespace rootdk::app {

void print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  base::refuse("standard output: {}", std::generic_category().message(errno != 0 ? errno : EIO));
}

}  // namespace rootdk::app
