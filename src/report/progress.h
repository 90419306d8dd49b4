// The line that a terminal shows while something runs: what that is, how far it got, how long it will take.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace rootdk::report {

/// How long work will still take, judged by its speed so far. A moment counts in proportion to how late it was: a
/// change of speed shows before long, and the answer never jumps.
class TimeLeft {
 public:
  /// The share of the work, from 0 to 1, that is done after so many seconds. Neither ever falls.
  void add(double seconds, double done);

  /// Seconds left at a time no earlier than the last one added. Absent while there is no ground for an answer, and
  /// once the work should have been over.
  std::optional<double> at(double seconds) const;

 private:
  double seconds_ = 0, done_ = 0;
  double weighted_done_ = 0, weighted_seconds_ = 0;
  int times_ = 0;
};

/// "8 s", "35 s", "4 min", "2 h 10 min", "3 days": no more digits than can be known.
std::string duration(double seconds);

struct Progress {
  std::string_view title;
  double done = 0;  ///< from 0 to 1
  std::optional<double> seconds_left;
  std::string_view what;  ///< is being done now
  bool stopping = false;  ///< said in place of the time
};

/// A line of at most that many columns, without a newline: first how far it is and the time left, with a bar where
/// there is room, then what is being done, cut where it must be.
std::string line_of(const Progress& progress, std::size_t columns);

}  // namespace rootdk::report
