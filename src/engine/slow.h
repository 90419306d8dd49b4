// Where a GPU computes a problem without tensor cores: a line that says why, and what to change.
#pragma once

#include <string>

#include "rootdk/plan.h"

namespace rootdk::engine {

/// Of a plan for a GPU; empty where a fast kernel was chosen.
std::string why_slow(const Plan& plan);

}  // namespace rootdk::engine
