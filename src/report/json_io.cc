// The reading side: each member by name and type, with the place of what is wrong.
#include "report/json_io.h"

namespace rootdk::report {

using nlohmann::json;

Reader::Reader(const json& node, Place place) : node_(node), place_(place) {
  if (!node_.is_object()) base::refuse("{}: {}, but an object is wanted", place_.path(), in_short(node_));
}

const json& Reader::member(std::string_view name) const {
  const auto found = node_.find(name);
  if (found == node_.end()) base::refuse("{}: missing", at(name).path());
  return *found;
}

const json& Reader::array(std::string_view name, std::size_t most) const {
  const json& node = member(name);
  if (!node.is_array()) base::refuse("{}: {}, but an array is wanted", at(name).path(), in_short(node));
  if (node.size() > most)
    base::refuse("{}: {} elements, but at most {} are wanted", at(name).path(), node.size(), most);
  return node;
}

double Reader::decoded(std::string_view name) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const json& node = member(name);
  if (node.is_number()) return node.get<double>();
  if (node.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (node.is_string()) {  // not compared with a literal: the library would make a node of that where it must not throw
    const auto& text = node.get_ref<const std::string&>();
    if (text == "inf") return kInfinity;
    if (text == "-inf") return -kInfinity;
  }
  base::refuse("{}: {}, but a number, null (not a number), \"inf\" or \"-inf\" is wanted", at(name).path(),
               in_short(node));
}

void Reader::number(std::string_view name, float& value) const {
  const double wide = decoded(name);
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::isfinite(wide) && std::fabs(wide) > kMost)
    base::refuse("{}: {}, but a number of at most {} is wanted", at(name).path(), wide, kMost);
  value = static_cast<float>(wide);
}

void Reader::size(std::string_view name, double& value) const {
  value = decoded(name);
  if (value < 0) base::refuse("{}: {}, but at least 0 is wanted", at(name).path(), value);
}

bool Reader::is_whole(const json& node, Range range) {
  if (!node.is_number_integer()) return false;
  if (node.is_number_unsigned() && node.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    return false;
  const auto value = node.get<std::int64_t>();
  return value >= range.low && value <= range.high;
}

std::int64_t Reader::whole_of(const json& node, const Place& place, Range range) {
  if (!is_whole(node, range))
    base::refuse("{}: {}, but a whole number from {} to {} is wanted", place.path(), in_short(node), range.low,
                 range.high);
  return node.get<std::int64_t>();
}

}  // namespace rootdk::report
