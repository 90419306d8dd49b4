// The mma backward of dims up to 64.
#include "cuda/mma/backward/finish.cuh"

namespace rootdk::cuda::mma::back {

void launch_backward_64(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream) {
  launch_dim<64>(a, dtype, kind, stream);
}

}  // namespace rootdk::cuda::mma::back
