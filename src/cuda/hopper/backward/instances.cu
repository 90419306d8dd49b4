// The Hopper backward's kernels, all in one file: what they include takes longer to compile than they do.
#include "cuda/hopper/backward/kernel.cuh"
#include "cuda/hopper/backward/query_major.cuh"

namespace rootdk::cuda {

void hopper_backward_launch(const BackwardArguments& a, int dim, DType dtype, int blocks, cudaStream_t stream) {
  if (dim == 64) back::dispatch<back::KeyTile<64>>(a, dtype, blocks, stream);
  else if (dim == 128) back::dispatch<back::KeyTile<128>>(a, dtype, blocks, stream);
  else back::dispatch<back::KeyTile<256>>(a, dtype, blocks, stream);
}

void hopper_backward_launch_rows(const BackwardArguments& a, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kBF16) back::launch_rows<back::QueryTile<256>, __nv_bfloat16>(a, stream);
  else back::launch_rows<back::QueryTile<256>, __half>(a, stream);
}

}  // namespace rootdk::cuda
