// What statistics leave in a workspace: at its beginning, before what the kernel asked for.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/arena.h"
#include "base/block_record.h"
#include "base/row_record.h"
#include "rootdk/plan.h"

namespace rootdk::engine {

struct ForwardRecords {
  base::RowRecord* rows;   ///< [batch, heads_q, len_q]; null when no statistics are wanted
  base::FullRecord* full;  ///< likewise, below StatsLevel::kFull
  Causes* causes;          ///< [batch, heads_q]; the same
  std::int64_t* gaps;      ///< [batch, heads_q, bins]; null unless asked for

  static ForwardRecords take(base::Arena& arena, const Plan& plan) {
    const Shape& s = plan.shape;
    const StatsLevel level = plan.problem.stats;
    const std::int64_t heads = s.batch * s.heads_q;
    ForwardRecords records{};
    if (level == StatsLevel::kNone || heads * s.len_q == 0) return records;
    records.rows = arena.take<base::RowRecord>(heads * s.len_q);
    if (level == StatsLevel::kFull) records.full = arena.take<base::FullRecord>(heads * s.len_q);
    if (level == StatsLevel::kFull && plan.problem.stats_options.causes) records.causes = arena.take<Causes>(heads);
    if (plan.problem.stats_options.gaps) records.gaps = arena.take<std::int64_t>(heads * GapHistogram::kBins);
    return records;
  }
};

struct BackwardRecords {
  HeadGradients* heads;  ///< [batch, heads_q]; null below StatsLevel::kFull

  static BackwardRecords take(base::Arena& arena, const Plan& plan) {
    const bool full = plan.problem.stats == StatsLevel::kFull;
    return {full ? arena.take<HeadGradients>(plan.shape.batch * plan.shape.heads_q) : nullptr};
  }
};

/// Behind all else in a GPU's workspace: room for rows reduced by the block. Where each row is wanted they stay as they
/// are.
inline std::size_t block_bytes(const Plan& plan) {
  const Shape& s = plan.shape;
  const StatsOptions& options = plan.problem.stats_options;
  const StatsLevel level = plan.problem.stats;
  if (plan.pass != Pass::kForward || level == StatsLevel::kNone || options.by_keys ||
      (level == StatsLevel::kFull && options.sample == 1))
    return 0;
  base::Arena arena;
  if (s.batch * s.heads_q * s.len_q > 0)
    arena.take<base::BlockRecord>(s.batch * s.heads_q * base::block_count(options, s.len_q));
  return arena.used();
}

inline std::size_t records_bytes(const Plan& plan) {
  base::Arena arena;
  if (plan.pass == Pass::kForward) ForwardRecords::take(arena, plan);
  else BackwardRecords::take(arena, plan);
  return arena.used();
}

}  // namespace rootdk::engine
