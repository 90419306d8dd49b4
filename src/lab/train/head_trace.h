// From the statistics of a forward pass to what the log keeps of them.
#pragma once

#include <vector>

#include "rootdk/lab/train/run.h"
#include "rootdk/stats.h"

namespace rootdk::lab {

/// One per head, over all sequences of the batch; at StatsLevel::kFull.
std::vector<HeadTrace> head_traces(const Stats& stats);

}  // namespace rootdk::lab
