// Batch items merged, then σ, entropy, p_max and the largest score of each head.
#include "lab/train/head_trace.h"

#include <cmath>

namespace rootdk::lab {

std::vector<HeadTrace> head_traces(const Stats& stats) {
  std::vector<HeadTrace> traces;
  for (std::int64_t head = 0; head < stats.heads; ++head) {
    auto all = stats.at(0, head);
    for (std::int64_t b = 1; b < stats.batch; ++b) all = merge(all, stats.at(b, head));
    traces.push_back({static_cast<float>(std::sqrt(all.score.within_row_variance())),
                      static_cast<float>(all.softmax.entropy), static_cast<float>(all.mean_p_max), all.score_max});
  }
  return traces;
}

}  // namespace rootdk::lab
