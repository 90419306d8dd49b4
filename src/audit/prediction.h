// What softmax makes of a head's scores, for hundreds of heads: the quadrature of theory/gaussian_softmax.h at a few spreads, and
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

/// For one number of keys. Row i of a head has its own spread, ‖W_k·qᵢ‖: its square has mean σ² and the variance of σ²·χ²_r/r, where r
/// is the head's effective rank; predictions are averaged over that.
class PredictionTable {
 public:
  /// For all spreads that averages over these heads' rows ask for. Runs on all threads.
  struct Wanted {
    double sigma = 0, effective_rank = 1;
  };
  PredictionTable(double keys, std::span<const Wanted> heads);

  Prediction at(double sigma, double effective_rank) const;

 private:
  Prediction of_row(double sigma) const;

  double keys_;
  std::int64_t first_ = 0;            // nodes_[i] is at ln σ = (first_ + i)·step
  std::vector<Prediction> nodes_;     // logarithms where that is smoother
};

}  // namespace rootdk::audit
