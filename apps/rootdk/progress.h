// How far something is, told while it takes long, and how it is asked to stop: a line on the terminal after a second,
// and Ctrl-C. A page has its own (apps/web/progress.cc).
#pragma once

#include <memory>
#include <string>

#include "rootdk/lab/watch.h"

namespace rootdk::app {

/// From here on Ctrl-C (and SIGTERM) only raises a flag; a second one ends the process.
void catch_interrupts();
bool interrupted();

/// What is shown is gone when this is.
class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// For an experiment: draws, and stops at an interrupt.
  lab::Watch watch();

 private:
  class Shown;
  std::unique_ptr<Shown> shown_;
};

}  // namespace rootdk::app
