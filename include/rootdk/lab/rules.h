// Everything that sets or bounds the scores, with its formula, who proposed it, and where it is in this library.
#pragma once

#include <string>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::lab {

struct Rule {
  std::string name;        ///< as --rules takes it, where it does
  std::string parameters;  ///< "(a[, b])", or nothing
  std::string formula;
  std::string source;        ///< who proposed it
  bool in_registry = false;  ///< Scale::parse takes it
  std::string where;         ///< in this library
};

/// First the registry of Scale::names, in its order.
ROOTDK_API std::vector<Rule> all_rules();

}  // namespace rootdk::lab
