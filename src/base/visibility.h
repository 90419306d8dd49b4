// The structural masks (causal, window, key lengths, documents) leave each query one run of consecutive keys. This is
// where that run is worked out, once, for every kernel.
#pragma once

#include <cstdint>

#include "rootdk/problem.h"

namespace rootdk::base {

struct KeyRange {
  std::int64_t begin = 0;     ///< first key that may be seen
  std::int64_t end = 0;       ///< one past the last; begin == end means none
  std::int64_t position = 0;  ///< where the query stands among the keys: ALiBi measures from here
  std::int64_t origin = 0;    ///< first key of the query's document: positions count from there

  bool empty() const { return begin >= end; }
  ScaleRow scale_row() const { return {end - begin, position - origin}; }
};

KeyRange visible_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t query);

/// Keys of a batch item.
inline std::int64_t key_length(const Mask& mask, const Shape& shape, std::int64_t batch) {
  return mask.key_lengths.empty() ? shape.len_kv : mask.key_lengths[static_cast<std::size_t>(batch)];
}

/// True if every query sees every key, as far as structural masks go.
bool sees_everything(const Mask& mask);

/// Marks the keys of a batch item that a query of any head of a group sees, by structural masks, boolean masks and
/// biases: 1, and 0 for the others. `seen` is [len_kv].
void mark_seen_keys(const Mask& mask, const Shape& shape, std::int64_t batch, std::int64_t kv_head, std::uint8_t* seen);

}  // namespace rootdk::base
