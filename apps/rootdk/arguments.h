// Lists on the command line: "1,4,16", "sqrt_dk,unit_variance(1, 2)". What cannot be read is refused by the option's
// name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/scale.h"

namespace rootdk::app {

/// Without the spaces and tabs around it.
std::string_view trim(std::string_view text);

/// At commas outside parentheses; spaces around the parts are dropped.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

std::vector<std::int64_t> whole_numbers(std::string_view option, std::string_view text);
std::vector<double> numbers(std::string_view option, std::string_view text);
std::vector<Scale> scales(std::string_view option, std::string_view text);

/// The place of `text` among `words`; refuses what is none of them, and says which was probably meant.
std::size_t choice(std::string_view option, std::string_view text, const std::vector<std::string>& words);

/// The way back, for defaults.
std::string joined(const std::vector<std::int64_t>& values);
std::string joined(const std::vector<double>& values);
std::string joined(const std::vector<Scale>& values);

}  // namespace rootdk::app
