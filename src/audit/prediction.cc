// A lattice over ln σ filled by quadrature, read by polynomials, and averaged over how ‖q‖ spreads.
#include "audit/prediction.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::audit {

namespace {

// Between nodes, a polynomial through eight of them. H, ln Σp² and ln p_max are smooth over ln σ, though they turn
// quickly where the head begins to freeze: a step of 0.2 keeps them within 1e-3 of the quadrature
// (tests/audit/heads_test.cc).
constexpr double kTableStep = 0.2;
constexpr std::int64_t kTablePoints = 8;
// Beyond, nothing changes that anybody could see: all keys get the same, or one takes all.
constexpr double kLeast = 0.01, kMost = 1e6;

Prediction node_at(double sigma, double keys) {
  const theory::RoughSoftmax softmax = theory::rough_softmax(sigma, keys);
  return {softmax.entropy, std::log(softmax.sum_p2), std::log(softmax.p_max)};
}

}  // namespace

// √(χ²_r/r) at a few places: midpoints in probability would need quantiles, so a lattice in y = ln(χ²/r), whose density
// is proportional to e^{(r/2)(y − e^y)}. Narrow for large r; cut where the density is 1e-6, and on the left where y can
// no longer matter.
std::vector<RowSpread> spread_of_rows(double effective_rank) {
  // Beyond, rows are alike to 1e-4 of themselves; and y + 1 − e^y loses all its digits at 1e16, where nodes would not
  // end.
  constexpr double kMostRank = 1e8;
  const double half = std::clamp(effective_rank, 1.0, kMostRank) / 2, step = std::min(0.25, 0.7 / std::sqrt(half));
  std::vector<RowSpread> nodes;
  double total = 0;
  const auto add = [&](double y) {
    const double density = std::exp(half * (y + 1 - std::exp(y)));
    nodes.push_back({std::exp(y / 2), density});
    total += density;
    return density > 1e-6 && y > -20;
  };
  for (int i = 0; add(i * step);) ++i;
  for (int i = 1; add(-i * step);) ++i;
  for (RowSpread& node : nodes) node.weight /= total;
  return nodes;
}

PredictionTable::PredictionTable(double keys, double least, double most) : keys_(keys) {
  const double low = std::clamp(least, kLeast, kMost), high = std::clamp(most, kLeast, kMost);
  if (!(low <= high)) return;
  first_ = static_cast<std::int64_t>(std::floor(std::log(low) / kTableStep)) - kTablePoints / 2 + 1;
  const auto last = static_cast<std::int64_t>(std::floor(std::log(high) / kTableStep)) + kTablePoints / 2;
  nodes_.resize(static_cast<std::size_t>(last - first_ + 1));
  base::parallel_tasks(last - first_ + 1, base::free_threads(), [&](std::int64_t i, int) {
    nodes_[static_cast<std::size_t>(i)] = node_at(std::exp(static_cast<double>(first_ + i) * kTableStep), keys_);
  });
}

Prediction PredictionTable::of_row(double sigma) const {
  if (sigma < kLeast) return {std::log(keys_), 1 / keys_, 1 / keys_};
  // Places on the lattice, not in the table: what comes out does not depend on which other rows the table is for.
  const double x = std::log(std::min(sigma, kMost)) / kTableStep;
  const auto end = first_ + static_cast<std::int64_t>(nodes_.size());
  const std::int64_t begin = std::clamp(static_cast<std::int64_t>(std::floor(x)) - kTablePoints / 2 + 1, first_,
                                        std::max(first_, end - kTablePoints));
  Prediction out;
  for (std::int64_t i = begin; i < std::min(begin + kTablePoints, end); ++i) {
    double weight = 1;
    for (std::int64_t j = begin; j < std::min(begin + kTablePoints, end); ++j)
      if (j != i) weight *= (x - static_cast<double>(j)) / static_cast<double>(i - j);
    const Prediction& node = nodes_[static_cast<std::size_t>(i - first_)];
    out.entropy += weight * node.entropy;
    out.sum_p2 += weight * node.sum_p2;
    out.p_max += weight * node.p_max;
  }
  return {std::clamp(out.entropy, 0.0, std::log(keys_)), std::clamp(std::exp(out.sum_p2), 1 / keys_, 1.0),
          std::clamp(std::exp(out.p_max), 1 / keys_, 1.0)};
}

Prediction PredictionTable::at(double sigma, std::span<const RowSpread> rows) const {
  if (!(sigma > 0) || nodes_.empty()) return {std::log(keys_), 1 / keys_, 1 / keys_};
  Prediction out;
  for (const RowSpread& node : rows) {
    const Prediction row = of_row(sigma * node.factor);
    out.entropy += node.weight * row.entropy;
    out.sum_p2 += node.weight * row.sum_p2;
    out.p_max += node.weight * row.p_max;
  }
  return out;
}

}  // namespace rootdk::audit
