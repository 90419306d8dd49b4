// How a long experiment and whoever runs it talk: how far it is, and whether to go on.
#pragma once

#include <functional>

namespace rootdk::lab {

/// Both are called from the thread that called the experiment, between its parts; either may be absent.
struct Watch {
  std::function<void(double done)> progress = {};  ///< from 0 to 1
  std::function<bool()> stop = {};                 ///< true: return what is finished, with `complete` false

  void report(double done) const {
    if (progress) progress(done);
  }
  bool stopped() const { return stop && stop(); }
};

}  // namespace rootdk::lab
