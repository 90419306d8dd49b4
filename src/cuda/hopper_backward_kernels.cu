// The Hopper backward's kernels, all in one file: what they include takes longer to compile than they do.
#include "cuda/hopper_backward.cuh"
#include "cuda/hopper_backward_rows.cuh"

namespace rootdk::gpu {

void hopper_backward_launch(const BackwardArguments& a, int dim, DType dtype, int blocks, cudaStream_t stream) {
  if (dim == 64) back::dispatch<back::Tile<64>>(a, dtype, blocks, stream);
  else if (dim == 128) back::dispatch<back::Tile<128>>(a, dtype, blocks, stream);
  else back::dispatch<back::Tile<256>>(a, dtype, blocks, stream);
}

void hopper_backward_launch_rows(const BackwardArguments& a, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kBF16) back::launch_rows<back::RowsTile<256>, __nv_bfloat16>(a, stream);
  else back::launch_rows<back::RowsTile<256>, __half>(a, stream);
}

}  // namespace rootdk::gpu
