// The mma kernels (sm_80 and newer): tensor cores by mma.sync, as FlashAttention-2 (Dao 2023) uses them, for every
// problem in f16 and bf16.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/arena.h"
#include "base/call.h"
#include "cuda/common/view.h"

namespace rootdk::cuda {

/// Why the kernel cannot take a problem; empty if it can. Any strides will do.
std::string mma_misfit(const Problem& problem, const Shape& shape);

struct MmaMemory {
  float* o = nullptr;      ///< of rows whose keys are split: [splits, items of a launch, heads_q, len_q, dim_v]
  float4* rows = nullptr;  ///< [splits, items of a launch, heads_q, len_q]: PartRow
};
MmaMemory mma_memory(const Plan& plan, base::Arena& arena);

void mma_forward(const ForwardView& view, const base::ForwardCall& call, const MmaMemory& memory, cudaStream_t stream);

/// The same of backward.
std::string mma_backward_misfit(const Problem& problem, const Shape& shape);

namespace mma::back {
struct RowTile;
}
struct MmaBackwardMemory {  ///< see mma::back::Arguments
  float* numbers = nullptr;
  int* places = nullptr;
  mma::back::RowTile* tiles = nullptr;
  int *turns = nullptr, *next_task = nullptr, *trouble = nullptr;
  float *reference = nullptr, *d_q = nullptr;
};
MmaBackwardMemory mma_backward_memory(const Plan& plan, base::Arena& arena);

void mma_backward(const BackwardView& view, const base::BackwardCall& call, const MmaBackwardMemory& memory,
                  cudaStream_t stream);

}  // namespace rootdk::cuda
