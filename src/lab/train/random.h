// Whole numbers for tasks and texts: Philox4x32-10 again, the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/philox.h"

namespace rootdk::lab {

/// What numbers are drawn for; different purposes of one seed share none.
enum class Purpose : std::uint32_t { kRecall = 0x72656361, kText = 0x74657874, kGrammar = 0x6772616D };

/// One sequence of draws for every (seed, purpose, split, index).
class Random {
 public:
  Random(std::uint64_t seed, Purpose purpose, std::uint32_t split = 0, std::uint64_t index = 0)
      : seed_(seed), index_(index), tag_(static_cast<std::uint32_t>(purpose) ^ split) {}

  /// 0 … bound − 1. The top half of a 32 × 32-bit product: off from uniform by less than bound/2³².
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(std::uint64_t{next()} * bound >> 32); }

  template <class Range>
  const auto& pick(const Range& from) {
    return from[below(static_cast<std::uint32_t>(std::size(from)))];
  }

  /// The first `count` become a random choice of all, in random order (Fisher and Yates).
  template <class Range>
  void shuffle(Range&& values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      std::swap(values[i], values[i + below(static_cast<std::uint32_t>(std::size(values) - i))]);
  }

 private:
  std::uint32_t next() {
    if (used_ == words_.size()) {
      words_ = base::philox4x32(
          {block_++, static_cast<std::uint32_t>(index_), static_cast<std::uint32_t>(index_ >> 32), tag_},
          static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
      used_ = 0;
    }
    return words_[used_++];
  }

  std::uint64_t seed_, index_;
  std::uint32_t tag_, block_ = 0;
  std::array<std::uint32_t, 4> words_ = {};
  std::size_t used_ = 4;
};

}  // namespace rootdk::lab
