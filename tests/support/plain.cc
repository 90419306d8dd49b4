// The naive kernels (src/cpu/reference) with arithmetic that rounds S and P as they would be stored.
#include "support/plain.h"

#include "cpu/reference/naive_backward.h"
#include "cpu/reference/naive_forward.h"

namespace rootdk::test {

namespace {

struct PlainArithmetic {
  using Real = float;
  static float stored(DType dtype, float x) {
    switch (dtype) {
      case DType::kF16: return to_float(to_float16(static_cast<double>(x)));
      case DType::kBF16: return to_float(to_bfloat16(static_cast<double>(x)));
      default: return x;
    }
  }
};

}  // namespace

void plain_forward(const base::ForwardCall& call) { cpu::NaiveForward<PlainArithmetic>::run(call); }
void plain_backward(const base::BackwardCall& call) { cpu::NaiveBackward<PlainArithmetic>::run(call); }

}  // namespace rootdk::test
