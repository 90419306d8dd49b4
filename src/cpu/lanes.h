// Who sits in the lanes of a tile: for each of its rows, which query it is and which keys it may see.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/visibility.h"
#include "rootdk/plan.h"

namespace rootdk::cpu {

inline constexpr int kMaxTileRows = 64;

/// Rows come in groups that share keys and values: all queries of one head or, packed, of all heads that read one key
/// head.
struct RowGroup {
  std::int64_t batch, kv_head, first_head;
  std::int64_t rows;  ///< row r is query r % len_q of head first_head + r / len_q
};

inline std::int64_t row_group_count(const Plan& plan) {
  return plan.shape.batch * (plan.pack_group ? plan.shape.heads_kv : plan.shape.heads_q);
}

inline RowGroup row_group(const Plan& plan, std::int64_t index) {
  const Shape& s = plan.shape;
  if (plan.pack_group)
    return {index / s.heads_kv, index % s.heads_kv, index % s.heads_kv * s.group(), s.group() * s.len_q};
  return {index / s.heads_q, index % s.heads_q / s.group(), index % s.heads_q, s.len_q};
}

struct alignas(64) Lanes {
  std::int32_t begin[kMaxTileRows], end[kMaxTileRows];  ///< visible keys; lanes without a row see everything
  std::int32_t position[kMaxTileRows];                  ///< of the query among the keys
  std::uint32_t head[kMaxTileRows], query[kMaxTileRows];
  float scale[kMaxTileRows], slope[kMaxTileRows];  ///< c, and ALiBi's slope
  std::int64_t batch;
  int count;                         ///< lanes in use
  std::int64_t first_key, last_key;  ///< some row sees keys only within [first_key, last_key)
  std::int64_t all_from, all_to;     ///< every row sees [all_from, all_to)

  /// Fills in rows first_row … first_row + rows − 1 of a group.
  void fill(const Plan& plan, const RowGroup& group, std::int64_t first_row, int rows, int width);

  bool sees_block(std::int64_t key0, std::int64_t keys) const { return first_key < key0 + keys && key0 < last_key; }
  bool all_see(std::int64_t key0, std::int64_t keys) const { return all_from <= key0 && key0 + keys <= all_to; }
};

/// A tile's place: `keys` keys from key0 on, against the rows in `lanes`.
struct TilePlace {
  const Lanes& lanes;
  std::int64_t key0;
  std::size_t keys;

  bool out_of_range_somewhere() const { return !lanes.all_see(key0, static_cast<std::int64_t>(keys)); }
};

}  // namespace rootdk::cpu
