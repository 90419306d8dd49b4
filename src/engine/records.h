// Where row records lie in a forward workspace: at its beginning, when statistics are wanted.
#pragma once

#include <cstddef>

#include "base/arena.h"
#include "base/row_record.h"
#include "rootdk/plan.h"

namespace rootdk::engine {

inline std::int64_t record_count(const Plan& plan) {
  const bool wanted = plan.pass == Pass::kForward && plan.problem.stats != StatsLevel::kNone;
  return wanted ? plan.shape.batch * plan.shape.heads_q * plan.shape.len_q : 0;
}

inline std::size_t records_bytes(const Plan& plan) {
  base::Arena arena;
  arena.take<base::RowRecord>(record_count(plan));
  return arena.used();
}

}  // namespace rootdk::engine
