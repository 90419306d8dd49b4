// In place of the CUDA kernels where nvcc was missing.
#include "cuda/backend.h"

namespace rootdk::gpu {

const Loaded& load_backend() {
  static const Loaded none{nullptr, "rootdk was built without CUDA (nvcc was not found)"};
  return none;
}

}  // namespace rootdk::gpu
