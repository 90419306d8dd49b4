#include "cuda/hopper_backward.cuh"

namespace rootdk::gpu {

void hopper_backward_launch_128(const BackwardArguments& a, DType dtype, int blocks, cudaStream_t stream) {
  back::dispatch<back::Tile<128>>(a, dtype, blocks, stream);
}

}  // namespace rootdk::gpu
