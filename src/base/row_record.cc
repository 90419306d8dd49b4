#include "base/row_record.h"

#include <algorithm>
#include <limits>

namespace rootdk::base {

HeadStats reduce_rows(std::span<const RowRecord> rows) {
  HeadStats head;
  head.rows = static_cast<std::int64_t>(rows.size());
  double raw_max = -std::numeric_limits<double>::infinity();
  double score_max = raw_max, p_max = 0, lse = 0;
  std::int64_t counted = 0;
  for (const RowRecord& row : rows) {
    head.rows_masked += row.visible == 0;
    head.rows_short += row.visible < 2;
    head.rows_not_finite += !row.finite;
    if (!row.finite) continue;
    raw_max = std::max(raw_max, row.raw_max);
    score_max = std::max(score_max, row.score_max);
    if (row.visible < 2) continue;
    p_max += row.p_max;
    lse += row.lse;
    ++counted;
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  head.raw_max = static_cast<float>(raw_max);
  head.score_max = static_cast<float>(score_max);
  head.mean_p_max = counted ? p_max / static_cast<double>(counted) : nan;
  head.mean_lse = counted ? lse / static_cast<double>(counted) : nan;
  return head;
}

}  // namespace rootdk::base
