// What queries of one rank see of keys of another, as problems that the engine knows.
#pragma once

#include <array>
#include <iterator>
#include <memory>
#include <vector>

#include "base/visibility.h"
#include "rootdk/distributed/layout.h"
#include "rootdk/problem.h"

namespace rootdk::distributed {

/// One call of the engine: some batch items, a run of queries, a run of keys, numbered as in the whole sequence.
struct Tile {
  Piece items, queries, keys;
  std::int64_t offset = 0;  ///< where the first query stands, counted from the first key
  /// Where documents begin, and their end, from the first query and the first key; empty for one document. Each has the
  /// same offset.
  std::vector<std::int64_t> q_starts = {}, kv_starts = {};
};

/// Ascending in items, queries and keys. `mask` and `shape` are those of the whole sequence. What causal masks, windows
/// and documents hide altogether is left out, and neighbouring documents that can share a call do.
std::vector<Tile> tiles_of(const Mask& mask, const Shape& shape, const Pieces& queries, const Pieces& keys);

/// The mask of one tile: all but `allowed`, `bias` and ALiBi, which are copied as they are. Owns its arrays.
struct TileMask {
  TileMask(const Mask& whole, const Tile& tile);
  TileMask(const TileMask&) = delete;
  TileMask& operator=(const TileMask&) = delete;

  Mask mask;

 private:
  std::array<std::vector<std::int64_t>, std::size(base::kPerItem)> per_item_;
};

}  // namespace rootdk::distributed
