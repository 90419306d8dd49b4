// Amounts on the command line: "10M" tokens, "400GB/s", "5us". What cannot be read is refused by the option's name.
#pragma once

#include <span>
#include <string_view>

namespace rootdk::app {

/// What may stand behind a number and a prefix (k, M, G, T; m, u for thousandths and millionths), and how much it is.
struct Unit {
  std::string_view name;
  double factor = 1;
};

/// In the first unit, which `example` is given in where the refusal says what is wanted.
double quantity(std::string_view option, std::string_view text, std::span<const Unit> units, std::string_view example);

}  // namespace rootdk::app
