// The diagonal's offset by kind, per batch item or document; keys simply count.
#include "nn/positions.h"

#include <cstddef>
#include <numeric>

#include "base/visibility.h"

namespace rootdk::nn {

std::vector<std::int64_t> query_positions(const Mask& mask, const Shape& s) {
  const bool per_item = mask.documents ? mask.documents->items != 0 : mask.diagonal.kind == Diagonal::Kind::kLastKey;
  std::vector<std::int64_t> positions;
  for (std::int64_t b = 0; b < (per_item ? s.batch : 1); ++b)
    for (std::int64_t i = 0; i < s.len_q; ++i) positions.push_back(base::position_of(mask, s, b, i));
  return positions;
}

std::vector<std::int64_t> key_positions(const Shape& s) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(s.len_kv));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

}  // namespace rootdk::nn
