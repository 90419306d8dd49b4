// Time left and the line that says it.
#include "report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"

namespace rootdk::report {

void TimeLeft::add(double seconds, double done) {
  const double middle = (seconds_ + seconds) / 2;
  if (seconds > seconds_) weighted_seconds_ += middle * (seconds - seconds_);
  if (done > done_) {
    weighted_done_ += middle * (done - done_);
    ++times_;
  }
  seconds_ = std::max(seconds, seconds_);
  done_ = std::max(done, done_);
}

std::optional<double> TimeLeft::at(double seconds) const {
  constexpr double kLeastSeconds = 2, kGreatShare = 0.1;
  constexpr int kManyTimes = 10;
  if (seconds < kLeastSeconds || weighted_done_ <= 0 || weighted_seconds_ <= 0) return {};
  if (times_ < kManyTimes && done_ < kGreatShare) return {};
  const double left = (1 - done_) * weighted_seconds_ / weighted_done_ - (seconds - seconds_);
  if (!(left > 0)) return {};
  return left;
}

std::string duration(double seconds) {
  constexpr double kMinute = 60, kHour = 3600, kDay = 24 * kHour;
  const auto rounded = [&](double unit, double step) {
    return static_cast<long long>(std::round(seconds / unit / step) * step);
  };
  if (seconds < 9.5) return fmt::format("{} s", std::max(1LL, rounded(1, 1)));
  if (seconds < 87.5) return fmt::format("{} s", rounded(1, 5));
  if (seconds < 89.5 * kMinute) return fmt::format("{} min", rounded(kMinute, 1));
  if (seconds < 9.9 * kHour) {
    const long long minutes = rounded(kMinute, 10);
    return minutes % 60 == 0 ? fmt::format("{} h", minutes / 60)
                             : fmt::format("{} h {} min", minutes / 60, minutes % 60);
  }
  if (seconds < 47.5 * kHour) return fmt::format("{} h", rounded(kHour, 1));
  if (seconds < 999.5 * kDay) return fmt::format("{} days", rounded(kDay, 1));
  return "years";
}

std::string line_of(const Progress& progress, std::size_t columns) {
  const double done = std::clamp(progress.done, 0.0, 1.0);
  const std::size_t bar = columns >= 120 ? 30 : columns >= 100 ? 20 : columns >= 79 ? 10 : 0;
  std::string out(progress.title);
  if (bar > 0) {
    out += ' ';
    for (std::size_t i = 0; i < bar; ++i)
      out += static_cast<double>(i) < std::floor(static_cast<double>(bar) * done) ? "█" : "░";
  }
  out += fmt::format(" {:3.0f} %", std::floor(100 * done));
  if (progress.stopping) out += "  stopping";
  else if (progress.seconds_left) out += fmt::format("  {} left", duration(*progress.seconds_left));
  if (!progress.what.empty()) out += fmt::format("  {}", progress.what);
  return cut(out, columns);
}

}  // namespace rootdk::report
