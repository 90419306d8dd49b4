// From what a kernel left in the workspace to the statistics of a head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/visibility.h"
#include "engine/records.h"

namespace rootdk::engine {

/// Mean of c² over the queries that are not padding.
inline double scale_square(const Plan& plan, std::int64_t batch, std::int64_t head) {
  const auto square = [&](const ScaleRow& row) {
    const double c = plan.problem.scale.factor(head, plan.shape.dim_qk, row);
    return c * c;
  };
  if (!plan.problem.scale.by_row()) return square({});
  double sum = 0, queries = 0;
  for (std::int64_t i = 0; i < plan.shape.len_q; ++i) {
    if (!base::is_query(plan.problem.mask, plan.shape, batch, i)) continue;
    sum += square(base::visible_keys(plan.problem.mask, plan.shape, batch, i).scale_row()), ++queries;
  }
  return queries > 0 ? sum / queries : 0;
}

/// With `blocks`, of all heads, only rows that were sampled are looked at.
inline HeadStats reduce_head(const Plan& plan, const ForwardRecords& records, std::int64_t index,
                             const base::BlockRecord* blocks = nullptr) {
  const auto rows = static_cast<std::size_t>(plan.shape.len_q);
  const std::size_t first = static_cast<std::size_t>(index) * rows;
  std::span<const base::FullRecord> full;
  if (records.full) full = {records.full + first, rows};
  const StatsOptions& options = plan.problem.stats_options;
  const auto in_blocks = [&] {
    const auto count = static_cast<std::size_t>(base::block_count(options, plan.shape.len_q));
    return base::reduce_blocks({blocks + static_cast<std::size_t>(index) * count, count}, {records.rows + first, rows},
                               full, options);
  };
  HeadStats head = blocks ? in_blocks() : base::reduce_rows({records.rows + first, rows}, full, options);
  if (records.causes) {
    head.causes = records.causes[index];
    head.causes.weight = static_cast<double>(head.row_count);
    head.causes.scale_square = scale_square(plan, index / plan.shape.heads_q, index % plan.shape.heads_q);
  }
  if (records.gaps)
    head.gaps.counts.assign(records.gaps + index * GapHistogram::kBins,
                            records.gaps + (index + 1) * GapHistogram::kBins);
  return head;
}

}  // namespace rootdk::engine
