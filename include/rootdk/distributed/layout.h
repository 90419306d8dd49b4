// Which rank holds which part of a sequence: runs, zigzag, or what a schedule deals out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/export.h"

namespace rootdk::distributed {

/// Tokens begin … end − 1 of the whole sequence.
struct Piece {
  std::int64_t begin = 0, end = 0;

  std::int64_t length() const { return end - begin; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Ascending, without empty ones; they lie one after the other along the length axis of who holds them.
using Pieces = std::vector<Piece>;

/// Plain data; check() says whether it is one.
struct Layout {
  std::vector<Pieces> pieces = {};  ///< of each rank; together they are the sequence, each token once

  int ranks() const { return static_cast<int>(pieces.size()); }
  ROOTDK_API std::int64_t length() const;          ///< of the sequence
  ROOTDK_API std::int64_t length(int rank) const;  ///< of what a rank holds; may be 0

  /// Throws unless every token is on exactly one rank and pieces ascend.
  ROOTDK_API void check() const;

  /// The r-th run of the sequence on rank r, so long each.
  ROOTDK_API static Layout contiguous(std::span<const std::int64_t> lengths);
  /// Runs whose lengths differ by at most one token.
  ROOTDK_API static Layout even(std::int64_t length, int ranks);
  /// 2·ranks pieces; rank r holds the r-th from the front and the r-th from the back: under a causal mask a cheap one
  /// and a dear one, which cost the same together on every rank.
  ROOTDK_API static Layout zigzag(std::int64_t length, int ranks);
  /// Documents packed end to end, by their starts and the end, dealt out by visible pairs. What is more than a
  /// sixteenth of a rank's share is cut over all ranks (zigzag if causal); the others go whole to whoever has least,
  /// the largest first. So no rank has more than the mean, a sixteenth of it, and the rounding of the cuts.
  ROOTDK_API static Layout dealt(std::span<const std::int64_t> starts, int ranks, bool causal = true);

  /// The same of groups of so many consecutive ranks each, as if each were one rank.
  ROOTDK_API Layout over(int group) const;
};

/// Ascending, without empty ones, neighbours as one.
ROOTDK_API Pieces joined(Pieces pieces);

}  // namespace rootdk::distributed
