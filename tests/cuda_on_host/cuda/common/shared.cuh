// In place of src/cuda/common/shared.cuh.
#pragma once

#include "cuda_on_host/fibers.h"

namespace rootdk::cuda {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(rootdk::test::fibers::dynamic_shared());
}

}  // namespace rootdk::cuda
