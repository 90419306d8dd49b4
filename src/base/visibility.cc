// A mask as plain data, what can be said of it as a whole, and the keys that nobody sees.
#include "base/visibility.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>

#include "base/element.h"

namespace rootdk::base {

MaskView view_of(const Mask& mask, const Shape& shape) {
  const auto data = [](std::span<const std::int64_t> values) { return values.empty() ? nullptr : values.data(); };
  const Window window = mask.window.value_or(Window{});
  MaskView view;
  view.len_q = shape.len_q, view.len_kv = shape.len_kv;
  view.causal = mask.causal;
  view.diagonal = mask.diagonal.kind, view.diagonal_offset = mask.diagonal.offset;
  view.left = std::min(window.left, kFar), view.right = std::min(window.right, kFar);
  view.key_starts = data(mask.key_starts), view.key_lengths = data(mask.key_lengths),
  view.query_lengths = data(mask.query_lengths);
  if (!mask.documents) return view;
  const Documents& documents = *mask.documents;
  view.q_starts = data(documents.q_starts), view.kv_starts = data(documents.kv_starts);
  view.documents_by_item = documents.items > 0;
  view.documents = std::ssize(documents.q_starts) / std::max<std::int64_t>(1, documents.items) - 1;
  return view;
}

bool rows_alike(const Mask& mask) {
  return !mask.causal && !mask.window && mask.query_lengths.empty() && !mask.documents;
}

bool sees_everything(const Mask& mask) {
  return rows_alike(mask) && mask.key_starts.empty() && mask.key_lengths.empty();
}

bool has_padding(const Mask& mask) {
  return !mask.key_starts.empty() || !mask.query_lengths.empty() || (mask.documents && mask.documents->items > 0);
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
    KeyRange after = {};
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
