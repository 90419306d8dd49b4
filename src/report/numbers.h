// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace rootdk::report {

/// So many significant digits, as a plain decimal where that is short: 0.867, 13.7, 1,202,604; else 4.2e-18. "–" for
/// NaN, "∞".
std::string number(double x, int digits = 3);

/// So many digits behind the point: for columns to be compared. Falls back to number() where that would show nothing
/// but zeros.
std::string fixed(double x, int decimals);

/// With commas: 1,202,604.
std::string whole(std::int64_t x);

/// "12 %"; "0 %" and "100 %" only if exactly so, else "<0.1 %" and ">99.9 %".
std::string percent(double share);

/// "12 times"; "1.3 times".
std::string times(double factor);

}  // namespace rootdk::report
