// Rows by the block of 64 queries: what a GPU makes of those that nobody looks at one by one, so that they need not
// travel.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/row_record.h"

namespace rootdk::base {

#ifdef __CUDACC__
#define ROOTDK_ON_BOTH __host__ __device__
#else
#define ROOTDK_ON_BOTH
#endif

/// What the rows of a block of queries come to, where nobody looks at each of them.
struct BlockRecord {
  double raw_max, score_max;                            ///< over finite rows that see a key; −inf without
  double p_max, lse;                                    ///< sums over the rows that are counted
  std::int32_t rows, masked, few, not_finite, counted;  ///< `few`: fewer than two visible keys

  ROOTDK_ON_BOTH static BlockRecord none() { return {-HUGE_VAL, -HUGE_VAL, 0, 0, 0, 0, 0, 0, 0}; }

  ROOTDK_ON_BOTH void add(const RowRecord& row) {
    rows += 1;
    masked += row.visible == 0;
    few += row.visible < 2;
    not_finite += !row.finite;
    if (!row.finite || row.visible == 0) return;
    raw_max = row.raw_max > raw_max ? row.raw_max : raw_max;
    score_max = row.score_max > score_max ? row.score_max : score_max;
    if (row.visible < 2) return;
    p_max += row.p_max;
    lse += row.lse;
    counted += 1;
  }
};

/// Blocks of queries are numbered from `first_query` on, so the first of a problem may be short.
inline std::int64_t block_end(const StatsOptions& options, std::int64_t query, std::int64_t len_q) {
  const std::int64_t end = ((options.first_query + query) / kSampleBlock + 1) * kSampleBlock - options.first_query;
  return end < len_q ? end : len_q;
}
inline std::int64_t block_count(const StatsOptions& options, std::int64_t len_q) {
  return (options.first_query % kSampleBlock + len_q + kSampleBlock - 1) / kSampleBlock;
}

/// What reduce_rows gives, up to rounding, from the blocks of one head; rows and full records are read where they were
/// sampled.
HeadStats reduce_blocks(std::span<const BlockRecord> blocks, std::span<const RowRecord> rows,
                        std::span<const FullRecord> full, const StatsOptions& options);

}  // namespace rootdk::base
