// What a result takes in memory once it is JSON, so that it can be known before there is any.
#pragma once

namespace rootdk::report {

/// How many numbers there will be: in lists, and with a name of their own.
struct JsonSize {
  double listed = 0, named = 0;
};

// Measured, on results of a million numbers. Text is made in a string that grows by doubling, then escaped into
// another; a page holds both, and its own.
inline double bytes_of_tree(const JsonSize& size) { return 18 * size.listed + 130 * size.named; }
inline double bytes_of_text(const JsonSize& size) { return 110 * size.listed + 130 * size.named; }
inline double bytes_of_page(const JsonSize& size) { return 175 * size.listed + 460 * size.named; }

}  // namespace rootdk::report
