// What readers want to know and could compute from the fields: written beside them, passed over when read.
#pragma once

#include <nlohmann/json.hpp>

#include <array>

#include "rootdk/stats.h"

namespace rootdk::report {

/// In the order of SoftmaxMeans::all().
inline constexpr std::array<const char*, SoftmaxMeans::kCount> kMeanNames = {
    "entropy", "effective_keys", "sum_p2",    "sum_p3",  "participation",
    "trace_j", "frobenius_j",    "sink_mass", "log_keys"};

template <class Count>
nlohmann::ordered_json derived(const HeadStatsOf<Count>& head);

}  // namespace rootdk::report
