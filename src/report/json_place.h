// Where in a JSON document something is, for messages: per_head[2].score.pairs.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace rootdk::report {

/// A chain from a value up to the document, each link on the stack of the function that is there.
struct Place {
  const Place* up = nullptr;
  std::string_view name = {};  ///< of a member …
  std::ptrdiff_t index = -1;   ///< … or the number of an element; the document itself has neither

  std::string path() const {
    if (!up) return "the document";
    const std::string above = up->up ? up->path() : "";
    if (index >= 0) return fmt::format("{}[{}]", above, index);
    return above.empty() ? std::string(name) : fmt::format("{}.{}", above, name);
  }
};

}  // namespace rootdk::report
