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

HeadStats reduce_rows(std::span<const RowRecord> rows);

}  // namespace rootdk::base
