// A tile's rows looked up: keys from the mask, scale and ALiBi slope by head, and the run of keys that all rows see.
#include "cpu/lanes.h"

#include <algorithm>
#include <limits>

namespace rootdk::cpu {

void Lanes::fill(const Plan& plan, const RowGroup& group, std::int64_t first_row, int rows, int width) {
  const Shape& s = plan.shape;
  const Problem& problem = plan.problem;
  batch = group.batch;
  count = rows;
  first_key = std::numeric_limits<std::int64_t>::max();
  last_key = 0;
  all_from = 0;
  all_to = std::numeric_limits<std::int64_t>::max();
  // What is the same for every row is looked up once: short sequences spend their time here.
  const bool scale_by_row = problem.scale.by_row();
  const bool all_the_same = base::sees_everything(problem.mask) && problem.mask.alibi_slopes.empty() && !scale_by_row;
  const base::KeyRange everything{0, s.len_kv, 0, 0};
  std::int64_t scaled_head = -1;
  double head_scale = 0;
  for (int lane = 0; lane < width; ++lane) {
    if (lane >= rows) {  // computed along and thrown away
      begin[lane] = 0, end[lane] = std::numeric_limits<std::int32_t>::max(), position[lane] = 0;
      head[lane] = query[lane] = 0, scale[lane] = slope[lane] = 0;
      continue;
    }
    const std::int64_t row = first_row + lane;
    const std::int64_t h = group.first_head + row / s.len_q, i = row % s.len_q;
    const base::KeyRange range = all_the_same ? everything : base::visible_keys(problem.mask, s, batch, i);
    if (h != scaled_head) {
      scaled_head = h;
      head_scale = problem.scale.factor(h, s.dim_qk);
    }
    begin[lane] = static_cast<std::int32_t>(range.begin);
    end[lane] = static_cast<std::int32_t>(range.end);
    position[lane] = static_cast<std::int32_t>(range.position);
    head[lane] = static_cast<std::uint32_t>(h);
    query[lane] = static_cast<std::uint32_t>(i);
    scale[lane] =
        static_cast<float>(scale_by_row ? head_scale * problem.scale.length_factor(h, range.scale_row()) : head_scale);
    slope[lane] = problem.mask.alibi_slopes.empty() ? 0 : problem.mask.alibi_slopes[static_cast<std::size_t>(h)];
    all_from = std::max(all_from, range.begin);
    all_to = std::min(all_to, range.end);
    if (range.empty()) continue;
    first_key = std::min(first_key, range.begin);
    last_key = std::max(last_key, range.end);
  }
  if (last_key == 0) first_key = 0;
}

}  // namespace rootdk::cpu
