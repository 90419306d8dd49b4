#include "base/visibility.h"

#include <algorithm>
#include <limits>

#include "base/element.h"

namespace rootdk::base {

namespace {

// Farther than any two positions can be apart (sizes and offsets are validated), and far from overflow.
constexpr std::int64_t kFar = std::int64_t{1} << 42;

struct Span {
  std::int64_t begin, end;
};

struct Document {
  Span queries, keys;
};

// The document that owns a query, or empty spans.
Document document_of(const Documents& documents, std::int64_t query) {
  const auto& q = documents.q_starts;
  const auto after = std::upper_bound(q.begin(), q.end(), query);  // skips empty documents
  if (after == q.begin() || after == q.end()) return {{0, 0}, {0, 0}};
  const auto d = static_cast<std::size_t>(after - q.begin()) - 1;
  return {{q[d], q[d + 1]}, {documents.kv_starts[d], documents.kv_starts[d + 1]}};
}

std::int64_t diagonal_offset(const Mask& mask, const Document& document, const Shape& shape, std::int64_t batch) {
  switch (mask.diagonal.kind) {
    case Diagonal::Kind::kTopLeft: return 0;
    case Diagonal::Kind::kAt: return mask.diagonal.offset;
    case Diagonal::Kind::kLastKey: return mask.key_lengths[static_cast<std::size_t>(batch)] - shape.len_q;
    case Diagonal::Kind::kBottomRight: break;
  }
  return (document.keys.end - document.keys.begin) - (document.queries.end - document.queries.begin);
}

}  // namespace

KeyRange visible_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query) {
  const Document document =
      mask.documents ? document_of(*mask.documents, query) : Document{{0, shape.len_q}, {0, shape.len_kv}};
  if (document.queries.begin == document.queries.end) return {};

  KeyRange range;
  range.begin = document.keys.begin;
  range.end = document.keys.end;
  range.origin = document.keys.begin;
  range.position =
      document.keys.begin + (query - document.queries.begin) + diagonal_offset(mask, document, shape, batch);
  if (!mask.key_lengths.empty()) range.end = std::min(range.end, mask.key_lengths[static_cast<std::size_t>(batch)]);
  if (mask.causal) range.end = std::min(range.end, range.position + 1);
  if (mask.window) {
    range.begin = std::max(range.begin, range.position - std::min(mask.window->left, kFar));
    range.end = std::min(range.end, range.position + std::min(mask.window->right, kFar) + 1);
  }
  if (range.begin >= range.end) range.begin = range.end = 0;
  return range;
}

bool sees_everything(const Mask& mask) {
  return !mask.causal && !mask.window && mask.key_lengths.empty() && !mask.documents;
}

void mark_seen_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t kv_head,
                    std::uint8_t* seen) {
  std::fill_n(seen, shape.len_kv, std::uint8_t{0});
  const bool dense = mask.allowed.present() || mask.bias.present();
  const auto lets_see = [&](std::int64_t h, std::int64_t i, std::int64_t j) {
    return (!mask.allowed.present() || read(mask.allowed, batch, h, i, j) != 0) &&
           (!mask.bias.present() || read(mask.bias, batch, h, i, j) != -std::numeric_limits<double>::infinity());
  };
  std::int64_t unseen = shape.len_kv;
  const std::int64_t first = kv_head * shape.group(),
                     heads = dense ? shape.group() : 1;  // structural masks are the same for all
  for (std::int64_t h = first; h < first + heads; ++h) {
    KeyRange after;
    for (std::int64_t i = shape.len_q - 1; i >= 0 && unseen > 0; --i) {  // the last see most, where masks are causal
      const KeyRange range = visible_keys(mask, shape, batch, i);
      std::int64_t end = range.end;
      if (!dense && !after.empty() && range.end <= after.end)
        end = std::clamp(after.begin, range.begin, range.end);  // the rest is marked already
      for (std::int64_t j = range.begin; j < end; ++j)
        if (!seen[j] && (!dense || lets_see(h, i, j))) seen[j] = 1, --unseen;
      after = range;
    }
  }
}

}  // namespace rootdk::base
