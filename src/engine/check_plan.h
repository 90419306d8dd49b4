// What a caller may bring: a plan of his own, which may be for something else, and a workspace, which may not do.
#pragma once

#include <cstddef>
#include <span>

#include "rootdk/plan.h"

namespace rootdk::engine {

/// Refuses what does not belong to a call of this pass on this device. The plan's problem is checked again: arrays that
/// it looks into may have changed since the plan was made.
void check_plan(const Plan& plan, Pass pass, Device device, std::span<const std::byte> workspace);

}  // namespace rootdk::engine
