// ROOTDK_ON_BOTH marks a function that host code and kernels of a GPU both call. std::min and std::max are for the host
// alone.
#pragma once

#ifdef __CUDACC__
#define ROOTDK_ON_BOTH __host__ __device__
#else
#define ROOTDK_ON_BOTH
#endif

namespace rootdk::base {

template <class T>
ROOTDK_ON_BOTH inline T smaller(T a, T b) {
#ifdef __CUDA_ARCH__
  return ::min(a, b);
#else
  return b < a ? b : a;
#endif
}

template <class T>
ROOTDK_ON_BOTH inline T larger(T a, T b) {
#ifdef __CUDA_ARCH__
  return ::max(a, b);
#else
  return a < b ? b : a;
#endif
}

}  // namespace rootdk::base
