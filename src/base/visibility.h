// The structural masks (causal, window, key starts and lengths, query lengths, documents) leave each query one run of
// consecutive keys. This is where that run is worked out, once, for every kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/constants.h"
#include "rootdk/problem.h"

namespace rootdk::base {

struct KeyRange {
  std::int64_t begin = 0;     ///< first key that may be seen
  std::int64_t end = 0;       ///< one past the last; begin == end means none
  std::int64_t position = 0;  ///< where the query stands among the keys: ALiBi measures from here
  std::int64_t origin = 0;    ///< first key of the query's document or item: positions count from there

  bool empty() const { return begin >= end; }
  ScaleRow scale_row() const { return {end - begin, position - origin}; }
};

/// False for rows that are padding: statistics leave them out.
inline bool is_query(const Mask& mask, std::int64_t batch, std::int64_t query) {
  return mask.query_lengths.empty() || query < mask.query_lengths[static_cast<std::size_t>(batch)];
}

/// Of the queries or keys of a document.
struct Span {
  std::int64_t begin, end;
};

struct Document {
  Span queries, keys;
};

/// The document that owns a query, or empty spans; the whole of both axes where there are none.
inline Document document_of(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  if (!mask.documents) return {{0, shape.len_q}, {0, shape.len_kv}};
  std::span<const std::int64_t> q = mask.documents->q_starts, kv = mask.documents->kv_starts;
  if (mask.documents->items > 0) {
    const std::size_t count = q.size() / static_cast<std::size_t>(mask.documents->items),
                      first = static_cast<std::size_t>(batch) * count;
    q = q.subspan(first, count), kv = kv.subspan(first, count);
  }
  const auto after = std::upper_bound(q.begin(), q.end(), query);  // skips empty documents
  if (after == q.begin() || after == q.end()) return {{0, 0}, {0, 0}};
  const auto d = static_cast<std::size_t>(after - q.begin()) - 1;
  return {{q[d], q[d + 1]}, {kv[d], kv[d + 1]}};
}

/// Of an array with one entry per batch item, or none.
inline std::int64_t entry(std::span<const std::int64_t> per_item, std::int64_t batch, std::int64_t otherwise) {
  return per_item.empty() ? otherwise : per_item[static_cast<std::size_t>(batch)];
}

inline std::int64_t position_in(const Document& document, const Mask& mask, const Shape& shape, std::int64_t batch,
                                std::int64_t query) {
  std::int64_t offset = (document.keys.end - document.keys.begin) - (document.queries.end - document.queries.begin);
  switch (mask.diagonal.kind) {
    case Diagonal::Kind::kBottomRight: break;
    case Diagonal::Kind::kTopLeft: offset = 0; break;
    case Diagonal::Kind::kAt: offset = mask.diagonal.offset; break;
    case Diagonal::Kind::kLastKey:
      offset = entry(mask.key_lengths, batch, shape.len_kv) - entry(mask.query_lengths, batch, shape.len_q);
      break;
  }
  return document.keys.begin + (query - document.queries.begin) + offset;
}

inline bool owns_nothing(const Document& document) { return document.queries.begin == document.queries.end; }

/// Where the query stands among the keys; 0 if it belongs to no document.
inline std::int64_t position_of(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  const Document document = document_of(mask, shape, batch, query);
  return owns_nothing(document) ? 0 : position_in(document, mask, shape, batch, query);
}

inline KeyRange visible_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  const Document document = document_of(mask, shape, batch, query);
  if (owns_nothing(document) || !is_query(mask, batch, query)) return {};

  KeyRange range;
  range.position = position_in(document, mask, shape, batch, query);
  range.begin = range.origin = std::max(document.keys.begin, entry(mask.key_starts, batch, 0));
  range.end = std::min(document.keys.end, entry(mask.key_lengths, batch, shape.len_kv));
  if (mask.causal) range.end = std::min(range.end, range.position + 1);
  if (mask.window) {
    range.begin = std::max(range.begin, range.position - std::min(mask.window->left, kFar));
    range.end = std::min(range.end, range.position + std::min(mask.window->right, kFar) + 1);
  }
  if (range.begin >= range.end) range.begin = range.end = 0;
  return range;
}

/// True if every query sees every key, as far as structural masks go.
bool sees_everything(const Mask& mask);

/// Marks the keys of a batch item that a query of any head of a group sees, by structural masks, boolean masks and
/// biases: 1, and 0 for the others. `seen` is [len_kv].
void mark_seen_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t kv_head, std::uint8_t* seen);

}  // namespace rootdk::base
