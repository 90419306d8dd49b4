// A writer and a reader with the same member functions, so that each struct lists its fields once, for both
// (stats_fields.h).
//
// Doubles come back bit for bit; NaN is null, infinities are "inf" and "-inf". Both sides refuse what the format does
// not allow, and say where it is.
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/refuse.h"
#include "report/json_place.h"
#include "report/json_parse.h"

namespace rootdk::report {

/// Small enough that sums of a few that were read do not overflow.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 60;

template <class Count>
constexpr const char* count_wanted() {
  return std::is_integral_v<Count> ? "a whole number from 0 to 2^60" : "a finite number of at least 0";
}

/// Of whole numbers, both ends in it.
struct Range {
  std::int64_t low, high;
};

class Writer {
 public:
  static constexpr bool kReads = false;

  explicit Writer(nlohmann::ordered_json& node, Place place = {}) : node_(node), place_(place) {
    node_ = nlohmann::ordered_json::object();
  }

  void number(std::string_view name, double value) { node_[std::string(name)] = encoded(value); }
  void number(std::string_view name, float value) { number(name, static_cast<double>(value)); }

  /// A sum of squares or the like: not below 0.
  void size(std::string_view name, double value) {
    if (value < 0) base::refuse("{}: {}, but at least 0 is wanted", at(name).path(), value);
    number(name, value);
  }

  template <class Count>
  void count(std::string_view name, Count value) {
    node_[std::string(name)] = checked(value, at(name));
  }

  void whole(std::string_view name, std::int64_t value, Range range) {
    if (value < range.low || value > range.high)
      base::refuse("{}: {}, but a whole number from {} to {} is wanted", at(name).path(), value, range.low, range.high);
    node_[std::string(name)] = value;
  }

  template <class Enum, std::size_t kNames>
  void choice(std::string_view name, Enum value, const char* const (&names)[kNames]) {
    node_[std::string(name)] = names[static_cast<std::size_t>(value)];
  }

  /// What always has this value.
  template <class Value>
  void constant(std::string_view name, Value value) {
    node_[std::string(name)] = value;
  }

  /// An object whose fields `visit(writer, value)` lists.
  template <class T, class Visit>
  void object(std::string_view name, const T& value, const Visit& visit) {
    Writer writer(node_[std::string(name)], at(name));
    visit(writer, value);
  }

  /// An array of objects.
  template <class T, class Visit>
  void objects(std::string_view name, const std::vector<T>& values, std::size_t most, const Visit& visit) {
    if (values.size() > most)
      base::refuse("{}: {} elements, but at most {} are wanted", at(name).path(), values.size(), most);
    const Place array = at(name);
    auto& nodes = node_[std::string(name)] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < values.size(); ++i) {
      Writer writer(nodes.emplace_back(), Place{&array, {}, static_cast<std::ptrdiff_t>(i)});
      visit(writer, values[i]);
    }
  }

  /// `bins` counts, as pairs [bin, count] of those that are not 0.
  template <class Count>
  void sparse(std::string_view name, const std::vector<Count>& counts, std::size_t bins) {
    const Place array = at(name);
    if (counts.size() != bins)
      base::refuse("{}: {} bins, but none or {} are wanted", array.path(), counts.size(), bins);
    auto& pairs = node_[std::string(name)] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < counts.size(); ++i)
      if (counts[i] != 0) pairs.push_back({i, checked(counts[i], Place{&array, {}, static_cast<std::ptrdiff_t>(i)})});
  }

  nlohmann::ordered_json& node() { return node_; }
  const Place& place() const { return place_; }

  static nlohmann::ordered_json encoded(double value) {
    if (std::isnan(value)) return nullptr;
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }

 private:
  Place at(std::string_view name) const { return {&place_, name}; }

  template <class Count>
  static Count checked(Count value, const Place& place) {
    bool fits = value >= 0;
    if constexpr (std::is_integral_v<Count>) fits = fits && value <= kMostCounted;
    else fits = fits && std::isfinite(value);
    if (!fits) base::refuse("{}: {}, but {} is wanted", place.path(), value, count_wanted<Count>());
    return value;
  }

  nlohmann::ordered_json& node_;
  Place place_;
};

class Reader {
 public:
  static constexpr bool kReads = true;

  /// `node` is to be an object.
  explicit Reader(const nlohmann::json& node, Place place = {});

  void number(std::string_view name, double& value) const { value = decoded(name); }
  void number(std::string_view name, float& value) const;
  void size(std::string_view name, double& value) const;
  void whole(std::string_view name, std::int64_t& value, Range range) const {
    value = whole_of(member(name), at(name), range);
  }

  template <class Count>
  void count(std::string_view name, Count& value) const {
    value = count_of<Count>(member(name), at(name));
  }

  template <class Enum, std::size_t kNames>
  void choice(std::string_view name, Enum& value, const char* const (&names)[kNames]) const {
    const nlohmann::json& node = member(name);
    const auto* text =
        node.get_ptr<const std::string*>();  // comparing with the node itself would allocate under noexcept
    for (std::size_t i = 0; i < kNames && text; ++i)
      if (*text == names[i]) return static_cast<void>(value = static_cast<Enum>(i));
    std::string known;
    for (const char* one : names) known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", one);
    base::refuse("{}: {}, but one of {} is wanted", at(name).path(), in_short(node), known);
  }

  template <class Value>
  void constant(std::string_view name, Value value) const {
    const nlohmann::json& node = member(name);
    const nlohmann::json wanted = value;
    if (node != wanted) base::refuse("{}: {}, but {} is wanted", at(name).path(), in_short(node), in_short(wanted));
  }

  template <class T, class Visit>
  void object(std::string_view name, T& value, const Visit& visit) const {
    Reader reader(member(name), at(name));
    visit(reader, value);
  }

  template <class T, class Visit>
  void objects(std::string_view name, std::vector<T>& values, std::size_t most, const Visit& visit) const {
    const nlohmann::json& nodes = array(name, most);
    const Place place = at(name);
    values.clear();
    values.reserve(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Reader reader(nodes[i], Place{&place, {}, static_cast<std::ptrdiff_t>(i)});
      visit(reader, values.emplace_back());
    }
  }

  template <class Count>
  void sparse(std::string_view name, std::vector<Count>& counts, std::size_t bins) const {
    const nlohmann::json& pairs = array(name, bins);
    const Place place = at(name);
    counts.assign(bins, Count{0});
    std::int64_t next = 0;  // bins ascend
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Place element{&place, {}, static_cast<std::ptrdiff_t>(i)}, first{&element, {}, 0}, second{&element, {}, 1};
      if (!pairs[i].is_array() || pairs[i].size() != 2)
        base::refuse("{}: {}, but [bin, count] is wanted", element.path(), in_short(pairs[i]));
      const std::int64_t bin = whole_of(pairs[i][0], first, {next, static_cast<std::int64_t>(bins) - 1});
      counts[static_cast<std::size_t>(bin)] = count_of<Count>(pairs[i][1], second);
      next = bin + 1;
    }
  }

  bool has(std::string_view name) const { return node_.contains(name); }
  const Place& place() const { return place_; }

 private:
  Place at(std::string_view name) const { return {&place_, name}; }
  const nlohmann::json& member(std::string_view name) const;
  const nlohmann::json& array(std::string_view name, std::size_t most) const;
  double decoded(std::string_view name) const;
  static bool is_whole(const nlohmann::json& node, Range range);
  static std::int64_t whole_of(const nlohmann::json& node, const Place& place, Range range);

  template <class Count>
  static Count count_of(const nlohmann::json& node, const Place& place) {
    if constexpr (std::is_integral_v<Count>) {
      if (is_whole(node, {0, kMostCounted})) return node.get<Count>();
    } else {
      if (node.is_number() && node.get<double>() >= 0) return node.get<Count>();  // the parser lets no infinity through
    }
    base::refuse("{}: {}, but {} is wanted", place.path(), in_short(node), count_wanted<Count>());
  }

  const nlohmann::json& node_;
  Place place_;
};

}  // namespace rootdk::report
