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
#include "support/rng.h"

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
  EXPECT_EQ(display_width("σ ₖ × ← ─"), 9u);
  EXPECT_EQ(display_width("\u1112\u1161\u11ab"), 2u);  // Hangul in parts, as some file systems keep it
  EXPECT_EQ(display_width("\U0001F9E0"), 2u);
}

TEST(Text, WrapsAtSpacesByWidth) {
  EXPECT_EQ(wrap("one two three", "", 7), "one two\nthree\n");
  EXPECT_EQ(wrap("√√√ √√√ √√√", "", 7), "√√√ √√√\n√√√\n");
  EXPECT_EQ(wrap("one two", "  ", 7), "  one\n  two\n");
  EXPECT_EQ(wrap("a much-too-long-word b", "", 6), "a\nmuch-too-long-word\nb\n");
  EXPECT_EQ(wrap("", "", 10), "\n");
  EXPECT_EQ(wrap("a  b", "", 10), "a b\n");
  EXPECT_EQ(wrap("about 42 % of", "", 8), "about\n42 % of\n") << "a number keeps its %";
  EXPECT_EQ(wrap("where σ = 1.02 is", "", 12), "where\nσ = 1.02 is\n") << "an equation keeps its sides";
  EXPECT_EQ(wrap("a = b = 42 % c", "", 5), "a = b = 42 %\nc\n");
}

TEST(Text, NamesOfFilesStayWhole) {
  EXPECT_EQ(wrap("The output is in " + unbroken("my  new folder/o.npy") + ".", "", 30),
            "The output is in\nmy  new folder/o.npy.\n");
  EXPECT_EQ(wrap(unbroken("a much longer name than that"), "", 10), "a much longer name than that\n");
}

TEST(Text, HangsBehindALabel) {
  EXPECT_EQ(hanging("name", 8, "one two three", 16), "name    one two\n        three\n");
  EXPECT_EQ(hanging("much too long", 8, "one two", 24), "much too long\n        one two\n");
  EXPECT_EQ(hanging("√ 注", 8, "one", 24), "√ 注    one\n") << "by what is seen";
  EXPECT_EQ(hanging("name", 8, "one two", 12), "name  one\n      two\n") << "less than half would be left";
  EXPECT_EQ(hanging("name", 8, "", 24), "name\n");
}

TEST(Text, CutsByWidth) {
  EXPECT_EQ(cut("√√√√", 4), "√√√√");
  EXPECT_EQ(cut("√√√√√", 4), "√√√…");
  EXPECT_EQ(cut("注意力", 4), "注…") << "half a character is none";
  EXPECT_EQ(cut("ab", 1), "…");
  EXPECT_EQ(cut("ab", 0), "");
  for (std::size_t width = 0; width < 12; ++width) EXPECT_LE(display_width(cut("a注b√意e\u0301f", width)), width);
}

TEST(Layout, OfATerminal) {
  EXPECT_EQ(Layout().prose, 80u) << "files and pipes";
  EXPECT_EQ(Layout().columns, Layout::kUnlimited) << "a row stays a line for those who search it";
  EXPECT_EQ(Layout::of_terminal(80).prose, 80u);
  EXPECT_EQ(Layout::of_terminal(60).prose, 60u);
  EXPECT_EQ(Layout::of_terminal(60).columns, 60u);
  EXPECT_EQ(Layout::of_terminal(200).prose, 100u) << "longer lines are hard to read";
  EXPECT_EQ(Layout::of_terminal(200).columns, 200u);
  EXPECT_EQ(Layout::of_terminal(3).columns, 40u);
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

Table wide_table() {
  using enum Table::Align;
  using enum Table::Place;
  Table table(
      {{"rule", kLeft, kKey}, {"σ"}, {"entropy", kRight, kLater}, {"of", kRight, kWithPrevious}, {"verdict", kLeft}});
  table.add({"none", "12.5", "1.25", "6.24", "frozen"});
  table.add({"sqrt_dk", "1", "5.75", "6.24", "soft"});
  return table;
}

TEST(Table, WhatHasNoRoomBesideGoesBelow) {
  EXPECT_EQ(wide_table().text(), "  rule        σ  entropy    of  verdict\n"
                                 "  ───────  ────  ───────  ────  ───────\n"
                                 "  none     12.5     1.25  6.24  frozen\n"
                                 "  sqrt_dk     1     5.75  6.24  soft\n");
  EXPECT_EQ(wide_table().text(39), wide_table().text());
  EXPECT_EQ(wide_table().text(38), "  rule        σ  verdict\n"
                                   "  ───────  ────  ───────\n"
                                   "  none     12.5  frozen\n"
                                   "  sqrt_dk     1  soft\n"
                                   "\n"
                                   "  rule     entropy    of\n"
                                   "  ───────  ───────  ────\n"
                                   "  none        1.25  6.24\n"
                                   "  sqrt_dk     5.75  6.24\n")
      << "the later ones, and what belongs together";
}

TEST(Table, KeysGoAboveWhereThatIsShorter) {
  using enum Table::Align;
  using enum Table::Place;
  Table table({{"name", kLeft, kKey}, {"d_k", kRight, kKey}, {"σ"}, {"p_max"}, {"tr J"}});
  table.add({"a name that takes room", "64", "1.5", "0.5", "0.25"});
  table.add({"", "128", "2.5", "0.75", "0.125"});
  table.gap();
  table.add({"another", "", "3.5", "0.875", "0.5"});
  EXPECT_EQ(table.text(36), "  name  d_k\n"
                            "      σ  p_max   tr J\n"
                            "    ───  ─────  ─────\n"
                            "  a name that takes room  64\n"
                            "    1.5    0.5   0.25\n"
                            "  a name that takes room  128\n"
                            "    2.5   0.75  0.125\n"
                            "  another\n"
                            "    3.5  0.875    0.5\n")
      << "with the keys that a row left out, but not those that it does not have";
}

// A row says nothing in a block that has none of its values; one without values stands in every block.
TEST(Table, RowsStandWhereTheyHaveValues) {
  using enum Table::Align;
  using enum Table::Place;
  Table table({{"key", kRight, kKey}, {"score"}, {"gradient"}});
  table.add({"1", "0.5", "0.25"});
  table.add({"…"});
  table.add({"sum", "0.5"});
  EXPECT_EQ(table.text(15), "  key  score\n"
                            "  ───  ─────\n"
                            "    1    0.5\n"
                            "    …\n"
                            "  sum    0.5\n"
                            "\n"
                            "  key  gradient\n"
                            "  ───  ────────\n"
                            "    1      0.25\n"
                            "    …\n");
}

// Whatever is in it: no line is wider than asked, no value gets lost, and where it fits it stays as it is.
TEST(Table, FitsAnyWidth) {
  test::Rng rng(3);
  const char* const words[] = {"1.25", "√d_k",        "注意力", "a",         "sqrt_dk*entropy_invariant",
                               "95 %", "3.85 – 3.95", "",       "not_finite"};
  for (int i = 0; i < 2000; ++i) {
    std::vector<Table::Column> columns;
    const std::size_t keys = rng.next() % 3, values = 1 + rng.next() % 9;
    const auto word = [&] { return std::string(words[rng.next() % std::size(words)]); };
    for (std::size_t c = 0; c < keys + values; ++c) {
      using enum Table::Place;
      columns.push_back({word(), rng.next() % 2 ? Table::Align::kLeft : Table::Align::kRight,
                         c < keys         ? kKey
                         : rng.next() % 4 ? kValue
                                          : kLater});
    }
    Table table(columns);
    std::vector<std::string> cells;
    for (std::size_t r = 0; r < rng.next() % 5; ++r) {
      std::vector<std::string> row;
      for (std::size_t c = 0; c < columns.size(); ++c) row.push_back(word());
      cells.insert(cells.end(), row.begin() + static_cast<std::ptrdiff_t>(keys), row.end());
      table.add(row);
    }
    const std::size_t width = 40 + rng.next() % 161;
    const std::string whole = table.text(), text = table.text(width);
    const auto widest = [](const std::string& all) {
      std::size_t out = 0;
      std::istringstream lines(all);
      for (std::string line; std::getline(lines, line);) out = std::max(out, display_width(line));
      return out;
    };
    ASSERT_LE(widest(text), width) << text;
    if (widest(whole) <= width) {
      ASSERT_EQ(text, whole);
    }
    for (const std::string& cell : cells) ASSERT_NE(text.find(cell), text.npos) << cell << "\n" << text;
  }
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
