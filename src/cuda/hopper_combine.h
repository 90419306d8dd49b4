// Rows whose keys were split among blocks, put together again.
#pragma once

#include <cuda_runtime.h>

#include "cuda/view.h"

namespace rootdk::gpu {

/// `part_o` and `part_rows` are [parts, batch, heads_q, len_q], as HopperArguments has them. Starts beside the kernel that writes them.
void combine_parts(const ForwardView& view, const float* part_o, const float4* part_rows, int parts, DType dtype, cudaStream_t stream);

}  // namespace rootdk::gpu
