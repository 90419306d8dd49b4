#include "cuda/hopper_backward.cuh"

namespace rootdk::gpu {

void hopper_backward_launch_64(const BackwardArguments& a, DType dtype, int blocks, cudaStream_t stream) {
  back::dispatch<back::Tile<64>>(a, dtype, blocks, stream);
}

}  // namespace rootdk::gpu
