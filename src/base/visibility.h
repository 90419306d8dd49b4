// The structural masks (causal, window, key starts and lengths, query lengths, documents) leave each query one run of
// consecutive keys. This is where that run is worked out, once, for every kernel: on the host and in kernels of a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>

#include "base/constants.h"
#include "base/on_both.h"
#include "rootdk/problem.h"

namespace rootdk::base {

/// A mask's structural parts and the lengths they are about as plain data. Arrays lie where whoever asks can read them,
/// and are null where they are absent.
struct MaskView {
  std::int64_t len_q = 0, len_kv = 0;
  bool causal = false;
  Diagonal::Kind diagonal = Diagonal::Kind::kBottomRight;
  bool documents_by_item = false;  ///< items have starts of their own, one after another
  std::int64_t diagonal_offset = 0;
  std::int64_t left = kFar, right = kFar;                                            ///< the window, no wider than that
#define ROOTDK_PER_ITEM(name, axis, words, doc) const std::int64_t* name = nullptr;  ///< [batch]
#include "rootdk/masks.def"
  const std::int64_t *q_starts = nullptr, *kv_starts = nullptr;  ///< [documents + 1], or of each item
  std::int64_t documents = 0;
};

/// What rootdk/masks.def lists, to go through.
struct PerItem {
  enum class Axis : std::uint8_t { q, kv };
  std::span<const std::int64_t> Mask::*numbers;
  const std::int64_t* MaskView::*view;
  Axis axis;
  const char *name, *words;

  const std::span<const std::int64_t>& of(const Mask& mask) const { return mask.*numbers; }
  bool in(const Mask& mask) const { return !of(mask).empty(); }
};
inline constexpr PerItem kPerItem[] = {
#define ROOTDK_PER_ITEM(name, axis, words, doc) {&Mask::name, &MaskView::name, PerItem::Axis::axis, #name, words},
#include "rootdk/masks.def"
};

/// Here and not in a file of its own: libraries above and beside the engine's ask for it, too.
inline MaskView view_of(const Mask& mask, const Shape& shape) {
  const auto data = [](std::span<const std::int64_t> values) { return values.empty() ? nullptr : values.data(); };
  const Window window = mask.window.value_or(Window{});
  MaskView view;
  view.len_q = shape.len_q, view.len_kv = shape.len_kv;
  view.causal = mask.causal;
  view.diagonal = mask.diagonal.kind, view.diagonal_offset = mask.diagonal.offset;
  view.left = std::min(window.left, kFar), view.right = std::min(window.right, kFar);
  for (const PerItem& field : kPerItem) view.*field.view = data(field.of(mask));
  if (!mask.documents) return view;
  const Documents& documents = *mask.documents;
  view.q_starts = data(documents.q_starts), view.kv_starts = data(documents.kv_starts);
  view.documents_by_item = documents.items > 0;
  view.documents = std::ssize(documents.q_starts) / std::max<std::int64_t>(1, documents.items) - 1;
  return view;
}

/// In int32 where lengths and offsets are at most 2²⁸, so that sums of three stay below 2³⁰.
template <class Int>
struct KeyRangeOf {
  Int begin;     ///< first key that may be seen
  Int end;       ///< one past the last; begin == end means none
  Int position;  ///< where the query stands among the keys: ALiBi measures from here
  Int origin;    ///< first key of the query's document or item: positions count from there

  ROOTDK_ON_BOTH bool empty() const { return begin >= end; }
  ROOTDK_ON_BOTH ScaleRow scale_row() const { return {end - begin, position - origin}; }
};
using KeyRange = KeyRangeOf<std::int64_t>;

/// Which parts of a mask there may be. A kernel that does not take padding need not ask for it.
enum class MaskParts : std::uint8_t {
  kAll,
  kUnpadded,  ///< of what each item has of its own only key lengths; no documents by item
};

/// Of the queries or keys of a document.
template <class Int>
struct SpanOf {
  Int begin, end;
};

template <class Int>
struct DocumentOf {
  SpanOf<Int> queries, keys;

  ROOTDK_ON_BOTH bool owns_nothing() const { return queries.begin == queries.end; }
};
using Document = DocumentOf<std::int64_t>;

/// Of an array with one entry per batch item, or none.
ROOTDK_ON_BOTH inline std::int64_t entry(const std::int64_t* per_item, std::int64_t batch, std::int64_t otherwise) {
  return per_item ? per_item[batch] : otherwise;
}

/// The rows of an item that are queries. Others are padding: they see nothing, and statistics leave them out.
ROOTDK_ON_BOTH inline SpanOf<std::int64_t> queries_of(const MaskView& mask, std::int64_t batch) {
  return {0, entry(mask.query_lengths, batch, mask.len_q)};
}

ROOTDK_ON_BOTH inline bool is_query(const MaskView& mask, std::int64_t batch, std::int64_t query) {
  const SpanOf<std::int64_t> queries = queries_of(mask, batch);
  return query >= queries.begin && query < queries.end;
}

/// Finds the document that owns a query; false if none does.
template <MaskParts kParts = MaskParts::kAll, class Int>
ROOTDK_ON_BOTH inline bool find_document(const MaskView& mask, std::int64_t batch, Int query,
                                         DocumentOf<Int>& document) {
  const std::int64_t *q = mask.q_starts, *kv = mask.kv_starts;
  if (kParts == MaskParts::kAll && mask.documents_by_item) {
    const std::int64_t first = batch * (mask.documents + 1);
    q += first, kv += first;
  }
  Int low = 0, high = static_cast<Int>(mask.documents) + 1;  // the first start beyond the query: skips empty documents
  while (low < high) {
    const Int middle = (low + high) / 2;
    if (static_cast<Int>(q[middle]) <= query) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || low == static_cast<Int>(mask.documents) + 1) return false;
  document = {{static_cast<Int>(q[low - 1]), static_cast<Int>(q[low])},
              {static_cast<Int>(kv[low - 1]), static_cast<Int>(kv[low])}};
  return true;
}

/// Both axes: what owns a query where there are no documents.
template <class Int>
ROOTDK_ON_BOTH inline DocumentOf<Int> whole(const MaskView& mask) {
  return {{0, static_cast<Int>(mask.len_q)}, {0, static_cast<Int>(mask.len_kv)}};
}

/// What is added to a query's place in its document to give its place among the document's keys, `queries` and `keys`
/// of them.
template <MaskParts kParts = MaskParts::kAll, class Int>
ROOTDK_ON_BOTH inline Int diagonal_offset(const MaskView& mask, std::int64_t batch, Int queries, Int keys) {
  Int offset = keys - queries;
  if (mask.diagonal == Diagonal::Kind::kTopLeft) offset = 0;
  else if (mask.diagonal == Diagonal::Kind::kAt) offset = static_cast<Int>(mask.diagonal_offset);
  else if (mask.diagonal == Diagonal::Kind::kLastKey)
    offset = static_cast<Int>(kParts == MaskParts::kUnpadded ? mask.key_lengths[batch] - mask.len_q
                                                             : entry(mask.key_lengths, batch, mask.len_kv) -
                                                                   entry(mask.query_lengths, batch, mask.len_q));
  return offset;
}

/// How far a query looks from where it stands.
template <class Int>
struct ReachOf {
  Int left, right;
};

template <class Int>
ROOTDK_ON_BOTH inline ReachOf<Int> reach_of(const MaskView& mask) {
  constexpr std::int64_t kMost = sizeof(Int) == 4 ? std::int64_t{1} << 30 : kFar;
  return {static_cast<Int>(smaller(mask.left, kMost)), mask.causal ? 0 : static_cast<Int>(smaller(mask.right, kMost))};
}

template <class Int>
ROOTDK_ON_BOTH inline Int position_in(const DocumentOf<Int>& document, Int offset, Int query) {
  return document.keys.begin + (query - document.queries.begin) + offset;
}

/// The keys that structural masks leave a query.
template <MaskParts kParts = MaskParts::kAll, class Int>
ROOTDK_ON_BOTH inline KeyRangeOf<Int> visible_keys(const MaskView& mask, std::int64_t batch, Int query) {
  DocumentOf<Int> document = whole<Int>(mask);
  if (mask.q_starts && !find_document<kParts>(mask, batch, query, document)) return {};
  if (document.owns_nothing()) return {};
  if (kParts == MaskParts::kAll && !is_query(mask, batch, query)) return {};
  const Int offset = diagonal_offset<kParts>(mask, batch, document.queries.end - document.queries.begin,
                                             document.keys.end - document.keys.begin);

  KeyRangeOf<Int> range;
  range.begin = range.origin = document.keys.begin;
  range.end = document.keys.end;
  range.position = position_in(document, offset, query);
  if (kParts == MaskParts::kAll && mask.key_starts)
    range.begin = range.origin = larger(range.begin, static_cast<Int>(mask.key_starts[batch]));
  if (mask.key_lengths) range.end = smaller(range.end, static_cast<Int>(mask.key_lengths[batch]));
  if (mask.causal) range.end = smaller(range.end, range.position + 1);
  constexpr std::int64_t kReach = sizeof(Int) == 4 ? std::int64_t{1} << 30 : kFar;
  range.begin = larger(range.begin, range.position - static_cast<Int>(smaller(mask.left, kReach)));
  range.end = smaller(range.end, range.position + static_cast<Int>(smaller(mask.right, kReach)) + 1);
  if (range.begin >= range.end) range.begin = range.end = 0;
  return range;
}

/// One past the last key that any query of an item may see: behind it, memory may hold anything.
template <MaskParts kParts = MaskParts::kAll, class Int = std::int64_t>
ROOTDK_ON_BOTH inline Int end_of_keys(const MaskView& mask, std::int64_t batch) {
  Int end = static_cast<Int>(mask.len_kv);
  if (mask.key_lengths) end = smaller(end, static_cast<Int>(mask.key_lengths[batch]));
  if (mask.kv_starts) {
    const std::int64_t before = kParts == MaskParts::kAll && mask.documents_by_item ? batch * (mask.documents + 1) : 0;
    end = smaller(end, static_cast<Int>(mask.kv_starts[before + mask.documents]));
  }
  return end;
}

/// Queries that see a key, and keys that a query sees.
struct Seen {
  SpanOf<std::int64_t> queries, keys;
};

/// Where query i sees what of `keys` lies from `reach.left` before to `reach.right` after i + offset. Both are runs.
ROOTDK_ON_BOTH inline Seen seen_of(SpanOf<std::int64_t> queries, SpanOf<std::int64_t> keys, std::int64_t offset,
                                   ReachOf<std::int64_t> reach) {
  const SpanOf<std::int64_t> looking{larger(queries.begin, keys.begin - offset - reach.right),
                                     smaller(queries.end, keys.end + reach.left - offset)};
  if (keys.begin >= keys.end || looking.begin >= looking.end) return {{0, 0}, {0, 0}};
  return {
      looking,
      {larger(keys.begin, looking.begin + offset - reach.left), smaller(keys.end, looking.end + offset + reach.right)}};
}

/// Of a batch item, as far as structural masks go, which have no documents.
ROOTDK_ON_BOTH inline Seen seen_of(const MaskView& mask, std::int64_t batch) {
  return seen_of(queries_of(mask, batch),
                 {entry(mask.key_starts, batch, 0), entry(mask.key_lengths, batch, mask.len_kv)},
                 diagonal_offset(mask, batch, mask.len_q, mask.len_kv), reach_of<std::int64_t>(mask));
}

// The same of a mask as users give it -------------------------------------------------------------------------------

inline KeyRange visible_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  return visible_keys(view_of(mask, shape), batch, query);
}

/// What structural masks leave each query, as [batch][len_q][4]: the first key, one past the last, the query's position
/// among the keys, and 0 if it is padding.
inline void write_visible_keys(const MaskView& mask, std::int64_t batch, std::int64_t* ranges) {
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < mask.len_q; ++i) {
      const KeyRange range = visible_keys(mask, b, i);
      *ranges++ = range.begin, *ranges++ = range.end, *ranges++ = range.position, *ranges++ = is_query(mask, b, i);
    }
}

inline bool is_query(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  return is_query(view_of(mask, shape), batch, query);
}

/// The document that owns a query, or one of nothing; the whole of both axes where there are none.
inline Document document_of(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  const MaskView view = view_of(mask, shape);
  Document document = whole<std::int64_t>(view);
  if (view.q_starts && !find_document(view, batch, query, document)) return {};
  return document;
}

inline std::int64_t position_in(const Document& document, const Mask& mask, const Shape& shape, std::int64_t batch,
                                std::int64_t query) {
  const std::int64_t offset =
      diagonal_offset(view_of(mask, shape), batch, document.queries.end - document.queries.begin,
                      document.keys.end - document.keys.begin);
  return position_in(document, offset, query);
}

/// Where the query stands among the keys; 0 if it belongs to no document.
inline std::int64_t position_of(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  const Document document = document_of(mask, shape, batch, query);
  return document.owns_nothing() ? 0 : position_in(document, mask, shape, batch, query);
}

/// True if all queries of an item see the same keys, as far as structural masks go.
inline bool rows_alike(const Mask& mask) {
  return !mask.causal && !mask.window && !mask.documents &&
         std::none_of(std::begin(kPerItem), std::end(kPerItem),
                      [&](const PerItem& field) { return field.axis == PerItem::Axis::q && field.in(mask); });
}

/// True if every query sees every key, as far as structural masks go.
inline bool sees_everything(const Mask& mask) {
  return rows_alike(mask) &&
         std::none_of(std::begin(kPerItem), std::end(kPerItem), [&](const PerItem& field) { return field.in(mask); });
}

/// True if there is what MaskParts::kUnpadded leaves out.
inline bool has_padding(const Mask& mask) {
  return (mask.documents && mask.documents->items > 0) ||
         std::any_of(std::begin(kPerItem), std::end(kPerItem),
                     [&](const PerItem& field) { return field.numbers != &Mask::key_lengths && field.in(mask); });
}

/// Marks the keys of a batch item that a query of any head of a group sees, by structural masks, boolean masks and
/// biases: 1, and 0 for the others. `seen` is [len_kv].
void mark_seen_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t kv_head, std::uint8_t* seen);

}  // namespace rootdk::base
