// What a kernel leaves behind for every row, and how rows become per-head statistics. Kernels write records in any order;
// the reduction runs over rows in order, so its bits do not depend on threads.
#pragma once

#include <cstdint>
#include <span>

#include "rootdk/stats.h"

namespace rootdk::base {

struct RowRecord {
  double raw_max, score_max, p_max, lse;
  std::int32_t visible;  ///< keys, saturating
  bool finite;           ///< output and lse
};

/// Moments of a row's visible scores.
struct RowMoments {
  double mean = 0, m2 = 0, min = 0;
  std::int32_t argmax = -1;  ///< first key with the row's maximum; may be left out where another row of the head has a larger one
};

/// At StatsLevel::kFull, beside RowRecord.
struct FullRecord {
  RowMoments raw, score;
  double entropy, sum_p2, sum_p3, sink_mass;
};

/// `full` is empty below kFull.
HeadStats reduce_rows(std::span<const RowRecord> rows, std::span<const FullRecord> full);

}  // namespace rootdk::base
