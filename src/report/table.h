// Tables for a terminal: columns aligned by what characters take there, not by bytes; what has no room beside goes
// below.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "report/text.h"

namespace rootdk::report {

class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  /// Where a column goes when a table is too wide.
  enum class Place : std::uint8_t {
    kValue,         ///< into the first block that has room
    kKey,           ///< into every block: it says what the row is. Keys come first
    kWithPrevious,  ///< into the same block as the value before it
    kLater,         ///< as a value, after those that are not later
  };
  struct Column {
    std::string title;
    Align align = Align::kRight;
    Place place = Place::kValue;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// As many cells as columns; missing ones are empty. A row may leave out the first of its keys where they are those
  /// of the row above.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// An empty line between groups of rows.
  void gap() { rows_.emplace_back(); }

  /// Titles, a rule under them, the rows; two spaces before each line and between columns. Where that takes more than
  /// `width` columns, in blocks: as many values as fit, then the others. In each block keys stand beside the values or,
  /// where that makes it a quarter shorter, on a line above them.
  std::string text(std::size_t width = Layout::kUnlimited) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace rootdk::report
