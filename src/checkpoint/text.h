// Text from files that are not trusted: is it UTF-8, may it be a name, and how it is shown in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rootdk::checkpoint {

/// Where the first byte that is not UTF-8 lies; npos if there is none.
std::size_t first_not_utf8(std::string_view text);

/// UTF-8, not empty, without control characters.
bool is_name(std::string_view text);

/// For messages: in quotes, control characters and broken UTF-8 as \xNN, long ones cut.
std::string in_quotes(std::string_view text);

/// The same without the quotes: for paths.
std::string printable(std::string_view text);

}  // namespace rootdk::checkpoint
