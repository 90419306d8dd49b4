// The reference kernel: naive, double, obviously right, takes every problem.
#pragma once

#include "base/call.h"

namespace rootdk::cpu {

void reference_forward(const base::ForwardCall& call);
void reference_backward(const base::BackwardCall& call);

}  // namespace rootdk::cpu
