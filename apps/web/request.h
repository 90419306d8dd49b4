// A page's request: {"verb": "explain", "args": {"scores": [14, 10, 12], "dk": 64}}. What a verb declares as options is
// taken from args by the same names, in snake_case, and read by the same rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "options.h"

namespace rootdk::app {

/// What the request under way has printed.
std::string& answer();

/// The JSON that the command prints with --json, or {"error": "…"} with the line that the command says on standard
/// error. Never throws.
const std::string& respond(const std::vector<Verb>& verbs, std::string_view request) noexcept;

}  // namespace rootdk::app
