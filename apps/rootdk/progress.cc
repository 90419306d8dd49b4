#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

namespace rootdk::app {

namespace {

constexpr double kPatience = 1;  // seconds before a bar appears
constexpr int kBarWidth = 30;

volatile std::sig_atomic_t interrupt_flag = 0;

extern "C" void rootdk_raise_flag(int) { interrupt_flag = 1; }

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

Progress::Progress(std::string title)
    : title_(std::move(title)), on_terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

lab::Watch Progress::watch() {
  return {[this](double done) { draw(done); }, [] { return interrupted(); }};
}

void Progress::draw(double done) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (!on_terminal_ || seconds < kPatience) return;
  const int percent = static_cast<int>(100 * std::clamp(done, 0.0, 1.0));
  if (percent == last_) return;
  last_ = percent;
  shown_ = true;
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < kBarWidth * percent / 100 ? "█" : "░";
  fmt::print(stderr, "\r{} {} {:3} %", title_, bar, percent);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace rootdk::app
