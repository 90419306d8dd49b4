#include "cuda/hopper_backward_rows.cuh"

namespace rootdk::gpu {

void hopper_backward_launch_rows(const BackwardArguments& a, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kBF16) back::launch_rows<back::RowsTile<256>, __nv_bfloat16>(a, stream);
  else back::launch_rows<back::RowsTile<256>, __half>(a, stream);
}

}  // namespace rootdk::gpu
