// Why scores are spread as they are: the sizes of queries and keys.
#pragma once

#include <cuda_runtime.h>

#include "base/arena.h"
#include "cuda/common/view.h"

namespace rootdk::cuda {

/// Sums over runs of the rows of Q or K that count, about one of their head: queries that see a key, keys that a query
/// of any head of their group sees, of these those that are finite.
struct RunSums {
  std::int64_t runs = 0;       ///< of a head
  double* columns = nullptr;   ///< [batch, heads, runs, dim]: Σ x − reference
  double2* squares = nullptr;  ///< [batch, heads, runs]: Σ ‖row − reference‖², and how many rows
};

struct CausesMemory {
  RunSums q, k;
  std::uint8_t* seen = nullptr;  ///< [batch, heads_kv, len_kv]: keys that are seen, where that is not one run of them
};

/// Nothing where causes are not wanted.
CausesMemory causes_memory(const Plan& plan, base::Arena& arena);

/// Fills in view.causes. `beside`: by programmatic dependent launch (sm_90 and newer), while the kernels before it
/// still run, where they allow it.
void find_causes(const ForwardView& view, const CausesMemory& memory, DType dtype, bool beside, cudaStream_t stream);

}  // namespace rootdk::cuda
