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

/// A launch, and the attribute it may have, which lasts as long as this.
struct Launch {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};

  Launch(dim3 blocks, int threads, std::size_t shared, cudaStream_t stream) {
    config.gridDim = blocks, config.blockDim = dim3(static_cast<unsigned>(threads)), config.dynamicSmemBytes = shared, config.stream = stream;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void set(cudaLaunchAttributeID id) { attribute.id = id, config.attrs = &attribute, config.numAttrs = 1; }
};

/// After all that came before it in the stream; `what` is for an error.
template <class... Parameters, class... Arguments>
void launch_kernel(const char* what, void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  const Launch launch(blocks, threads, shared, stream);
  check(cudaLaunchKernelEx(&launch.config, kernel, arguments...), what);
}

/// Starts while the kernel before it still runs, once that allows it (next_kernel_start), and waits for its end itself.
template <class... Parameters, class... Arguments>
void launch_beside(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  Launch launch(blocks, threads, shared, stream);
  launch.set(cudaLaunchAttributeProgrammaticStreamSerialization);
  launch.attribute.val.programmaticStreamSerializationAllowed = 1;
  check(cudaLaunchKernelEx(&launch.config, kernel, arguments...), "launch beside a kernel");
}

/// Blocks in clusters, each of which shares a group of multiprocessors (a GPC).
struct ClusterLaunch : Launch {
  ClusterLaunch(int clusters, int cluster_blocks, int threads, std::size_t shared, cudaStream_t stream)
      : Launch(dim3(static_cast<unsigned>(clusters * cluster_blocks)), threads, shared, stream) {
    set(cudaLaunchAttributeClusterDimension);
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster_blocks), attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
};

/// More blocks to a cluster than the 8 that need no asking.
template <class Kernel>
void allow_clusters(Kernel kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "clusters");
}

/// How many such clusters there can be at a time: none where groups of multiprocessors are too small.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), const ClusterLaunch& launch) {
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config) == cudaSuccess) return count;
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
