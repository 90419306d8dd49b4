// Sorted by offset, each range is held against the end of the one before it.
#include "checkpoint/ranges.h"

#include <algorithm>
#include <tuple>

#include "checkpoint/text.h"

namespace rootdk::checkpoint {

void check_ranges(const Source& source, std::vector<Range>& ranges, std::uint64_t begin, std::uint64_t end, Gaps gaps) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t reached = begin;
  const Range* last = nullptr;
  for (const Range& range : ranges) {
    if (range.begin < reached)
      source.refuse_at(range.described_at, "tensor {} begins at byte {}, inside tensor {}, which ends at {}",
                       in_quotes(range.name), range.begin, in_quotes(last->name), reached);
    if (gaps == Gaps::kRefuse && range.begin > reached)
      source.refuse_at(reached, "{} bytes belong to no tensor", range.begin - reached);
    if (range.end > reached) {
      reached = range.end;
      last = &range;
    }
  }
  if (gaps == Gaps::kRefuse && reached < end) source.refuse_at(reached, "{} bytes belong to no tensor", end - reached);
}

}  // namespace rootdk::checkpoint
