// JSON text that came from anywhere → a tree, within limits.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace rootdk::report {

inline constexpr std::size_t kDeepest = 16;          ///< arrays and objects inside each other
inline constexpr std::size_t kLongest = 1ull << 20;  ///< elements of an array, members of an object

/// Refuses what is not JSON, is nested too deeply or is too long, and members that are there twice.
nlohmann::json parse_json(std::string_view text);

/// A value in a few words, for messages: 3.5, "abc", null, an array.
std::string in_short(const nlohmann::json& value);

}  // namespace rootdk::report
