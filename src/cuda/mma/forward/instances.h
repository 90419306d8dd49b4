// The kernels that are compiled, by dim and kind; each file of instances has those of one dim.
#pragma once

#include "cuda/mma/forward/tile.h"

namespace rootdk::cuda::mma {

/// Dims are filled up with zeros to one of these.
inline std::int64_t kernel_dim(std::int64_t dim_qk, std::int64_t dim_v) {
  const std::int64_t dim = dim_qk > dim_v ? dim_qk : dim_v;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

template <int kDim>
void launch_forward(const Arguments& arguments, DType dtype, Kind kind, unsigned blocks, cudaStream_t stream);

extern template void launch_forward<64>(const Arguments&, DType, Kind, unsigned, cudaStream_t);
extern template void launch_forward<128>(const Arguments&, DType, Kind, unsigned, cudaStream_t);
extern template void launch_forward<256>(const Arguments&, DType, Kind, unsigned, cudaStream_t);

/// Puts rows together whose keys were split.
void combine_parts(const Arguments& arguments, DType dtype, cudaStream_t stream);

}  // namespace rootdk::cuda::mma
