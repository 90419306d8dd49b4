// Statistics over a training run: each step counts, the last ones most.
#pragma once

#include "rootdk/export.h"
#include "rootdk/stats.h"

namespace rootdk {

/// Counts are decayed and so no longer whole.
using DecayedHeadStats = HeadStatsOf<double>;
using DecayedStats = StatsOf<double>;

/// A step that lies n steps back counts decay^n times as much as the last one: over 1/(1 − decay) steps, roughly.
/// Maxima and minima do not decay: they are of everything seen.
class ROOTDK_API RunningStats {
 public:
  /// 0 ≤ decay ≤ 1. With 0 only the last step counts, with 1 all alike.
  explicit RunningStats(double decay);

  /// The first step decides the level, the batch size and the number of heads.
  void add(const Stats& step);

  const DecayedStats& stats() const { return stats_; }  ///< empty before the first step

 private:
  double decay_;
  DecayedStats stats_;
};

}  // namespace rootdk
