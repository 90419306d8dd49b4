// In place of the CUDA kernels in a static rootdk that was built without nvcc, and in the browser.
#include "cuda/api/backend.h"

namespace rootdk::cuda {

const Loaded& load_backend() {
  static const Loaded none{nullptr, "rootdk was built without CUDA (nvcc was not found)"};
  return none;
}

}  // namespace rootdk::cuda
