// Rows whose keys were split among blocks, put together again.
#pragma once

#include <cuda_runtime.h>

#include "cuda/view.h"

namespace rootdk::gpu {

/// What blocks found of each row, [count, batch, heads_q, len_q]: PartRow, and the sums of weights times values.
struct Parts {
  const float* o;
  const float4* rows;
  int count;
  int group;  ///< parts that make up a group (hopper_merge.cuh); 1 where each is one already
};

/// Starts beside the kernel that writes them.
void combine_parts(const ForwardView& view, const Parts& parts, DType dtype, cudaStream_t stream);

}  // namespace rootdk::gpu
