// In place of the mma kernels, where a test is about the plain ones: they take a while to compile.
#include "cuda/mma/mma.h"

#include <stdexcept>

namespace rootdk::cuda {

std::string mma_misfit(const Problem&, const Shape&) { return "is not in this test"; }
std::string mma_backward_misfit(const Problem&, const Shape&) { return "is not in this test"; }
MmaMemory mma_memory(const Plan&, base::Arena&) { return {}; }
MmaBackwardMemory mma_backward_memory(const Plan&, base::Arena&) { return {}; }
void mma_forward(const ForwardView&, const base::ForwardCall&, const MmaMemory&, cudaStream_t) {
  throw std::logic_error("no mma kernel in this test");
}
void mma_backward(const BackwardView&, const base::BackwardCall&, const MmaBackwardMemory&, cudaStream_t) {
  throw std::logic_error("no mma kernel in this test");
}

}  // namespace rootdk::cuda
