// Small parts of sentences that several experiments need.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/numbers.h"
#include "report/text.h"

namespace rootdk::report {

/// "a", "a and b", "a, b and c".
inline std::string listed(const std::vector<std::string>& items) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i)
    out += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  return out;
}

/// "1 head", "12 heads".
inline std::string counted_of(std::size_t count, std::string_view what) {
  return whole(static_cast<std::int64_t>(count)) + " " + std::string(what) + (count == 1 ? "" : "s");
}

/// Of numbers in ascending order, at least one; the mean of the two in the middle where their number is even.
inline double median_of(const std::vector<double>& sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/// "3.4 times as large as", "as large as", "a tenth …": how a compares with b, both above 0.
inline std::string compared(double a, double b, std::string_view larger, std::string_view smaller) {
  return a >= b ? times(a / b) + " " + std::string(larger) : times(b / a) + " " + std::string(smaller);
}

/// A rule in a sentence: "1/√d_k", and its own name where it has no other.
inline std::string spoken(std::string_view rule) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"none", "no scaling"},
                                                                             {"sqrt_dk", "1/√d_k"},
                                                                             {"dk", "1/d_k"},
                                                                             {"qk_norm", "QK-norm"},
                                                                             {"measured", "measured unit variance"},
                                                                             {"temperature", "adaptive temperature"}};
  for (const auto& [name, words] : kNames)
    if (rule == name) return std::string(words);
  return std::string(rule);
}
/// "unscaled", "under 1/√d_k".
inline std::string under(std::string_view rule) { return rule == "none" ? "unscaled" : "under " + spoken(rule); }

/// What is written where an experiment was stopped.
inline std::string unfinished(bool complete, const Layout& layout) {
  return complete ? "" : "\n" + layout.wrap("Interrupted: these are the parts that were finished.");
}

}  // namespace rootdk::report
