// What a call of the engine takes beside its tensors: the workspace, and the statistics that it returns.
#pragma once

#include "rootdk/plan.h"
#include "rootdk/stats.h"

namespace rootdk::engine {

/// Of one head of one batch item.
inline double bytes_of_head_stats(StatsLevel level) {
  if (level == StatsLevel::kNone) return 0;
  const double histograms = level == StatsLevel::kFull ? 3.0 * Histogram::kBins * sizeof(std::int64_t) : 0;
  return sizeof(HeadStats) + histograms;
}

inline double bytes_of_call(const Problem& problem, const Shape& shape, Pass pass = Pass::kForward) {
  const double workspace = static_cast<double>(make_plan(problem, shape, pass).workspace_bytes);
  const double heads = static_cast<double>(shape.batch) * static_cast<double>(shape.heads_q);
  return workspace + (pass == Pass::kForward ? heads * bytes_of_head_stats(problem.stats) : 0);
}

}  // namespace rootdk::engine
