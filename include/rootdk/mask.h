// Which keys a query may see. Parts combine: a key is visible only if every part that is present lets it through.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "rootdk/tensor.h"

namespace rootdk {

/// Where the queries stand among the keys: query i has key position i + offset. Causal masks, windows and ALiBi all
/// measure from that position. Inside packed documents positions count from the start of each document.
struct Diagonal {
  enum class Kind : std::uint8_t {
    kBottomRight,  ///< offset = len_kv − len_q: the last query stands on the last key (the default)
    kTopLeft,      ///< offset = 0: what PyTorch's is_causal means
    kLastKey,      ///< offset = key_lengths[batch] − queries: the last query stands on the last valid key of a cache;
                   ///< queries are query_lengths[batch], or len_q
    kAt,           ///< offset as given
  };
  Kind kind = Kind::kBottomRight;
  std::int64_t offset = 0;

  static constexpr Diagonal bottom_right() { return {}; }
  static constexpr Diagonal top_left() { return {Kind::kTopLeft, 0}; }
  static constexpr Diagonal last_key() { return {Kind::kLastKey, 0}; }
  static constexpr Diagonal at(std::int64_t offset) { return {Kind::kAt, offset}; }
};

/// A query at position p sees keys p − left … p + right.
struct Window {
  static constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
};

/// Sequences packed end to end on the length axes; document d owns queries q_starts[d] … q_starts[d+1]−1 and the keys
/// likewise. The first start is 0; rows beyond the last belong to no document and see nothing. Not owned.
struct Documents {
  std::span<const std::int64_t> q_starts = {};   ///< documents + 1 entries, ascending
  std::span<const std::int64_t> kv_starts = {};  ///< as many
  /// 0: the same for every batch item. Else of so many items, batch of them: both are [items, documents + 1], and items
  /// that have fewer documents end with empty ones.
  std::int64_t items = 0;
};

/// Plain data; the arrays are not owned.
struct Mask {
  bool causal = false;                ///< keys after the query's position are hidden
  Diagonal diagonal = {};             ///< what "the query's position" is
  std::optional<Window> window = {};  ///< keys far from the query's position are hidden
  /// One per batch item, or empty: key_starts, key_lengths, query_lengths; rootdk/masks.def says what each hides.
#define ROOTDK_PER_ITEM(name, axis, words, doc) std::span<const std::int64_t> name = {};
#include "rootdk/masks.def"
  std::optional<Documents> documents = {};  ///< no looking across documents
  ConstTensor allowed = {};                 ///< kBool [batch|1, heads_q|1, len_q|1, len_kv|1]: false hides
  ConstTensor bias = {};  ///< added to the score (f32 or the storage dtype), same broadcast; −inf hides
  std::span<const float> alibi_slopes = {};  ///< one per query head: adds −slope·|position − key|

  static Mask none() { return {}; }
  static Mask make_causal(Diagonal diagonal = {}) {
    Mask mask;
    mask.causal = true;
    mask.diagonal = diagonal;
    return mask;
  }

  /// True if `allowed`, `bias` or ALiBi is present: something must be read or computed for every single score.
  bool has_dense_part() const { return allowed.present() || bias.present() || !alibi_slopes.empty(); }
};

}  // namespace rootdk
