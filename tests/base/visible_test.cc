// Text that somebody else wrote steers neither a terminal nor the order of a line; all other text stays as it is.
#include "base/visible.h"

#include <gtest/gtest.h>

#include <string>

#include "base/refuse.h"
#include "support/message.h"

namespace rootdk::base {
namespace {

TEST(Visible, ShowsEveryControlOfDirection) {
  for (const char* hidden : {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202b", "\u202c", "\u202d",
                             "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}) {
    const std::string text = std::string("a") + hidden + "b";
    const std::string shown = visible(text);
    EXPECT_EQ(shown.size(), 8u) << shown;
    EXPECT_TRUE(shown.starts_with("a\\u") && shown.ends_with("b")) << shown;
    EXPECT_EQ(with_visible_direction(text), shown);
  }
  EXPECT_EQ(visible("x\u202ey"), "x\\u202ey");
}

TEST(Visible, ShowsControls) {
  EXPECT_EQ(visible("\x1b[31mred\t\x7f\u009b\n"), "\\x1b[31mred\\x09\\x7f\\x9b\n");
  EXPECT_EQ(with_visible_direction("\x1b[31mred"), "\x1b[31mred");
}

TEST(Visible, LeavesTheRestAlone) {
  for (const char* text :
       {"", "√d_k ≥ 1 · 𝛔 – “quoted” שלום", "\u2027\u202f\u2065\u206a\u200d", "cut short \xe2\x80", "\xff\xc3"}) {
    EXPECT_EQ(visible(text), text);
    EXPECT_EQ(with_visible_direction(text), text);
  }
}

TEST(Visible, HoldsForErrors) {
  EXPECT_EQ(test::message_of([] { refuse("{}: no such tensor", "\x1b[2J\u202egnp.exe"); }),
            "\\x1b[2J\\u202egnp.exe: no such tensor");
}

}  // namespace
}  // namespace rootdk::base
