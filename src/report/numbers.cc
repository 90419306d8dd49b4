// Significant digits, fixed decimals, percents and factors, with commas between thousands.
#include "report/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rootdk::report {

namespace {

constexpr double kMostPlain = 1e9, kLeastPlain = 1e-4;

// "1202604.5" → "1,202,604.5"
std::string with_commas(const std::string& digits) {
  const std::size_t point = std::min(digits.find('.'), digits.size());
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i < point && (point - i) % 3 == 0 && !out.empty() && out.back() != '-') out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace

std::string number(double x, int digits) {
  if (std::isnan(x)) return "–";
  if (std::isinf(x)) return x > 0 ? "∞" : "−∞";
  if (x == 0) return "0";
  const std::string scientific = fmt::format("{:.{}e}", x, digits - 1);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));  // after rounding
  if (std::fabs(x) < kMostPlain && std::fabs(x) >= kLeastPlain)
    return with_commas(fmt::format("{:.{}f}", x, std::max(0, digits - 1 - exponent)));
  return fmt::format("{}e{}", scientific.substr(0, scientific.find('e')), exponent);
}

std::string fixed(double x, int decimals) {
  if (!std::isfinite(x) || std::fabs(x) >= kMostPlain) return number(x);
  if (x != 0 && std::fabs(x) < 0.5 * std::pow(10.0, -decimals)) return number(x, 2);
  return with_commas(fmt::format("{:.{}f}", x, decimals));
}

std::string whole(std::int64_t x) { return with_commas(fmt::format("{}", x)); }

std::string percent(double share) {
  if (std::isnan(share)) return "–";
  if (share == 0 || share == 1) return fmt::format("{:.0f} %", 100 * share);
  if (share < 0.001) return "<0.1 %";
  if (share > 0.999) return ">99.9 %";
  return share < 0.0995 || share > 0.9905 ? fmt::format("{:.1f} %", 100 * share) : fmt::format("{:.0f} %", 100 * share);
}

std::string times(double factor) { return number(factor, factor < 99.5 ? 2 : 3) + " times"; }

}  // namespace rootdk::report
