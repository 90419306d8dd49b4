// Where a terminal says how wide it is: COLUMNS, and TIOCGWINSZ.
#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace rootdk::app {

namespace {

constexpr std::size_t kMost = 10'000;

std::optional<std::size_t> columns_wished() {
  const char* const text = std::getenv("COLUMNS");
  if (text == nullptr) return {};
  const std::string_view digits = text;
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
  if (error != std::errc{} || end != digits.data() + digits.size() || columns == 0 || columns > kMost) return {};
  return columns;
}

}  // namespace

std::optional<std::size_t> columns_of(int descriptor) {
  winsize size = {};
  if (isatty(descriptor) != 1 || ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return size.ws_col;
}

report::Layout output_layout(report::Detail detail) {
  std::optional<std::size_t> columns = columns_wished();
  if (!columns) columns = columns_of(STDOUT_FILENO);
  if (columns) return report::Layout::of_terminal(*columns, detail);
  report::Layout layout;
  layout.detail = detail;
  return layout;
}

}  // namespace rootdk::app
