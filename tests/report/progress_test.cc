// What a terminal shows while something runs: the time that is left, and a line that fits.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "report/progress.h"
#include "report/text.h"
#include "support/rng.h"

namespace rootdk::report {
namespace {

TEST(TimeLeft, IsRightForSteadyWork) {
  TimeLeft time;
  for (int step = 0; step <= 60; ++step) {
    time.add(step, step / 100.0);
    if (step >= 10) {
      ASSERT_TRUE(time.at(step)) << step;
      EXPECT_NEAR(*time.at(step), 100 - step, 1e-9);
      EXPECT_NEAR(*time.at(step + 0.5), 100 - step - 0.5, 1e-9) << "it goes on between reports";
    }
  }
}

TEST(TimeLeft, SaysNothingWithoutGround) {
  TimeLeft time;
  EXPECT_FALSE(time.at(0));
  EXPECT_FALSE(time.at(100)) << "nothing is done";
  time.add(0, 0);
  time.add(0.5, 0.2);
  EXPECT_FALSE(time.at(1)) << "a second is no measure";
  EXPECT_TRUE(time.at(2.2)) << "a fifth is";
  TimeLeft slow;
  for (int i = 0; i < 8; ++i) {
    slow.add(i, 1e-4 * i);
    EXPECT_FALSE(slow.at(i)) << "neither much nor often";
  }
  for (int i = 8; i < 20; ++i) slow.add(i, 1e-4 * i);
  EXPECT_TRUE(slow.at(19));
  time.add(4, 0.8);
  EXPECT_FALSE(time.at(50)) << "what should have been over is not known any better";
}

// It follows a change of speed, and does not jump: noise of a factor of 3 in every step moves it by less than a tenth.
TEST(TimeLeft, IsSmooth) {
  test::Rng rng(1);
  TimeLeft time;
  double seconds = 0, last = 0;
  for (int step = 1; step <= 4000; ++step) {
    seconds += 0.1 * std::pow(3.0, 2 * rng.uniform() - 1);
    time.add(seconds, step / 4000.0);
    if (step > 400) {
      ASSERT_TRUE(time.at(seconds) || step == 4000);
      const double left = time.at(seconds).value_or(0);
      if (step > 401) {
        EXPECT_NEAR(left, last, 0.02 * last + 1) << step;
      }
      last = left;
    }
  }
  TimeLeft faster;
  for (int i = 0; i <= 100; ++i) faster.add(i, i / 1000.0);
  const double before = *faster.at(100);
  for (int i = 1; i <= 100; ++i) faster.add(100 + i, 0.1 + i / 250.0);  // four times as fast: 125 s are left in the end
  EXPECT_NEAR(before, 900, 1e-6);
  EXPECT_LT(*faster.at(200), 200) << "the latest times count most; a plain mean would say 200";
  EXPECT_GT(*faster.at(200), 125);
}

TEST(Duration, HasNoMoreDigitsThanCanBeKnown) {
  EXPECT_EQ(duration(0.2), "1 s");
  EXPECT_EQ(duration(8.4), "8 s");
  EXPECT_EQ(duration(33), "35 s");
  EXPECT_EQ(duration(89), "1 min");
  EXPECT_EQ(duration(60 * 42.4), "42 min");
  EXPECT_EQ(duration(3600 * 2.15), "2 h 10 min");
  EXPECT_EQ(duration(3600 * 2.99), "3 h");
  EXPECT_EQ(duration(3600 * 30.2), "30 h");
  EXPECT_EQ(duration(86400 * 3.3), "3 days");
  EXPECT_EQ(duration(1e300), "years");
}

TEST(ProgressLine, FitsAnyWidth) {
  const Progress progress = {"3/11 variance", 0.41, 125, "normal, d_k up to 512, 注意", false};
  for (std::size_t columns = 0; columns <= 200; ++columns) {
    const std::string line = line_of(progress, columns);
    EXPECT_LE(display_width(line), columns);
    EXPECT_EQ(line.find('\n'), line.npos);
    EXPECT_EQ(line.find("█") != line.npos, columns >= 79) << "words before bars";
  }
  EXPECT_EQ(line_of(progress, 99), "3/11 variance ████░░░░░░  41 %  2 min left  normal, d_k up to 512, 注意");
  EXPECT_EQ(line_of(progress, 39), "3/11 variance  41 %  2 min left  norma…");
}

TEST(ProgressLine, SaysWhatIsKnown) {
  EXPECT_EQ(line_of({"train", 0, {}, "", false}, 60), "train   0 %");
  EXPECT_EQ(line_of({"train", 0.999, {}, "x", false}, 60), "train  99 %  x") << "not before it is done";
  EXPECT_EQ(line_of({"train", 1, {}, "", false}, 60), "train 100 %");
  EXPECT_EQ(line_of({"train", 7, {}, "", false}, 60), "train 100 %");
  EXPECT_EQ(line_of({"train", 0.5, 10, "x", true}, 60), "train  50 %  stopping  x");
}

}  // namespace
}  // namespace rootdk::report
