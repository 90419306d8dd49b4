// How kernels are launched, and what becomes of an error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "rootdk/error.h"

namespace rootdk::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // said here, so not again by the next call
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw Error(code, std::string("cuda: ") + what + ": " + cudaGetErrorString(status));
}

/// More dynamic shared memory than the 48 KB that need no asking.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory");
}

inline __host__ __device__ std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How a kernel is started. Whatever is asked for beyond sizes is a method, and takes effect by being called:
/// attributes are nobody else's to fill in.
class Launch {
 public:
  Launch(dim3 blocks, int threads, std::size_t shared, cudaStream_t stream) {
    config_.gridDim = blocks, config_.blockDim = dim3(static_cast<unsigned>(threads)),
    config_.dynamicSmemBytes = shared, config_.stream = stream;
    config_.attrs = attributes_;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// Programmatic dependent launch: starts while the kernel before it still runs, once that allows it
  /// (next_kernel_start), and waits for its end itself (next_kernel_wait).
  Launch& beside() {
    add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    return *this;
  }
  /// A cooperative launch: all blocks run at a time, or none, for kernels whose blocks wait for each other. run() says
  /// so where they cannot.
  Launch& together() {
    add(cudaLaunchAttributeCooperative).cooperative = 1;
    return *this;
  }
  /// Blocks in clusters, each of which shares a group of multiprocessors (a GPC).
  Launch& clusters(int blocks) {
    auto& size = add(cudaLaunchAttributeClusterDimension).clusterDim;
    size.x = static_cast<unsigned>(blocks), size.y = size.z = 1;
    return *this;
  }

  /// False where the card has no room for all blocks at a time and together() wants that.
  template <class... Parameters, class... Arguments>
  [[nodiscard]] bool run(const char* what, void (*kernel)(Parameters...), const Arguments&... arguments) const {
    const cudaError_t status = cudaLaunchKernelEx(&config_, kernel, arguments...);
    if (status == cudaErrorCooperativeLaunchTooLarge) {
      cudaGetLastError();
      return false;
    }
    check(status, what);
    return true;
  }

  /// How many of its clusters there can be at a time: none where groups of multiprocessors are too small.
  template <class... Parameters>
  int clusters_at_once(void (*kernel)(Parameters...)) const {
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config_) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
  }

 private:
  decltype(cudaLaunchAttribute::val)& add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = id;
    return attribute.val;
  }

  cudaLaunchAttribute attributes_[3] = {};  ///< one of each
  cudaLaunchConfig_t config_ = {};
};

/// After all that came before it in the stream; `what` is for an error.
template <class... Parameters, class... Arguments>
void launch_kernel(const char* what, void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared,
                   cudaStream_t stream, const Arguments&... arguments) {
  static_cast<void>(Launch(blocks, threads, shared, stream).run(what, kernel, arguments...));
}

/// The same by programmatic dependent launch: Launch::beside.
template <class... Parameters, class... Arguments>
void launch_beside(const char* what, void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared,
                   cudaStream_t stream, const Arguments&... arguments) {
  static_cast<void>(Launch(blocks, threads, shared, stream).beside().run(what, kernel, arguments...));
}

/// More blocks to a cluster than the 8 that need no asking.
template <class Kernel>
void allow_clusters(Kernel kernel) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "clusters");
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
inline unsigned grid(std::int64_t tasks) {
  return static_cast<unsigned>(tasks < 1 ? 1 : tasks > (1 << 22) ? 1 << 22 : tasks);
}

}  // namespace rootdk::cuda
