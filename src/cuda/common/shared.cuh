// Dynamic shared memory as a pointer; tests/cuda_on_host has its own.
#pragma once

namespace rootdk::cuda {

/// The shared memory that a launch asks for.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

}  // namespace rootdk::cuda
