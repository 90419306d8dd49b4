// How a long experiment and whoever runs it talk: how far it is, and whether to go on.
#pragma once

#include <functional>
#include <string_view>

namespace rootdk::lab {

/// Both are called from the thread that called the experiment, between its parts; either may be absent.
struct Watch {
  /// As a part begins: the share of the work that is done, from 0 to 1, and what comes now ("sqrt_dk, d_k 64"); at the
  /// end 1, and nothing. Shares are of time, as well as that is known beforehand.
  std::function<void(double done, std::string_view what)> progress = {};
  std::function<bool()> stop = {};  ///< true: return what is finished, with `complete` false

  void report(double done, std::string_view what = {}) const {
    if (progress) progress(done, what);
  }
  bool stopped() const { return stop && stop(); }
};

}  // namespace rootdk::lab
