// The mma backward of dims up to 256.
#include "cuda/mma/backward/finish.cuh"

namespace rootdk::cuda::mma::back {

void launch_backward_256(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream) {
  launch_dim<256>(a, dtype, kind, stream);
}

}  // namespace rootdk::cuda::mma::back
