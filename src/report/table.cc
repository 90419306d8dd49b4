// Widths from contents; what is too wide is continued in blocks below, or goes under a line of its keys.
#include "report/table.h"

#include <algorithm>
#include <optional>

namespace rootdk::report {

namespace {

using Places = std::vector<std::size_t>;  // of columns
using Row = std::vector<std::string>;

constexpr const char* kGap = "  ";  // before every column
constexpr std::size_t kGapWidth = 2;

/// A table and its two ways of being narrow.
class Setting {
 public:
  Setting(const std::vector<Table::Column>& columns, const std::vector<Row>& rows) : columns_(columns), rows_(rows) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths_.push_back(display_width(columns[c].title));
      for (const Row& row : rows) widths_[c] = std::max(widths_[c], display_width(cell(row, c)));
    }
    std::vector<Places> later, *last = &groups_;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Table::Place place = columns[c].place;
      if (place == Table::Place::kKey) {
        keys_.push_back(c);
        continue;
      }
      values_.push_back(c);
      if (place != Table::Place::kWithPrevious) {
        last = place == Table::Place::kLater ? &later : &groups_;
        last->emplace_back();
      }
      last->back().push_back(c);
    }
    groups_.insert(groups_.end(), later.begin(), later.end());
  }

  bool fits(std::size_t width) const { return wide(keys_) + wide(values_) <= width; }

  /// Keys beside values; nothing, if that is too wide even for one value.
  std::optional<std::string> beside(std::size_t width) const {
    const std::size_t taken = wide(keys_);
    for (const Places& group : groups_)
      if (taken + wide(group) > width) return {};
    std::string out;
    for (const Places& values : blocks(width - taken)) {
      Places shown = keys_;
      shown.insert(shown.end(), values.begin(), values.end());
      out += (out.empty() ? "" : "\n") + line(titles(), shown) + rule(shown);
      for (const Row& row : rows_)
        if (belongs(row, values)) out += line(row, shown);
    }
    return out;
  }

  /// Keys on a line above the values.
  std::string above(std::size_t width) const {
    std::string out;
    for (const Places& values : blocks(width - kGapWidth)) {
      out +=
          (out.empty() ? "" : "\n") + key_line(titles(), width) + kGap + line(titles(), values) + kGap + rule(values);
      Row known(columns_.size());
      for (const Row& row : rows_) {
        bool same = true;
        for (const std::size_t c : keys_) {
          same = same && cell(row, c).empty();
          if (!same) known[c] = cell(row, c);
        }
        if (row.empty() || !belongs(row, values)) continue;
        out += key_line(known, width);
        if (const std::string text = line(row, values); text != "\n") out += kGap + text;
      }
    }
    return out;
  }

 private:
  static std::string cell(const Row& row, std::size_t c) { return c < row.size() ? row[c] : std::string(); }

  Row titles() const {
    Row out;
    for (const Table::Column& column : columns_) out.push_back(column.title);
    return out;
  }

  std::size_t wide(const Places& shown) const {
    std::size_t out = 0;
    for (const std::size_t c : shown) out += kGapWidth + widths_[c];
    return out;
  }

  /// Values in as few blocks as can be, without a change of order but for those that come later.
  std::vector<Places> blocks(std::size_t width) const {
    std::vector<Places> out;
    for (const Places& group : groups_) {
      if (out.empty() || wide(out.back()) + wide(group) > width) out.emplace_back();
      out.back().insert(out.back().end(), group.begin(), group.end());
    }
    for (Places& block : out) std::sort(block.begin(), block.end());
    if (out.empty()) out.emplace_back();
    return out;
  }

  /// A row whose only values are in other blocks says nothing in this one.
  bool belongs(const Row& row, const Places& values) const {
    const auto has = [&](std::size_t c) { return !cell(row, c).empty(); };
    return std::any_of(values.begin(), values.end(), has) || std::none_of(values_.begin(), values_.end(), has);
  }

  std::string line(const Row& row, const Places& shown) const {
    std::string out;
    for (const std::size_t c : shown) {
      const std::string text = cell(row, c), pad(widths_[c] - display_width(text), ' ');
      out += kGap + (columns_[c].align == Table::Align::kLeft ? text + pad : pad + text);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  std::string rule(const Places& shown) const {
    Row out(columns_.size());
    for (const std::size_t c : shown)
      for (std::size_t i = 0; i < widths_[c]; ++i) out[c] += "─";
    return line(out, shown);
  }

  std::string key_line(const Row& row, std::size_t width) const {
    std::string out;
    for (const std::size_t c : keys_)
      if (const std::string text = cell(row, c); !text.empty()) out += (out.empty() ? "" : kGap) + text;
    if (out.empty()) return out;
    return kGapWidth + display_width(out) <= width ? kGap + out + "\n" : wrap(out, kGap, width);
  }

  const std::vector<Table::Column>& columns_;
  const std::vector<Row>& rows_;
  std::vector<std::size_t> widths_;
  Places keys_, values_;
  std::vector<Places> groups_;  ///< values that stay together, in the order in which they are placed
};

}  // namespace

std::string Table::text(std::size_t width) const {
  const Setting setting(columns_, rows_);
  const std::optional<std::string> beside = setting.beside(width);
  if (setting.fits(width)) return *beside;
  const std::string above = setting.above(width);
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  return beside && 3 * lines(*beside) <= 4 * lines(above) ? *beside : above;  // beside is easier to read
}

}  // namespace rootdk::report
