// Layouts: every token once, runs even, zigzag and dealt documents balanced.
#include "rootdk/distributed/layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "rootdk/error.h"
#include "support/message.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

using distributed::Piece;
using distributed::Pieces;
using RankLayout = distributed::Layout;

double causal_pairs(const Pieces& pieces, std::int64_t begin, std::int64_t end) {
  double sum = 0;
  for (const Piece& piece : pieces)
    for (std::int64_t i = std::max(piece.begin, begin); i < std::min(piece.end, end); ++i)
      sum += static_cast<double>(i - begin + 1);
  return sum;
}

TEST(Layout, EveryTokenIsOnOneRank) {
  Rng rng(1);
  for (int n = 0; n < 500; ++n) {
    const std::int64_t length = rng.integer(0, 200);
    const int ranks = static_cast<int>(rng.integer(1, 9));
    std::vector<std::int64_t> starts = {0, length};
    for (int d = 0; d < 5; ++d) starts.push_back(rng.integer(0, length));
    std::sort(starts.begin(), starts.end());
    for (const RankLayout& layout : {RankLayout::even(length, ranks), RankLayout::zigzag(length, ranks),
                                     RankLayout::dealt(starts, ranks), RankLayout::dealt(starts, ranks, false)}) {
      ASSERT_NO_THROW(layout.check());
      ASSERT_EQ(layout.ranks(), ranks);
      ASSERT_EQ(layout.length(), length);
    }
  }
}

TEST(Layout, RunsAndPieces) {
  EXPECT_EQ(RankLayout::even(10, 3).pieces, (std::vector<Pieces>{{{0, 3}}, {{3, 6}}, {{6, 10}}}));
  EXPECT_EQ(RankLayout::zigzag(8, 2).pieces, (std::vector<Pieces>{{{0, 2}, {6, 8}}, {{2, 6}}}));
  EXPECT_EQ(RankLayout::zigzag(9, 2).pieces, (std::vector<Pieces>{{{0, 2}, {6, 9}}, {{2, 6}}}));
  const std::int64_t lengths[] = {3, 0, 4};
  EXPECT_EQ(RankLayout::contiguous(lengths).pieces, (std::vector<Pieces>{{{0, 3}}, {}, {{3, 7}}}));
  EXPECT_EQ(RankLayout::zigzag(16, 4).over(2).pieces, (std::vector<Pieces>{{{0, 4}, {12, 16}}, {{4, 12}}}));
}

TEST(Layout, ZigzagSharesCausalWorkEvenly) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const std::int64_t length : {64, 1000, 1023}) {
      const RankLayout layout = RankLayout::zigzag(length, ranks);
      const double mean = causal_pairs({{0, length}}, 0, length) / ranks;
      // Pieces differ by a token, which sees at most `length` keys; a rank has two of them.
      for (const Pieces& mine : layout.pieces)
        EXPECT_NEAR(causal_pairs(mine, 0, length), mean, 2.0 * static_cast<double>(length));
    }
}

// Documents of any lengths: no rank has more than the mean, a sixteenth of it, and what rounding the cuts gives it.
TEST(Layout, DealtDocumentsShareWorkEvenly) {
  Rng rng(2);
  for (int n = 0; n < 200; ++n) {
    const int ranks = static_cast<int>(rng.integer(1, 8));
    std::vector<std::int64_t> starts = {0};
    const std::int64_t documents = rng.log_integer(1, 300);
    for (std::int64_t d = 0; d < documents; ++d) starts.push_back(starts.back() + rng.log_integer(1, 2041));
    const RankLayout layout = RankLayout::dealt(starts, ranks);
    ASSERT_NO_THROW(layout.check());
    double total = 0, rounding = 0;
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const auto length = static_cast<double>(starts[d + 1] - starts[d]);
      total += length * (length + 1) / 2;
    }
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const auto length = static_cast<double>(starts[d + 1] - starts[d]);
      if (length * (length + 1) / 2 * 16 * ranks > total) rounding += 2 * length;
    }
    const double mean = total / ranks;
    for (const Pieces& mine : layout.pieces) {
      double work = 0;
      for (std::size_t d = 0; d + 1 < starts.size(); ++d) work += causal_pairs(mine, starts[d], starts[d + 1]);
      EXPECT_LE(work, mean * (1 + 1.0 / 16) + rounding) << ranks << " ranks, " << documents << " documents";
    }
  }
}

TEST(Layout, NothingNeedsToDivideAnything) {
  const std::int64_t starts[] = {0, 137, 137 + 2041, 137 + 2041 + 89};
  const RankLayout layout = RankLayout::dealt(starts, 4);
  for (int r = 0; r < 4; ++r) EXPECT_GT(layout.length(r), 2041 / 4 - 2);
}

TEST(Layout, RefusesWhatIsNone) {
  const auto refused = [](std::vector<Pieces> pieces) {
    return message_of([&] { RankLayout{std::move(pieces)}.check(); });
  };
  EXPECT_EQ(refused({{{0, 3}}, {{2, 5}}}), "layout: token 2 is on two ranks");
  EXPECT_EQ(refused({{{0, 3}}, {{4, 5}}}), "layout: token 3 is on none");
  EXPECT_EQ(refused({{{3, 3}}}),
            "layout: piece 0 of rank 0 is 3 to 3, but ascending ones that hold a token are wanted");
  EXPECT_EQ(refused({{{2, 4}, {0, 2}}}),
            "layout: piece 1 of rank 0 is 0 to 2, but ascending ones that hold a token are wanted");
  EXPECT_EQ(refused({}), "layout: 0 ranks, but at least 1 is wanted");
  EXPECT_THROW(RankLayout::zigzag(8, 0), Error);
  EXPECT_THROW(RankLayout::even(8, 3).over(2), Error);
  const std::int64_t falling[] = {0, 5, 3};
  EXPECT_THROW(RankLayout::dealt(falling, 2), Error);
}

}  // namespace
}  // namespace rootdk::test
