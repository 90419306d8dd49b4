// The mma forward of dims up to 128.
#include "cuda/mma/forward/instances.cuh"

namespace rootdk::cuda::mma {

template void launch_forward<128>(const Arguments&, DType, Kind, unsigned, cudaStream_t);

}  // namespace rootdk::cuda::mma
