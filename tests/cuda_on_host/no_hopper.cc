// In place of the Hopper kernels, which the host cannot stand in for.
#include <stdexcept>

#include "cuda/hopper/hopper.h"

namespace rootdk::cuda {

std::string hopper_misfit(const Problem&, const Shape&, const Gpu&) { return "is not on the host"; }
std::string hopper_backward_misfit(const Problem&, const Shape&, const Gpu&) { return "is not on the host"; }
bool hopper_takes(const Inputs&) { return false; }
bool hopper_backward_takes(const BackwardInputs&) { return false; }
HopperMemory hopper_memory(const Plan&, base::Arena&) { return {}; }
HopperBackwardMemory hopper_backward_memory(const Plan&, base::Arena&) { return {}; }
void hopper_forward(const ForwardView&, const base::ForwardCall&, const HopperMemory&, cudaStream_t) {
  throw std::logic_error("no Hopper kernel on the host");
}
void hopper_backward(const BackwardView&, const base::BackwardCall&, const HopperBackwardMemory&, cudaStream_t) {
  throw std::logic_error("no Hopper kernel on the host");
}

}  // namespace rootdk::cuda
