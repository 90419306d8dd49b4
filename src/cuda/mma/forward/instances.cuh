// Instances of the forward kernel for one dim: two dtypes by four kinds.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/mma/forward/instances.h"
#include "cuda/mma/forward/kernel.cuh"

namespace rootdk::cuda::mma {

template <class T, int kDim, Kind kKind>
void launch_instance(const Arguments& a, unsigned blocks, cudaStream_t stream) {
  using Of = Tile<shape_of<kDim, kKind>()>;
  const auto kernel = forward_kernel<T, Of, kKind>;
  static PerDevice<bool> allowed;
  allowed.get([&] { return allow_shared(kernel, Of::kBytes), true; });
  launch_kernel("mma forward", kernel, blocks, Of::kThreads, Of::kBytes, stream, a);
}

template <int kDim>
void launch_forward(const Arguments& a, DType dtype, Kind kind, unsigned blocks, cudaStream_t stream) {
  const auto of_kind = [&]<class T>(T) {
    switch (kind) {
      case Kind::kScaled: return launch_instance<T, kDim, Kind::kScaled>(a, blocks, stream);
      case Kind::kRich: return launch_instance<T, kDim, Kind::kRich>(a, blocks, stream);
      case Kind::kFull: return launch_instance<T, kDim, Kind::kFull>(a, blocks, stream);
      case Kind::kFew: return launch_instance<T, kDim, Kind::kFew>(a, blocks, stream);
    }
  };
  if (dtype == DType::kBF16) of_kind(__nv_bfloat16{});
  else of_kind(__half{});
}

}  // namespace rootdk::cuda::mma
