// Three sources turned into JSON and searched by dotted paths; a setting may be a list with a value for each layer.
#include "audit/settings.h"

#include <cmath>

#include "base/read_number.h"
#include "base/refuse.h"

namespace rootdk::audit {

using base::refuse;
using checkpoint::MetadataEntry;
using checkpoint::MetadataValue;

namespace {

constexpr std::uint64_t kMostElements = 4096;  // of an array that can be a number for each layer
constexpr std::int64_t kMostWhole = std::int64_t{1} << 31;

Json json_of(const MetadataValue& value) {
  if (const auto* text = value.text()) return *text;
  if (const auto flag = value.boolean()) return *flag;
  if (const auto whole = value.integer()) return *whole;
  if (const auto number = value.number()) return *number;
  const auto* array = value.array();
  if (array == nullptr || array->size() > kMostElements) return nullptr;
  Json out = Json::array();
  for (const MetadataValue& element : array->values())
    out.push_back(element.array() != nullptr ? Json(nullptr) : json_of(element));
  return out;
}

// rootdk's own training writes numbers as text.
Json number_or_text(const std::string& text) {
  if (const auto whole = base::read_number<std::int64_t>(text)) return *whole;
  if (const auto number = base::read_number<double>(text)) return *number;
  return text;
}

const Json* member(const Json& node, std::string_view key) {
  if (!node.is_object()) return nullptr;
  const auto found = node.find(std::string(key));
  return found == node.end() || found->is_null() ? nullptr : &*found;
}

const Json* descend(const Json& from, std::string_view path) {
  const Json* node = &from;
  while (node != nullptr) {
    const std::size_t point = path.find('.');
    node = member(*node, path.substr(0, point));
    if (point == path.npos) return node;
    path.remove_prefix(point + 1);
  }
  return nullptr;
}

}  // namespace

Settings::Settings(const checkpoint::Checkpoint& checkpoint) {
  is_gguf_ = checkpoint.format() == checkpoint::Format::kGguf;
  if (is_gguf_) {
    is_flat_ = true;
    name_ = "the metadata";
    if (const MetadataValue* value = checkpoint.find_metadata("general.architecture");
        value != nullptr && value->text() != nullptr)
      model_type_ = *value->text();
    const std::string prefix = model_type_ + ".";
    for (const MetadataEntry& entry : checkpoint.metadata()) {
      if (!entry.key.starts_with(prefix) && !entry.key.starts_with("general.")) continue;  // vocabularies and the like
      tree_[entry.key.starts_with(prefix) ? entry.key.substr(prefix.size()) : entry.key] = json_of(entry.value);
    }
    return;
  }
  if (checkpoint.find_metadata("rootdk.train") != nullptr) {
    is_flat_ = true;
    name_ = "the metadata";
    for (const MetadataEntry& entry : checkpoint.metadata())
      if (const std::string* text = entry.value.text())
        tree_[entry.key] = entry.key == "scale" ? Json(*text) : number_or_text(*text);
  } else if (const auto config = checkpoint.config()) {
    tree_ = parse_json(*config, name_);
    if (!tree_.is_object()) refuse("{}: {}, but an object is wanted", name_, in_short(tree_));
  }
  if (const Json* type = find("model_type"))
    if (const auto* text = type->get_ptr<const std::string*>()) model_type_ = *text;
}

const Json* Settings::find(std::string_view path) const {
  if (is_flat_) return member(tree_, path);
  if (const Json* found = descend(tree_, path)) return found;
  const Json* text = member(tree_, "text_config");
  return text != nullptr ? descend(*text, path) : nullptr;
}

std::optional<double> Settings::number(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths) {
    const Json* found = find(path);
    if (found == nullptr) continue;
    if (!found->is_number() || !std::isfinite(found->get<double>()))
      refuse("{}: {} is {}, but a number is wanted", name_, path, in_short(*found));
    return found->get<double>();
  }
  return {};
}

std::optional<std::string> Settings::text(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths) {
    const Json* found = find(path);
    if (found == nullptr) continue;
    const auto* text = found->get_ptr<const std::string*>();
    if (text == nullptr) refuse("{}: {} is {}, but text is wanted", name_, path, in_short(*found));
    return *text;
  }
  return {};
}

std::optional<bool> Settings::boolean(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths) {
    const Json* found = find(path);
    if (found == nullptr) continue;
    if (!found->is_boolean()) refuse("{}: {} is {}, but true or false is wanted", name_, path, in_short(*found));
    return found->get<bool>();
  }
  return {};
}

std::optional<std::int64_t> Settings::whole(const std::vector<std::string>& paths, std::int64_t least,
                                            std::int64_t layer) const {
  for (const std::string& path : paths) {
    const Json* found = find(path);
    if (found == nullptr) continue;
    if (found->is_array()) {
      if (layer >= static_cast<std::int64_t>(found->size()))
        refuse("{}: {} has {} elements, but one for layer {} is wanted", name_, path, found->size(), layer);
      found = &(*found)[static_cast<std::size_t>(layer)];
    }
    const bool is_whole =
        found->is_number_integer() &&
        (!found->is_number_unsigned() || found->get<std::uint64_t>() <= static_cast<std::uint64_t>(kMostWhole));
    if (!is_whole || found->get<std::int64_t>() < least || found->get<std::int64_t>() > kMostWhole)
      refuse("{}: {} is {}, but a whole number from {} to 2^31 is wanted", name_, path, in_short(*found), least);
    return found->get<std::int64_t>();
  }
  return {};
}

}  // namespace rootdk::audit
