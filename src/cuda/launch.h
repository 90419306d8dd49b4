// How kernels are launched, and what becomes of an error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
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

/// A grid in clusters, whose blocks share a group of multiprocessors (a GPC).
struct ClusterGrid {
  int clusters, blocks;  ///< blocks: of each
  int threads;
  std::size_t shared;
};

/// f(the launch).
template <class F>
auto with_clusters(const ClusterGrid& grid, cudaStream_t stream, const F& f) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.clusters * grid.blocks)), config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared, config.stream = stream;
  cudaLaunchAttribute size;
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = static_cast<unsigned>(grid.blocks), size.val.clusterDim.y = size.val.clusterDim.z = 1;
  config.attrs = &size, config.numAttrs = 1;
  return f(config);
}

/// More blocks to a cluster than the 8 that need no asking.
template <class Kernel>
void allow_clusters(Kernel kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "clusters");
}

/// How many such clusters there can be at a time: none where groups of multiprocessors are too small.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), const ClusterGrid& grid) {
  int count = 0;
  if (with_clusters(grid, nullptr, [&](const cudaLaunchConfig_t& config) { return cudaOccupancyMaxActiveClusters(&count, kernel, &config); }) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

/// What is found out once for each device.
template <class Value>
class PerDevice {
 public:
  template <class F>
  Value get(const F& find) {
    int device = 0;
    check(cudaGetDevice(&device), "device");
    const std::lock_guard lock(mutex_);
    if (const auto found = values_.find(device); found != values_.end()) return found->second;
    return values_.emplace(device, find()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, Value> values_;
};

/// Blocks for so many tasks; kernels stride over the rest.
inline unsigned grid(std::int64_t tasks) { return static_cast<unsigned>(tasks < 1 ? 1 : tasks > (1 << 22) ? 1 << 22 : tasks); }

}  // namespace rootdk::gpu
