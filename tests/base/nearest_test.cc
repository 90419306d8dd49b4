// What was probably meant: close words are found, others are not.
#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/rng.h"

namespace rootdk::base {
namespace {

using nearest_detail::edits;
using Words = std::vector<std::string>;

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edits("", ""), 0u);
  EXPECT_EQ(edits("", "abc"), 3u);
  EXPECT_EQ(edits("audit", "audit"), 0u);
  EXPECT_EQ(edits("audt", "audit"), 1u);
  EXPECT_EQ(edits("auddit", "audit"), 1u);
  EXPECT_EQ(edits("sudit", "audit"), 1u);
  EXPECT_EQ(edits("aduit", "audit"), 1u) << "neighbours that were swapped";
  EXPECT_EQ(edits("uadti", "audit"), 2u);
  EXPECT_EQ(edits("kitten", "sitting"), 3u);
}

// Any two edits of a word are at most two away, both ways.
TEST(Nearest, EditsAreADistance) {
  test::Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string word, other;
    for (std::size_t n = 1 + rng.next() % 8; n > 0; --n) word += static_cast<char>('a' + rng.next() % 4);
    other = word;
    std::size_t made = 0;
    for (std::size_t n = rng.next() % 3; n > 0; --n) {
      const std::size_t at = rng.next() % (other.size() + 1);
      switch (rng.next() % 3) {
        case 0: other.insert(at, 1, static_cast<char>('a' + rng.next() % 4)), ++made; break;
        case 1:
          if (at < other.size()) other.erase(at, 1), ++made;
          break;
        default:
          if (at < other.size()) other[at] = 'z', ++made;
          break;
      }
    }
    ASSERT_LE(edits(word, other), made) << word << " " << other;
    ASSERT_EQ(edits(word, other), edits(other, word));
    ASSERT_EQ(edits(word, other) == 0, word == other);
  }
}

TEST(Nearest, FindsWhatIsClose) {
  const Words verbs = {"tour", "explain", "variance", "phase", "audit", "doctor", "--help", "--version"};
  EXPECT_EQ(nearest("audt", verbs), Words{"audit"});
  EXPECT_EQ(nearest("Audit", verbs), Words{"audit"});
  EXPECT_EQ(nearest("varaince", verbs), Words{"variance"});
  EXPECT_EQ(nearest("exp", verbs), Words{"explain"}) << "its beginning";
  EXPECT_EQ(nearest("version", verbs), Words{"--version"}) << "without its dashes";
  EXPECT_EQ(nearest("-version", verbs), Words{"--version"});
  for (const char* far : {"", "x", "demo", "serve", "completely", "----"})
    EXPECT_EQ(nearest(far, verbs), Words()) << far;
  EXPECT_EQ(nearest(std::string(100'000, 'a'), verbs), Words()) << "and is quick about it";
  EXPECT_EQ(nearest("q", {"k", "v"}), Words()) << "all letters wrong";
  EXPECT_EQ(nearest("--sigma-v", {"--sigma-q", "--sigma-k", "--seed"}), (Words{"--sigma-q", "--sigma-k"}));
  EXPECT_EQ(nearest("a1", {"a2", "a3", "a4", "a5"}), Words()) << "too many";
}

TEST(Nearest, AsksInWords) {
  EXPECT_EQ(did_you_mean("audt", {"audit", "tour"}), "; did you mean audit?");
  EXPECT_EQ(did_you_mean("--sigma-v", {"--sigma-q", "--sigma-k"}), "; did you mean --sigma-q or --sigma-k?");
  EXPECT_EQ(did_you_mean("demo", {"audit", "tour"}), "");
  EXPECT_EQ(did_you_mean("demo", {"audit", "tour"}, "; try --help"), "; try --help");
}

}  // namespace
}  // namespace rootdk::base
