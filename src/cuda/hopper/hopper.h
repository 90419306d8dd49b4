// The Hopper kernels (sm_90a): wgmma, TMA, warp specialisation, as FlashAttention-3 (Shah et al. 2024) describes them.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/arena.h"
#include "base/call.h"
#include "cuda/common/view.h"

namespace rootdk::cuda {

/// Whether places of keys can be worked out in int32: see base::KeyRangeOf.
inline bool fits_int32(const Mask& mask, const Shape& shape) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 28;
  return shape.len_q <= kFarthest && shape.len_kv <= kFarthest && mask.diagonal.offset <= kFarthest &&
         mask.diagonal.offset >= -kFarthest;
}

/// Why the kernel cannot take a problem; empty if it can.
std::string hopper_misfit(const Problem& problem, const Shape& shape, const Gpu& card);

/// Whether TMA can read tensors of these strides.
bool hopper_takes(const Inputs& in);

struct HopperMemory {
  float* o = nullptr;        ///< split-KV, of rows whose keys are split: [parts, batch, heads_q, len_q, dim_v]
  float4* rows = nullptr;    ///< [parts, batch, heads_q, len_q]: PartRow
  int* again = nullptr;      ///< tiles to compute again
  int2* runs = nullptr;      ///< [batch, len_q]: the keys that documents leave
  int* next_tile = nullptr;  ///< two counters and a flag, where blocks take the next tile when they are free
  unsigned long long* largest = nullptr;  ///< with full statistics: of each head's warps the row with the largest score
};
HopperMemory hopper_memory(const Plan& plan, base::Arena& arena);

void hopper_forward(const ForwardView& view, const base::ForwardCall& call, const HopperMemory& memory,
                    cudaStream_t stream);

/// The same of backward.
std::string hopper_backward_misfit(const Problem& problem, const Shape& shape, const Gpu& card);
bool hopper_backward_takes(const BackwardInputs& in);

struct RowTile;
struct HeadScale;
struct HopperBackwardMemory {  ///< see BackwardArguments
  float *lse = nullptr, *delta = nullptr;
  int2* rows = nullptr;
  RowTile* tiles = nullptr;
  int *turns = nullptr, *next_task = nullptr, *trouble = nullptr;
  HeadScale* heads = nullptr;
  float* d_q = nullptr;
  double* score_squares = nullptr;
};
HopperBackwardMemory hopper_backward_memory(const Plan& plan, base::Arena& arena);

void hopper_backward(const BackwardView& view, const base::BackwardCall& call, const HopperBackwardMemory& memory,
                     cudaStream_t stream);

}  // namespace rootdk::cuda
