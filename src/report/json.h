// JSON as the command writes it. Keys keep their order; numbers come back as they were; what is not finite is null.
// docs/results-json.md describes every object.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "rootdk/lab/estimate.h"

namespace rootdk::report {

using Json = nlohmann::ordered_json;

/// Indented, lists of numbers on one line, with a newline at the end. Bytes that are not UTF-8 (a file's name, say) are
/// replaced; controls of direction are escaped, so that a terminal shows every line as it is.
std::string dumped(const Json& json);

/// A float as the double that prints as shortly: 0.1f is 0.1, not 0.10000000149011612. As a float it is the same.
double shortest(float x);

inline Json json_of(const lab::Estimate& e) {
  return {{"value", e.value}, {"standard_error", e.standard_error}, {"ci95", {e.low, e.high}}};
}

}  // namespace rootdk::report
