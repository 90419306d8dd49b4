// Why scores are spread as they are: the sizes of queries and keys.
#pragma once

#include <cuda_runtime.h>

#include "base/arena.h"
#include "cuda/view.h"

namespace rootdk::gpu {

/// Sums over runs of the rows of Q or K that are finite, about a row of their head.
struct RunSums {
  std::int64_t runs = 0;      ///< of a head
  double* columns = nullptr;  ///< [batch, heads, runs, dim]: Σ x − reference
  double2* squares = nullptr; ///< [batch, heads, runs]: Σ ‖row − reference‖², and how many rows
};

struct CausesMemory {
  RunSums q, k;
};

/// Nothing where causes are not wanted.
CausesMemory causes_memory(const Plan& plan, base::Arena& arena);

/// Fills in view.causes. `beside`: on a card since sm_90, while the kernels before it still run, where they allow it.
void find_causes(const ForwardView& view, const CausesMemory& memory, DType dtype, bool beside, cudaStream_t stream);

}  // namespace rootdk::gpu
