// nlohmann's parser with a bound on depth and no key twice, and values shortened for messages.
#include "audit/json.h"

#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "base/refuse.h"

namespace rootdk::audit {

namespace {

constexpr int kDeepest = 32;

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) base::refuse("{}: nested beyond {} levels", name, kDeepest);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      base::refuse("{}: the key {} comes twice", name, in_short(value));
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
    std::string_view what = error.what();
    if (const auto at = what.find("] "); at != what.npos) what.remove_prefix(at + 2);
    base::refuse("{}: {}", name, what.substr(0, 200));
  }
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const Json value(std::string(text.substr(0, kLongest)));
  std::string out = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kLongest) out.insert(out.size() - 1, "…");
  return out;
}

std::string in_short(const Json& value) {
  if (const auto* text = value.get_ptr<const std::string*>()) return in_quotes(*text);
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.dump();
}

}  // namespace rootdk::audit
