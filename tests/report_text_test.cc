// What a terminal gets: widths, lines, tables and numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {
namespace {

TEST(Text, WidthIsWhatATerminalShows) {
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width(""), 0u);
  EXPECT_EQ(display_width("√d_k"), 4u);
  EXPECT_EQ(display_width("‖dS‖²"), 5u);
  EXPECT_EQ(display_width("e\u0301"), 1u);    // a combining accent
  EXPECT_EQ(display_width("注意"), 4u);       // wide characters
  EXPECT_EQ(display_width("\xFF\xFEx"), 3u);  // not UTF-8
  EXPECT_EQ(display_width("\xE2\x88"), 2u);   // cut short
}

TEST(Text, WrapsAtSpacesByWidth) {
  EXPECT_EQ(wrap("one two three", "", 7), "one two\nthree\n");
  EXPECT_EQ(wrap("√√√ √√√ √√√", "", 7), "√√√ √√√\n√√√\n");
  EXPECT_EQ(wrap("one two", "  ", 7), "  one\n  two\n");
  EXPECT_EQ(wrap("a much-too-long-word b", "", 6), "a\nmuch-too-long-word\nb\n");
  EXPECT_EQ(wrap("", "", 10), "\n");
  EXPECT_EQ(wrap("a  b", "", 10), "a b\n");
  EXPECT_EQ(wrap("about 42 % of", "", 8), "about\n42 % of\n") << "a number keeps its %";
}

// Every line of a table ends at the same column where its last cell is right-aligned, whatever bytes are in it.
TEST(Table, AlignsByWidth) {
  Table table({{"rule", Table::Align::kLeft}, {"‖dS‖²"}});
  table.add({"none", "1"});
  table.add({"√d_k 注", "0.25"});
  table.gap();
  table.add({"only the first"});
  const std::string text = table.text();
  EXPECT_EQ(text, "  rule            ‖dS‖²\n"
                  "  ──────────────  ─────\n"
                  "  none                1\n"
                  "  √d_k 注          0.25\n"
                  "\n"
                  "  only the first\n");
}

TEST(Numbers, SignificantDigits) {
  EXPECT_EQ(number(0.8668), "0.867");
  EXPECT_EQ(number(13.727), "13.7");
  EXPECT_EQ(number(1202604.28, 7), "1,202,604");
  EXPECT_EQ(number(-1234.5, 3), "-1,234");
  EXPECT_EQ(number(999.96, 4), "1,000");
  EXPECT_EQ(number(5.18470552858707e21, 5), "5.1847e21");
  EXPECT_EQ(number(4.248354255291589e-18, 2), "4.2e-18");
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(NAN), "–");
  EXPECT_EQ(number(INFINITY), "∞");
  EXPECT_EQ(number(-INFINITY), "−∞");
}

TEST(Numbers, FixedNeverHidesANumberBehindZeros) {
  EXPECT_EQ(fixed(0.12345, 3), "0.123");
  EXPECT_EQ(fixed(0, 3), "0.000");
  EXPECT_EQ(fixed(0.0001, 3), "0.00010");
  EXPECT_EQ(fixed(1e-9, 3), "1.0e-9");
  EXPECT_EQ(fixed(12345.678, 1), "12,345.7");
}

TEST(Numbers, SharesAndFactors) {
  EXPECT_EQ(percent(0), "0 %");
  EXPECT_EQ(percent(1), "100 %");
  EXPECT_EQ(percent(1e-5), "<0.1 %");
  EXPECT_EQ(percent(0.99999), ">99.9 %");
  EXPECT_EQ(percent(0.073), "7.3 %");
  EXPECT_EQ(percent(0.453), "45 %");
  EXPECT_EQ(percent(0.996), "99.6 %");
  EXPECT_EQ(percent(NAN), "–");
  EXPECT_EQ(times(16.4), "16 times");
  EXPECT_EQ(times(2.78), "2.8 times");
  EXPECT_EQ(whole(-1234567), "-1,234,567");
  EXPECT_EQ(whole(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(listed({"a", "b", "c"}), "a, b and c");
  EXPECT_EQ(compared(2, 8, "larger", "smaller"), "4.0 times smaller");
}

}  // namespace
}  // namespace rootdk::report
