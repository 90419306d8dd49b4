// Split-KV: rows whose keys were split among blocks, put together again.
#pragma once

#include <cuda_runtime.h>

#include "cuda/common/view.h"

namespace rootdk::cuda {

/// What blocks found of each row, [count, batch, heads_q, len_q]: PartRow, and the sums of weights times values.
struct Parts {
  const float* o;
  const float4* rows;
  int count;
  int group;  ///< parts that make up a group (merge.cuh); 1 where each is one already
};

/// Starts beside the kernel that writes them (programmatic dependent launch).
void combine_parts(const ForwardView& view, const Parts& parts, DType dtype, cudaStream_t stream);

}  // namespace rootdk::cuda
