// Forward at a few shapes, timed beside the multiply-add peak of the same threads. A first look: ./run bench has the
// peers, the pairing and the spread that a claim needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"

namespace rootdk::lab {

struct TimingOptions {
  struct Case {
    std::int64_t heads = 8, len = 1024, dim = 64;
    bool causal = false;
  };
  std::vector<Case> cases = {{8, 512, 64}, {8, 1024, 64}, {8, 1024, 128}, {8, 1024, 128, true}};
  int rounds = 15;  ///< of every case and of the peak, in turn
};

struct TimingRow {
  TimingOptions::Case shape;
  double milliseconds = 0;  ///< median
  double spread = 0;        ///< between the quartiles, over the median
  double gflops = 0;        ///< 4·heads·len²·dim, half of it where causal
  double of_peak = 0;       ///< median of the ratios to the peak of the same round
};

struct Timing {
  int threads = 1;
  std::string isa;
  double peak_gflops = 0;  ///< median
  std::vector<TimingRow> rows;
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const TimingOptions& options);

ROOTDK_API Timing time_forward(const TimingOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
