// In place of src/cuda/common/ptx.cuh: kernels come one after another.
#pragma once

namespace rootdk::cuda {

inline void next_kernel_wait() {}

}  // namespace rootdk::cuda
