// What softmax makes of a head's scores, for hundreds of heads: theory::rough_softmax at a few spreads, and
// interpolation between them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rootdk::audit {

struct Prediction {
  double entropy = 0;
  double sum_p2 = 0;
  double p_max = 0;
};

/// One of the spreads that rows of a head have, over the head's own, and how much of the head is like that.
struct RowSpread {
  double factor, weight;
};

/// Row i of a head has its own spread, ‖W_k·qᵢ‖: its square has mean σ² and the variance of σ²·χ²_r/r, where r is the
/// head's effective rank.
std::vector<RowSpread> spread_of_rows(double effective_rank);

/// For one number of keys, and rows of every spread from `least` to `most`.
class PredictionTable {
 public:
  /// Runs on all threads.
  PredictionTable(double keys, double least, double most);

  /// Averaged over the rows of a head of this σ.
  Prediction at(double sigma, std::span<const RowSpread> rows) const;

 private:
  Prediction of_row(double sigma) const;

  double keys_;
  std::int64_t first_ = 0;         // nodes_[i] is at ln σ = (first_ + i)·step
  std::vector<Prediction> nodes_;  // logarithms where that is smoother
};

}  // namespace rootdk::audit
