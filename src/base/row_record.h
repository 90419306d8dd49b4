// What a kernel leaves behind for every row, and how rows become per-head statistics. Kernels write records in any
// order; the reduction runs over rows in order, so its bits do not depend on threads.
#pragma once

#include <cstdint>
#include <span>

#include "base/on_both.h"
#include "rootdk/stats.h"

namespace rootdk::base {

struct RowRecord {
  double raw_max, score_max, p_max, lse;
  std::int32_t visible;  ///< keys, saturating; −1: the row is padding, which no statistic counts
  bool finite;           ///< output and lse
};

/// Moments of a row's visible scores.
struct RowMoments {
  double mean = 0, m2 = 0, min = 0;
  std::int32_t argmax =
      -1;  ///< first key with the row's maximum; may be left out where another row of the head has a larger one
};

/// At StatsLevel::kFull, beside RowRecord, for rows that are sampled.
struct FullRecord {
  RowMoments raw, score;
#define ROOTDK_ROW_NUMBER(name, merged) double name;
#include "rootdk/statistics.def"
};

/// Whether full statistics look at query i of the problem. Options: StatsOptions, or whatever has its fields.
template <class Options>
ROOTDK_ON_BOTH inline bool is_sampled(const Options& options, std::int64_t i) {
  return (options.first_query + i) / kSampleBlock % options.sample == options.sample_offset;
}

/// The rows of one head; `full` is empty below kFull.
HeadStats reduce_rows(std::span<const RowRecord> rows, std::span<const FullRecord> full, const StatsOptions& options);

}  // namespace rootdk::base
