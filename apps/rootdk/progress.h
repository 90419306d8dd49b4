// A bar on the terminal while something takes more than a second, and Ctrl-C as a request to stop.
#pragma once

#include <chrono>
#include <string>

#include "rootdk/lab/watch.h"

namespace rootdk::app {

/// From here on Ctrl-C (and SIGTERM) only raises a flag; a second one ends the process.
void catch_interrupts();
bool interrupted();

/// On standard error, only if that is a terminal; gone when this is.
class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// For an experiment: draws, and stops at an interrupt.
  lab::Watch watch();

 private:
  void draw(double done);
  void clear();

  std::string title_;
  bool on_terminal_, shown_ = false;
  int last_ = -1;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace rootdk::app
