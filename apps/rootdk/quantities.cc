// The longest unit that the text ends with, the prefix before it, and the number before that.
#include "quantities.h"

#include <cmath>
#include <optional>

#include "arguments.h"
#include "base/read_number.h"
#include "base/refuse.h"

namespace rootdk::app {

namespace {

/// Takes the prefix off and says which power of ten it stands for.
int take_prefix(std::string_view& text) {
  constexpr struct {
    std::string_view name;
    int power;
  } kPrefixes[] = {{"k", 3}, {"K", 3}, {"M", 6}, {"G", 9}, {"T", 12}, {"P", 15}, {"m", -3}, {"u", -6}, {"µ", -6}};
  for (const auto& prefix : kPrefixes)
    if (text.ends_with(prefix.name)) {
      text.remove_suffix(prefix.name.size());
      return prefix.power;
    }
  return 0;
}

}  // namespace

double quantity(std::string_view option, std::string_view text, std::span<const Unit> units, std::string_view example) {
  std::optional<double> value;
  for (const Unit& unit : units) {
    std::string_view rest = trim(text);
    if (!rest.ends_with(unit.name)) continue;
    rest.remove_suffix(unit.name.size());
    const int power = take_prefix(rest);
    // Read with its power, 10us is 1e-5 and not 10 times what 1e-6 is rounded to.
    const std::optional<double> number = base::read_number<double>(fmt::format("{}e{}", trim(rest), power));
    if (number && std::isfinite(*number)) value = *number * unit.factor;
    if (value) break;
  }
  if (!value || !(*value >= 0)) base::refuse("{}: \"{}\", but an amount like {} is wanted", option, text, example);
  return *value;
}

}  // namespace rootdk::app
