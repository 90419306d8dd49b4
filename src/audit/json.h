// JSON that came with a checkpoint, or from a user: read within limits, and looked into without trust.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace rootdk::audit {

using Json = nlohmann::ordered_json;

/// Refuses what is not JSON, is nested beyond 32 levels or has a key twice; `name` is what the message calls it.
Json parse_json(std::string_view text, std::string_view name);

/// For messages: 3.5, "abc", null, an array; long ones cut.
std::string in_short(const Json& value);

/// Text that nobody vouches for, fit for a message: in quotes, control characters and broken UTF-8 replaced, cut after
/// 80 bytes.
std::string in_quotes(std::string_view text);

}  // namespace rootdk::audit
