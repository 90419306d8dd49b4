// The numbers that a family asks for, looked up in a configuration.
#pragma once

#include <cstdint>
#include <optional>

#include "audit/family.h"
#include "audit/settings.h"

namespace rootdk::audit {

inline std::int64_t whole(const Settings& settings, const Number& number, std::int64_t least, std::int64_t otherwise,
                          std::int64_t layer = 0) {
  if (const auto value = settings.whole(number.settings, least, layer)) return *value;
  return number.otherwise ? static_cast<std::int64_t>(*number.otherwise) : otherwise;
}

inline std::optional<double> real(const Settings& settings, const Number& number) {
  if (const auto value = settings.number(number.settings)) return value;
  return number.otherwise;
}

}  // namespace rootdk::audit
