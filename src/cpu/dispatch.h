// Collects what was compiled for each instruction set. Highway's own dispatch picks the best one behind a global; a
// plan names its instruction set instead, so every entry of the table is wanted.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rootdk::cpu {

/// `table` is a HWY_DISPATCH_TABLE of functions that each return an entry. Best instruction set first.
template <class Entry>
std::vector<Entry> usable_entries(Entry (*const* table)()) {
  std::vector<Entry> found;
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) {  // one target: Highway's table has one element
    found.push_back(table[0]());
    return found;
  }
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    // Lower bits are better targets, and a bit's place is its index; the last index is the portable fallback.
    const std::int64_t place = HWY_CHOSEN_TARGET_SHIFT(left & -left);
    const std::size_t index =
        place ? hwy::Num0BitsBelowLS1Bit_Nonzero64(static_cast<std::uint64_t>(place)) : HWY_MAX_DYNAMIC_TARGETS + 1;
    if (table[index]) found.push_back(table[index]());
  }
  return found;
}

}  // namespace rootdk::cpu
