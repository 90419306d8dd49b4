// Where row records lie in a forward workspace: at its beginning, when statistics are wanted.
#pragma once

#include <cstddef>

#include "base/arena.h"
#include "base/row_record.h"
#include "rootdk/plan.h"

namespace rootdk::engine {

struct Records {
  base::RowRecord* rows;   ///< [batch, heads_q, len_q]; null when no statistics are wanted
  base::FullRecord* full;  ///< likewise, below StatsLevel::kFull

  static Records take(base::Arena& arena, const Plan& plan) {
    const std::int64_t count = plan.pass == Pass::kForward ? plan.shape.batch * plan.shape.heads_q * plan.shape.len_q : 0;
    const bool wanted = plan.problem.stats != StatsLevel::kNone && count > 0;
    Records records{};
    if (wanted) records.rows = arena.take<base::RowRecord>(count);
    if (wanted && plan.problem.stats == StatsLevel::kFull) records.full = arena.take<base::FullRecord>(count);
    return records;
  }
};

inline std::size_t records_bytes(const Plan& plan) {
  base::Arena arena;
  Records::take(arena, plan);
  return arena.used();
}

}  // namespace rootdk::engine
