// As much of CUDA's language and runtime as the kernels of every card and their tests use, on the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda_on_host/fibers.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

// Threads and lanes --------------------------------------------------------------------------------------------------
inline void __syncthreads() { rootdk::test::fibers::meet_block(true); }
inline int __syncthreads_and(int vote) { return rootdk::test::fibers::meet_block(vote != 0); }
inline int __syncthreads_or(int vote) { return !rootdk::test::fibers::meet_block(vote == 0); }
template <class T>
T __shfl_xor_sync(unsigned, T mine, int distance) {
  return rootdk::test::fibers::of_lane(mine, threadIdx.x % 32 ^ static_cast<unsigned>(distance));
}
inline unsigned __ballot_sync(unsigned, int vote) {
  const int mine = vote != 0;
  const std::byte(*all)[rootdk::test::fibers::kMostBytes] = rootdk::test::fibers::meet_warp(&mine, sizeof mine);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    int theirs;
    std::memcpy(&theirs, all[lane], sizeof theirs);
    bits |= static_cast<unsigned>(theirs) << lane;
  }
  return bits;
}
inline int __any_sync(unsigned lanes, int vote) { return __ballot_sync(lanes, vote) != 0; }
inline int __all_sync(unsigned lanes, int vote) { return __ballot_sync(lanes, vote) == ~0u; }
inline void __syncwarp() { __ballot_sync(~0u, 0); }
template <class T>
T __shfl_sync(unsigned, T mine, int lane) {
  return rootdk::test::fibers::of_lane(mine, static_cast<unsigned>(lane) % 32);
}
inline int __reduce_max_sync(unsigned lanes, int mine) {
  for (int step = 16; step > 0; step /= 2) {
    const int theirs = __shfl_xor_sync(lanes, mine, step);
    mine = theirs > mine ? theirs : mine;
  }
  return mine;
}
inline int __reduce_min_sync(unsigned lanes, int mine) {
  for (int step = 16; step > 0; step /= 2) {
    const int theirs = __shfl_xor_sync(lanes, mine, step);
    mine = theirs < mine ? theirs : mine;
  }
  return mine;
}
template <class T>
T atomicAdd(T* to, T what) {
  return std::exchange(*to, *to + what);
}
template <class T>
T atomicMin(T* to, T what) {
  return std::exchange(*to, what < *to ? what : *to);
}
template <class T>
T atomicMax(T* to, T what) {
  return std::exchange(*to, *to < what ? what : *to);
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}

[[noreturn]] inline void __trap() { std::abort(); }

// Numbers ------------------------------------------------------------------------------------------------------------
using std::exp, std::fma, std::isfinite, std::isnan, std::log, std::floor;
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline double __longlong_as_double(long long bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The runtime --------------------------------------------------------------------------------------------------------
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorCooperativeLaunchTooLarge };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative
};
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal };
constexpr unsigned cudaStreamNonBlocking = 1;
using cudaStream_t = void*;
using cudaGraph_t = void*;
using cudaGraphExec_t = void*;

struct cudaDeviceProp {
  char name[32];
  int major, minor, multiProcessorCount;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed, cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "out of memory"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) { return *of = {"the host", 8, 0, 4}, cudaSuccess; }
/// ROOTDK_HOST_SHARED_MEMORY: of a card with less, whose shapes are others.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  const char* asked = std::getenv("ROOTDK_HOST_SHARED_MEMORY");
  return *value = asked ? std::atoi(asked) : 232448, cudaSuccess;
}
inline cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  return (*to = std::aligned_alloc(256, (bytes + 256) / 256 * 256)) ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
inline cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return std::memset(to, value, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, Kernel, const cudaLaunchConfig_t*) {
  return *count = 0, cudaSuccess;
}

// What is captured here has run: graphs of kernels that write the same again need not run again.
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) { return *graph = nullptr, cudaSuccess; }
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, int) {
  return *executable = nullptr, cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  rootdk::test::fibers::launch(config->gridDim, config->blockDim.x, config->dynamicSmemBytes,
                               [&] { kernel(arguments...); });
  return cudaSuccess;
}
