// Rows by the block of 64 queries: what a GPU makes of those that nobody looks at one by one, so that they need not
// travel.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/on_both.h"
#include "base/row_record.h"

namespace rootdk::base {

/// What the rows of a block of queries come to, where nobody looks at each of them: maxima over finite rows that see a
/// key (−inf without), sums over the rows that are counted, and numbers of rows.
struct BlockRecord {
#define ROOTDK_MAXIMUM(name, doc) double name;
#define ROOTDK_MEAN(name, value, doc) double name;
#include "rootdk/statistics.def"
#define ROOTDK_COUNT_basic(name, when) std::int32_t name;
#define ROOTDK_COUNT_full(name, when)
#define ROOTDK_ROW_COUNT(level, name, when, doc) ROOTDK_COUNT_##level(name, when)
#include "rootdk/statistics.def"

  ROOTDK_ON_BOTH static BlockRecord none() {
    BlockRecord out = {};
#define ROOTDK_MAXIMUM(name, doc) out.name = -HUGE_VAL;
#include "rootdk/statistics.def"
    return out;
  }

  ROOTDK_ON_BOTH void add(const RowRecord& row) {
    if (row.visible < 0) return;  // padding
#undef ROOTDK_COUNT_basic
#define ROOTDK_COUNT_basic(name, when) name += when;
#define ROOTDK_ROW_COUNT(level, name, when, doc) ROOTDK_COUNT_##level(name, when)
#include "rootdk/statistics.def"
    if (!row.finite || row.visible == 0) return;
#define ROOTDK_MAXIMUM(name, doc) name = row.name > name ? row.name : name;
#include "rootdk/statistics.def"
    if (row.visible < 2) return;
#define ROOTDK_MEAN(name, value, doc) name += value;
#include "rootdk/statistics.def"
  }

  /// Calls `largest` with each maximum and `sum` with each sum and number.
  template <class Largest, class Sum>
  ROOTDK_ON_BOTH void each(const Largest& largest, const Sum& sum) {
#define ROOTDK_MAXIMUM(name, doc) largest(name);
#define ROOTDK_MEAN(name, value, doc) sum(name);
#include "rootdk/statistics.def"
#undef ROOTDK_COUNT_basic
#define ROOTDK_COUNT_basic(name, when) sum(name);
#define ROOTDK_ROW_COUNT(level, name, when, doc) ROOTDK_COUNT_##level(name, when)
#include "rootdk/statistics.def"
#undef ROOTDK_COUNT_basic
#undef ROOTDK_COUNT_full
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
