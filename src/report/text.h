// Text for a terminal: how wide it is there, and where to break it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
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

/// Text that wrap() keeps on one line, with every space it has: the name of a file.
std::string unbroken(std::string_view text);

/// `text` in lines that begin at `column`, the first of them behind `label`, or under it where it reaches that far.
/// Where less than half of `width` would be left, `column` gives way to a small indent.
std::string hanging(std::string_view label, std::size_t column, std::string_view text, std::size_t width = kLineWidth);

/// The beginning of text that takes at most `width` columns, the last of them "…" if something was cut.
std::string cut(std::string_view text, std::size_t width);

/// How much a terminal shows.
enum class Detail : std::uint8_t {
  kAll,
  kShort,  ///< for one chapter among others
};

/// How text is laid out. The default is for files and pipes: rows of tables are whole, for those who search them.
struct Layout {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kFewest = 40, kMostProse = 100;

  /// Columns of a line of sentences: beyond kMostProse they are hard to read, however wide a terminal is.
  std::size_t prose = kLineWidth;
  /// What no line may be wider than, unless it is a single word.
  std::size_t columns = kUnlimited;
  Detail detail = Detail::kAll;

  /// For a terminal of that width; one of fewer than kFewest columns has to break lines itself.
  static Layout of_terminal(std::size_t columns, Detail detail = Detail::kAll);

  std::string wrap(std::string_view text, std::string_view indent = "") const {
    return report::wrap(text, indent, prose);
  }
  std::string hanging(std::string_view label, std::size_t column, std::string_view text) const {
    return report::hanging(label, column, text, prose);
  }
};

}  // namespace rootdk::report
