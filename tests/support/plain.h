// "Plain" attention: what most people write. f32, the whole row of scores at once, scores and probabilities rounded to
// the storage dtype. A fast kernel may be at most twice as wrong as this.
#pragma once

#include "base/call.h"

namespace rootdk::test {

void plain_forward(const base::ForwardCall& call);
void plain_backward(const base::BackwardCall& call);

}  // namespace rootdk::test
