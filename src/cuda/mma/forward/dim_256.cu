// The mma forward of dims up to 256.
#include "cuda/mma/forward/instances.cuh"

namespace rootdk::cuda::mma {

template void launch_forward<256>(const Arguments&, DType, Kind, unsigned, cudaStream_t);

}  // namespace rootdk::cuda::mma
