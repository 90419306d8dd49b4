// What readers want to know and could compute from the fields: written beside them, passed over when read.
#pragma once

#include <nlohmann/json.hpp>

#include "rootdk/stats.h"

namespace rootdk::report {

/// The columns (base/head_columns.h) that are no fields, those that are known. Standard errors where rows were sampled.
template <class Count>
nlohmann::ordered_json derived(const HeadStatsOf<Count>& head);

}  // namespace rootdk::report
