// The line on a terminal, drawn by a thread of its own, and SIGINT as a flag.
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "report/progress.h"
#include "report/text.h"
#include "terminal.h"

namespace rootdk::app {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience(1000), kBetweenLooks(200);

volatile std::sig_atomic_t interrupt_flag = 0;

extern "C" void rootdk_raise_flag(int) { interrupt_flag = 1; }

bool is_wanted() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

/// Another program has the terminal: this one runs behind it.
bool in_background() {
  const pid_t foreground = tcgetpgrp(STDERR_FILENO);
  return foreground != -1 && foreground != getpgrp();
}

std::size_t columns() { return columns_of(STDERR_FILENO).value_or(report::kLineWidth); }

}  // namespace

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = rootdk_raise_flag;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(signal, &action, nullptr);
  }
}

bool interrupted() { return interrupt_flag != 0; }

/// On standard error, only if that is a terminal. A thread of its own draws, so that the time goes on and a change of
/// the terminal's width is seen while a part of the work takes long.
class Progress::Shown {
 public:
  explicit Shown(std::string title);
  ~Shown();
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  void report(double done, std::string_view what);

 private:
  double seconds() const;
  void draw_until_closed();
  void show(std::string line, std::size_t width);

  const std::string title_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex.
  double done_ = 0;
  std::string what_;
  report::TimeLeft time_left_;
  bool closed_ = false;
  // Of the thread that draws.
  std::string shown_;
  std::size_t width_ = 0;
  std::thread drawer_;  ///< none, if standard error is no terminal
};

Progress::Shown::Shown(std::string title) : title_(std::move(title)), start_(std::chrono::steady_clock::now()) {
  if (!is_wanted()) return;
  try {
    drawer_ = std::thread([this] { draw_until_closed(); });
  } catch (const std::system_error&) {  // as many threads as there may be: the work goes on without a line
  }
}

Progress::Shown::~Shown() {
  if (!drawer_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
  drawer_.join();
}

double Progress::Shown::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Progress::Shown::report(double done, std::string_view what) {
  if (!drawer_.joinable()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  done_ = done;
  what_ = what;
  time_left_.add(seconds(), done);
}

void Progress::Shown::draw_until_closed() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto closed = [this] { return closed_; };
  for (milliseconds pause = kPatience; !changed_.wait_for(lock, pause, closed); pause = kBetweenLooks) {
    const std::size_t width = columns();
    std::string line = report::line_of({title_, done_, time_left_.at(seconds()), what_, interrupted()}, width - 1);
    lock.unlock();
    if (!in_background()) show(std::move(line), width);
    lock.lock();
  }
  if (!shown_.empty()) show("", columns());
}

// In a terminal that has become narrower the old line takes several: all of them go. Most terminals break lines anew;
// those that cut them off lose lines above this one.
void Progress::Shown::show(std::string line, std::size_t width) {
  if (line == shown_ && width == width_) return;
  const std::size_t lines = shown_.empty() ? 1 : (report::display_width(shown_) + width - 1) / width;
  const std::string up = lines > 1 ? fmt::format("\033[{}A\r\033[J", lines - 1) : "\r\033[K";
  fmt::print(stderr, "{}{}", up, line);
  std::fflush(stderr);
  shown_ = std::move(line);
  width_ = width;
}

Progress::Progress(std::string title) : shown_(std::make_unique<Shown>(std::move(title))) {}
Progress::~Progress() = default;

lab::Watch Progress::watch() {
  return {[this](double done, std::string_view what) { shown_->report(done, what); }, [] { return interrupted(); }};
}

}  // namespace rootdk::app
