// Small parts of sentences that several experiments need.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "report/numbers.h"

namespace rootdk::report {

/// "a", "a and b", "a, b and c".
inline std::string listed(const std::vector<std::string>& items) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  return out;
}

/// "3.4 times as large as", "as large as", "a tenth …": how a compares with b, both above 0.
inline std::string compared(double a, double b, std::string_view larger, std::string_view smaller) {
  return a >= b ? times(a / b) + " " + std::string(larger) : times(b / a) + " " + std::string(smaller);
}

/// What is written where an experiment was stopped.
inline std::string unfinished(bool complete) {
  return complete ? "" : "\nInterrupted: these are the parts that were finished.\n";
}

}  // namespace rootdk::report
