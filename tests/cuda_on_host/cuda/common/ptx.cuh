// In place of src/cuda/common/ptx.cuh: kernels come one after another.
#pragma once

#include "cuda_on_host/fibers.h"

namespace rootdk::cuda {

inline void next_kernel_wait() {}
inline int load_acquire(const int* flag) { return *flag; }
inline void store_release(int* flag, int value) { *flag = value; }
inline int thread_again() { return static_cast<int>(threadIdx.x); }

}  // namespace rootdk::cuda
