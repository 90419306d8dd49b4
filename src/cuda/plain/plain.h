// The plain kernels: every problem, every card since sm_80.
#pragma once

#include <cuda_runtime.h>

#include "cuda/common/view.h"

namespace rootdk::cuda {

void plain_forward(const ForwardView& view, DType dtype, cudaStream_t stream);
void plain_backward(const BackwardView& view, DType dtype, cudaStream_t stream);

/// What the row sums of a backward pass add up to: gradients with one value per head, and statistics.
void plain_head_sums(const BackwardView& view, cudaStream_t stream);

/// What follows a forward pass of any kernel: gaps and key mass, from its records, where they are wanted.
void second_pass(const ForwardView& view, DType dtype, cudaStream_t stream);

}  // namespace rootdk::cuda
