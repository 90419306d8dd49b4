// The columns of a head that are worked out from its fields, at writing.
#include "report/stats_derived.h"

#include <cmath>
#include <cstdint>

#include "base/head_columns.h"
#include "report/json_io.h"

namespace rootdk::report {

template <class Count>
nlohmann::ordered_json derived(const HeadStatsOf<Count>& head) {
  using enum base::Merges;
  const bool sampled = head.blocks.seen < head.blocks.all;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& column : base::kHeadColumns<Count>) {
    const bool follows = column.merges == again || column.merges == mean_square_by_queries;
    if (!follows && !(column.merges == error && sampled)) continue;
    if (const double value = column.value(head); !std::isnan(value)) out[column.name] = Writer::encoded(value);
  }
  return out;
}

template nlohmann::ordered_json derived(const HeadStatsOf<std::int64_t>&);
template nlohmann::ordered_json derived(const HeadStatsOf<double>&);

}  // namespace rootdk::report
