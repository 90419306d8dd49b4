// A SAX handler that builds the tree and knows its path; depth is bounded, and no key comes twice.
#include "report/json_parse.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/refuse.h"

namespace rootdk::report {

namespace {

using nlohmann::json;

/// Foreign text that a message can hold.
std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string out;
  for (const char c : text.substr(0, kMost)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kMost ? out + "..." : out;
}

/// Builds the tree from the parser's events. (The library's own builder looks at all elements before each one that it
/// adds, once it is given limits to watch.)
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in text

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = std::move(name);
    if (level.tree->contains(level.key)) base::refuse("{}: there twice", path());
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;  // of an out_of_range exception
    if (error.id == kNumberOverflow)
      base::refuse("{}: a number at byte {} is larger than a double holds", path(), position);
    base::refuse("{}: what is at byte {} is not JSON", path(), position);
  }

 private:
  struct Level {
    json* tree;  // stays where it is: the one it is in does not grow meanwhile
    std::string key;
  };

  bool add(json value) {
    place(std::move(value));
    return true;
  }

  bool open(json value) {
    if (levels_.size() == kDeepest) base::refuse("{}: nested more than {} deep", path(), kDeepest);
    json* tree = place(std::move(value));
    levels_.push_back({tree, {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  json* place(json value) {
    if (levels_.empty()) return &(root_ = std::move(value));
    json& parent = *levels_.back().tree;
    if (parent.size() == kLongest) base::refuse("{}: more than {} elements", path(levels_.size() - 1), kLongest);
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    return &(parent[levels_.back().key] = std::move(value));
  }

  std::string path() const { return path(levels_.size()); }

  std::string path(std::size_t levels) const {
    std::string out;
    for (std::size_t i = 0; i < levels; ++i) {
      const Level& level = levels_[i];
      const bool is_array = level.tree->is_array();
      // The element that is open, or the next one to come.
      const bool open = i + 1 < levels_.size();
      if (is_array) out += fmt::format("[{}]", level.tree->size() - (open ? 1 : 0));
      else if (!level.key.empty()) out += fmt::format("{}{}", out.empty() ? "" : ".", printable(level.key));
    }
    return out.empty() ? "the document" : out;
  }

  json root_;
  std::vector<Level> levels_;
};

}  // namespace

json parse_json(std::string_view text) {
  TreeBuilder builder;
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string in_short(const json& value) {
  switch (value.type()) {
    case json::value_t::array: return "an array";
    case json::value_t::object: return "an object";
    case json::value_t::string: return fmt::format("\"{}\"", printable(value.get_ref<const std::string&>()));
    default: return value.dump();
  }
}

}  // namespace rootdk::report
