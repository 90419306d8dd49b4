#include "nn/positions.h"

#include <cstddef>
#include <numeric>
#include <span>

namespace rootdk::nn {

namespace {

std::int64_t diagonal_offset(const Diagonal& diagonal, std::int64_t len_q, std::int64_t len_kv,
                             std::int64_t key_length) {
  switch (diagonal.kind) {
    case Diagonal::Kind::kBottomRight: return len_kv - len_q;
    case Diagonal::Kind::kTopLeft: return 0;
    case Diagonal::Kind::kLastKey: return key_length - len_q;
    case Diagonal::Kind::kAt: return diagonal.offset;
  }
  return 0;
}

}  // namespace

std::vector<std::int64_t> query_positions(const Mask& mask, const Shape& s) {
  if (mask.documents) {
    const std::span<const std::int64_t> q = mask.documents->q_starts, kv = mask.documents->kv_starts;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(s.len_q), 0);
    for (std::size_t d = 0; d + 1 < q.size(); ++d) {
      const std::int64_t offset = diagonal_offset(mask.diagonal, q[d + 1] - q[d], kv[d + 1] - kv[d], 0);
      for (std::int64_t i = q[d]; i < q[d + 1]; ++i)
        positions[static_cast<std::size_t>(i)] = kv[d] + (i - q[d]) + offset;
    }
    return positions;
  }
  const bool per_item = mask.diagonal.kind == Diagonal::Kind::kLastKey;
  std::vector<std::int64_t> positions;
  for (std::int64_t b = 0; b < (per_item ? s.batch : 1); ++b) {
    const std::int64_t key_length = per_item ? mask.key_lengths[static_cast<std::size_t>(b)] : 0;
    const std::int64_t offset = diagonal_offset(mask.diagonal, s.len_q, s.len_kv, key_length);
    for (std::int64_t i = 0; i < s.len_q; ++i) positions.push_back(i + offset);
  }
  return positions;
}

std::vector<std::int64_t> key_positions(const Shape& s) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(s.len_kv));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  return positions;
}

}  // namespace rootdk::nn
