// What the parts of the Hopper backward hand to each other.
//
//   prepare   of each query row: −LSE in base 2, D = dO·O − dLSE, and which keys it sees; of each tile of rows, which
//   tiles of keys
//             and, where masks hide something, whether a row is sick: its LSE or D is not finite
//   main      a block owns 128 keys (64 at dim 256): dK and dV stay in its registers, dQ leaves tile by tile into an
//   f32 sum, in a fixed order rows      dim 256 only, where main leaves dQ out: a block owns 128 query rows finish dQ
//   in the caller's type, and the sums along rows
//
// What masks hide must not matter, but a weight of zero times what is not finite is NaN. Keys that an item has not, and
// rows that see nothing, become zero as they arrive. Anything else that is not finite and that somebody sees shows as a
// sick row, which prepare knows of; keys that nobody sees, where a mask leaves such, main looks for while it works, and
// is then launched once more. Where there is such trouble all that is loaded is cleaned first: sick rows still have an
// LSE or D that is not finite, keys that were not finite are remembered, and both make NaN of the pairs that see them
// and of no others.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda/common/view.h"

namespace rootdk::cuda {

/// Dims are padded with zeros to one of three.
inline constexpr int backward_dim(std::int64_t dim_qk, std::int64_t dim_v) {
  const std::int64_t dim = dim_qk > dim_v ? dim_qk : dim_v;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

/// Keys and query rows of a tile: what registers allow.
inline constexpr __host__ __device__ int backward_keys(int dim) { return dim == 256 ? 64 : 128; }
inline constexpr __host__ __device__ int backward_rows(int dim) { return dim == 64 ? 128 : 64; }

enum Trouble : int { kNoTrouble, kSickRows, kSickKeys };

/// What a tile of query rows sees.
struct RowTile {
  int first_block, last_block;  ///< tiles of keys, as a range; all of them add to the tile's dQ
  int max_begin, min_end;       ///< keys that every row sees; min_end is 0 where a row sees none
};

/// Of a query head, where heads differ.
struct HeadScale {
  float scale2;  ///< the scale times log2(e)
  float ratio;   ///< dS is multiplied by this before dK and dQ: the scale over the largest of the heads that read the
                 ///< same keys
  float last;    ///< that largest one, for the end
};

struct BackwardArguments {
  BackwardView f;
  CUtensorMap q, k, v, d_o;
  float* lse =
      nullptr;  ///< −LSE·log2(e), [batch, heads_q, row_tiles, rows]; −∞ for rows that see nothing, and for padding
  float* delta = nullptr;    ///< likewise
  int2* rows = nullptr;      ///< begin and end of a row's keys, [batch, row_tiles, rows]
  RowTile* tiles = nullptr;  ///< [batch, row_tiles]
  int* turns = nullptr;      ///< how many have added to a tile of dQ, [batch, heads_q, row_tiles]
  float* d_q = nullptr;  ///< without the scale, [batch, heads_q, row_tiles, rows × dim], in the order of the registers
                         ///< that it comes from; null where `rows` writes the result itself
  double* score_squares =
      nullptr;               ///< for statistics: the sum of dS² of each warp's keys, [batch, heads_q, key_tiles, 8]
  int* trouble = nullptr;    ///< where masks hide something: a Trouble
  bool unseen_keys = false;  ///< there may be keys that an item has and none of its rows sees
  bool once_more = false;    ///< main's second launch, which has work only where the first found trouble
  int* next_task = nullptr;
  int row_tiles = 0, key_tiles = 0, tasks = 0;
  int near_heads = 1;             ///< heads whose tasks are taken together
  bool turns_alternate = false;   ///< see place_task
  int ring = 0;                   ///< likewise; 0 for none
  bool first_keys_first = false;  ///< likewise
  float scale = 1, scale2 = 1;    ///< of all heads: HeadScale::last and scale2
  HeadScale* heads = nullptr;     ///< or of each
};

void hopper_backward_launch(const BackwardArguments& a, int dim, DType dtype, int blocks, cudaStream_t stream);
void hopper_backward_launch_rows(const BackwardArguments& a, DType dtype, cudaStream_t stream);

}  // namespace rootdk::cuda
