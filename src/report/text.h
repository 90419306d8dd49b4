// Text for a terminal: how wide it is there, and where to break it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rootdk::report {

inline constexpr std::size_t kLineWidth = 80;

/// Columns that UTF-8 text takes: 0 for combining marks, 2 for wide East Asian characters and emoji, 1 for the rest. A
/// byte that is not UTF-8 counts as 1.
std::size_t display_width(std::string_view text);

/// Breaks at spaces so that lines take at most `width` columns, where words allow it; ends with a newline. `indent`
/// opens every line.
std::string wrap(std::string_view text, std::string_view indent = "", std::size_t width = kLineWidth);

}  // namespace rootdk::report
