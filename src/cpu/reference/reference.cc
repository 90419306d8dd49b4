// The naive kernel (naive.h) in double.
#include "cpu/reference/reference.h"

#include "cpu/reference/naive.h"

namespace rootdk::cpu {

void reference_forward(const base::ForwardCall& call) { Naive<DoubleArithmetic>::forward(call); }
void reference_backward(const base::BackwardCall& call) { Naive<DoubleArithmetic>::backward(call); }

}  // namespace rootdk::cpu
