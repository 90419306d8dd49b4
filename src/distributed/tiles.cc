// Documents cut by pieces of queries and keys, each with its own diagonal; then joined where they share one.
#include "distributed/tiles.h"

#include <algorithm>

#include "base/visibility.h"

namespace rootdk::distributed {

namespace {

Piece overlap(const Piece& a, const Piece& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// Whether a query of the tile sees a key of it, as far as causal masks and windows go.
bool sees(const Mask& mask, const Tile& tile) {
  const std::int64_t last = tile.offset + tile.queries.length() - 1;
  if (mask.causal && last < 0) return false;
  if (!mask.window) return true;
  const std::int64_t left = std::min(mask.window->left, base::kFar), right = std::min(mask.window->right, base::kFar);
  return last + right >= 0 && tile.offset - left < tile.keys.length();
}

/// Appends the tile, to the last one if it goes on where that ends.
void append(std::vector<Tile>& tiles, const Tile& tile) {
  if (!tiles.empty()) {
    Tile& last = tiles.back();
    if (last.items == tile.items && last.queries.end == tile.queries.begin && last.keys.end == tile.keys.begin &&
        last.offset == tile.offset) {
      if (last.q_starts.empty()) last.q_starts = {0, last.queries.length()}, last.kv_starts = {0, last.keys.length()};
      last.queries.end = tile.queries.end, last.keys.end = tile.keys.end;
      last.q_starts.push_back(last.queries.length()), last.kv_starts.push_back(last.keys.length());
      return;
    }
  }
  tiles.push_back(tile);
}

}  // namespace

std::vector<Tile> tiles_of(const Mask& mask, const Shape& shape, const Pieces& queries, const Pieces& keys) {
  const bool by_item = (mask.documents && mask.documents->items > 0) || mask.diagonal.kind == Diagonal::Kind::kLastKey;
  std::vector<Tile> tiles;
  for (std::int64_t b = 0; b < (by_item ? shape.batch : std::min<std::int64_t>(1, shape.batch)); ++b) {
    const Piece items = by_item ? Piece{b, b + 1} : Piece{0, shape.batch};
    for (const Piece& piece : queries)
      for (std::int64_t i = piece.begin; i < piece.end;) {
        const base::Document document = base::document_of(mask, shape, b, i);
        if (document.owns_nothing()) break;  // nor do those behind it
        const Piece rows = overlap(piece, {i, document.queries.end});
        for (const Piece& run : keys) {
          Tile tile{items, rows, overlap(run, {document.keys.begin, document.keys.end})};
          if (tile.keys.begin >= tile.keys.end) continue;
          tile.offset = base::position_in(document, mask, shape, b, rows.begin) - tile.keys.begin;
          if (sees(mask, tile)) append(tiles, tile);
        }
        i = rows.end;
      }
  }
  return tiles;
}

TileMask::TileMask(const Mask& whole, const Tile& tile) : mask(whole) {
  mask.diagonal = Diagonal::at(tile.offset);
  const auto within = [&](std::span<const std::int64_t> per_item, const Piece& run) {
    std::vector<std::int64_t> out;
    for (std::int64_t b = tile.items.begin; b < tile.items.end && !per_item.empty(); ++b)
      out.push_back(std::clamp<std::int64_t>(per_item[static_cast<std::size_t>(b)] - run.begin, 0, run.length()));
    return out;
  };
  for (std::size_t i = 0; i < std::size(base::kPerItem); ++i) {
    const base::PerItem& field = base::kPerItem[i];
    per_item_[i] = within(field.of(whole), field.axis == base::PerItem::Axis::q ? tile.queries : tile.keys);
    mask.*field.numbers = per_item_[i];
  }
  mask.documents = {};
  if (!tile.q_starts.empty()) mask.documents = Documents{tile.q_starts, tile.kv_starts, 0};
}

}  // namespace rootdk::distributed
