// Statistics as JSON, and back: every value returns bit for bit (a NaN as a NaN). docs/stats-json.md has the format.
//
// Reading trusts nothing: what is malformed is refused with one rootdk::Error that names the field, what came and what
// was wanted, as in "per_head[2].score.pairs: -1, but …". Fields that are not known are passed over; another version is
// refused.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rootdk/export.h"
#include "rootdk/running_stats.h"
#include "rootdk/stats.h"
#include "rootdk/theory/judge.h"

namespace rootdk::report {

ROOTDK_API std::string to_json(const Stats& stats);
ROOTDK_API std::string to_json(const DecayedStats& stats);
ROOTDK_API std::string to_json(const GradientStats& stats);

ROOTDK_API Stats stats_from_json(std::string_view text);
ROOTDK_API DecayedStats decayed_stats_from_json(std::string_view text);
ROOTDK_API GradientStats gradient_stats_from_json(std::string_view text);

/// One way only: it can be judged again. The order is kept.
ROOTDK_API std::string to_json(std::span<const theory::Judgement> judgements);

}  // namespace rootdk::report
