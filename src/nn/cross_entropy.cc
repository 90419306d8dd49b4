// Rows shifted by their maximum, in double; chunks of rows are summed in order.
#include "rootdk/nn/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "nn/chunks.h"
#include "nn/sizes.h"

namespace rootdk::nn {

template <class T>
CrossEntropy cross_entropy(std::int64_t vocabulary, Values<const T> logits, std::span<const std::int32_t> targets,
                           Values<T> d_logits) {
  check_size("vocabulary", vocabulary);
  const std::int64_t rows = rows_in("logits", logits.size(), vocabulary);
  check_rows("targets", targets.size(), rows, 1);
  if (!d_logits.empty()) check_rows("d_logits", d_logits.size(), rows, vocabulary);
  CrossEntropy result;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == kNoTarget) continue;
    if (targets[r] < 0 || targets[r] >= vocabulary)
      base::refuse("targets[{}]: {}, but 0 to {} is wanted, or {} for none", r, targets[r], vocabulary - 1, kNoTarget);
    ++result.rows;
  }

  struct Sum {
    double loss = 0;
    std::int64_t right = 0;
  };
  std::vector<Sum> sums(static_cast<std::size_t>(chunks_in(rows)));
  const double share = result.rows > 0 ? 1 / static_cast<double>(result.rows) : 0;
  for_each_chunk(rows, [&](std::int64_t chunk, std::int64_t first, std::int64_t last) {
    std::vector<double> e(static_cast<std::size_t>(vocabulary));
    Sum& sum = sums[static_cast<std::size_t>(chunk)];
    for (std::int64_t r = first; r < last; ++r) {
      const std::int32_t target = targets[static_cast<std::size_t>(r)];
      const std::span<const T> row =
          logits.subspan(static_cast<std::size_t>(r * vocabulary), static_cast<std::size_t>(vocabulary));
      if (target == kNoTarget) {
        if (!d_logits.empty()) std::fill_n(d_logits.data() + r * vocabulary, vocabulary, T(0));
        continue;
      }
      const auto largest = std::max_element(row.begin(), row.end());
      const double shift = static_cast<double>(*largest);
      double total = 0;
      for (std::size_t c = 0; c < row.size(); ++c) total += e[c] = std::exp(static_cast<double>(row[c]) - shift);
      sum.loss += std::log(total) + shift - static_cast<double>(row[static_cast<std::size_t>(target)]);
      sum.right += largest - row.begin() == target ? 1 : 0;
      if (d_logits.empty()) continue;
      T* const d = d_logits.data() + r * vocabulary;
      for (std::size_t c = 0; c < row.size(); ++c)
        d[c] = static_cast<T>(share * (e[c] / total - (static_cast<std::int32_t>(c) == target ? 1 : 0)));
    }
  });
  std::int64_t right = 0;
  for (const Sum& sum : sums) {
    result.loss += sum.loss;
    right += sum.right;
  }
  result.loss *= share;
  result.accuracy = static_cast<double>(right) * share;
  return result;
}

template CrossEntropy cross_entropy<float>(std::int64_t, Values<const float>, std::span<const std::int32_t>,
                                           Values<float>);
template CrossEntropy cross_entropy<double>(std::int64_t, Values<const double>, std::span<const std::int32_t>,
                                            Values<double>);

}  // namespace rootdk::nn
