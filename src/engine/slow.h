// Where a GPU computes a problem without tensor cores: a line that says why, and what to change.
#pragma once

#include <string>

#include "rootdk/plan.h"

namespace rootdk::engine {

/// Of a plan for a GPU; empty where a fast kernel was chosen.
std::string why_slow(const Plan& plan);

/// The same where the plan's kernel is fast but cannot read a tensor, q, k or v, for its strides.
std::string slow_strides(const Plan& plan, const char* name, const ConstTensor& tensor);

}  // namespace rootdk::engine
