#include "report/table.h"

#include <algorithm>

#include "report/text.h"

namespace rootdk::report {

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_)
      if (c < row.size()) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string cell = cell_of(c);
      const std::string pad(widths[c] - display_width(cell), ' ');
      text += "  " + (columns_[c].align == Align::kLeft ? cell + pad : pad + cell);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) { return columns_[c].title; });
  line([&](std::size_t c) {
    std::string rule;
    for (std::size_t i = 0; i < widths[c]; ++i) rule += "─";
    return rule;
  });
  for (const auto& row : rows_) line([&](std::size_t c) { return c < row.size() ? row[c] : std::string(); });
  return out;
}

}  // namespace rootdk::report
