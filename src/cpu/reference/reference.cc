// The naive kernels (naive_forward.h, naive_backward.h) in double.
#include "cpu/reference/reference.h"

#include "cpu/reference/naive_backward.h"
#include "cpu/reference/naive_forward.h"

namespace rootdk::cpu {

void reference_forward(const base::ForwardCall& call) { NaiveForward<DoubleArithmetic>::run(call); }
void reference_backward(const base::BackwardCall& call) { NaiveBackward<DoubleArithmetic>::run(call); }

}  // namespace rootdk::cpu
