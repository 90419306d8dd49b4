// The mma backward of dims up to 64.
#include "cuda/mma/backward/finish.cuh"

namespace rootdk::cuda::mma {

void launch_backward_64(const Arguments& a, DType dtype, bool rich, bool large, cudaStream_t stream) {
  launch_dim<64>(a, dtype, rich, large, stream);
}

}  // namespace rootdk::cuda::mma
