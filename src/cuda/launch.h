// How kernels are launched, and what becomes of an error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "rootdk/error.h"

namespace rootdk::gpu {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // said here, so not again by the next call
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw Error(code, std::string("cuda: ") + what + ": " + cudaGetErrorString(status));
}

inline void check_launch(const char* what) { check(cudaGetLastError(), what); }

/// More dynamic shared memory than the 48 KB that need no asking.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "shared memory");
}

inline __host__ __device__ std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Starts while the kernel before it still runs, once that allows it (next_kernel_start), and waits for its end itself.
template <class... Parameters, class... Arguments>
void launch_beside(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks, config.blockDim = dim3(static_cast<unsigned>(threads)), config.dynamicSmemBytes = shared, config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "launch beside a kernel");
}

/// Blocks for so many tasks; kernels stride over the rest.
inline unsigned grid(std::int64_t tasks) { return static_cast<unsigned>(tasks < 1 ? 1 : tasks > (1 << 22) ? 1 << 22 : tasks); }

}  // namespace rootdk::gpu
