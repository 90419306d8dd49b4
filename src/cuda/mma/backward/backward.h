// What the parts of the mma backward hand to each other.
//
//   prepare   of each query row: its run of keys, −LSE in base 2, D = dO·O − dLSE and its scale; of each tile of rows,
//             which tiles of keys it sees; and, where masks hide something, whether anything is not finite
//   main      a block owns a tile of keys: dK and dV stay in its registers, dQ goes through an f32 sum in the
//   workspace,
//             to which the tiles of keys that a row sees add in ascending order
//   bias      where its gradient is wanted: a block owns a tile of the bias
//   finish    dQ in the caller's type, and the sums along rows
//
// What masks hide must not matter, but a weight of zero times what is not finite is NaN. Keys that an item has not, and
// rows that see nothing, become zero as they arrive. Where prepare has found anything else that is not finite, main
// cleans all it loads: rows still have an LSE or D that is not finite, keys that were not finite are remembered, and
// both make NaN of the pairs that see them and of no others.
#pragma once

#include <cuda_runtime.h>

#include "cuda/common/view.h"

namespace rootdk::cuda::mma::back {

/// Dims are padded with zeros to one of three.
inline int backward_dim(std::int64_t dim_qk, std::int64_t dim_v) {
  const std::int64_t dim = dim_qk > dim_v ? dim_qk : dim_v;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

/// What a tile of query rows sees.
struct RowTile {
  int first_block, last_block;  ///< tiles of keys, as a range; all of them add to the tile's dQ
  int max_begin, min_end;       ///< keys that every row sees; min_end is 0 where a row sees none, or is padding
};

/// Numbers of a row: rows of a tile lie beside each other, one array of them for each. The first is −LSE·log2(e), or
/// −LSE (Arguments::natural); −∞ for rows that see nothing and for padding, NaN where what the row sees is not finite.
inline constexpr int kOrigin = 0, kDelta = 1, kScale = 2, kRowNumbers = 3;
/// And where it stands, for all heads alike.
inline constexpr int kBegin = 0, kEnd = 1, kPosition = 2, kRowPlaces = 3;

struct Arguments {
  BackwardView f;
  float* numbers = nullptr;    ///< [batch, heads_q, row_tiles, kRowNumbers, rows]
  int* places = nullptr;       ///< [batch, row_tiles, kRowPlaces, rows]
  RowTile* tiles = nullptr;    ///< [batch, row_tiles]
  int* turns = nullptr;        ///< how many have added to a tile of dQ, [batch, heads_q, row_tiles]
  int* next_task = nullptr;    ///< tasks taken so far
  int* trouble = nullptr;      ///< not 0: something is not finite; null where everything is seen by all
  float* reference = nullptr;  ///< [heads_q]: dS is multiplied by a row's scale over this, dQ and dK by this in the end
  float* d_q = nullptr;        ///< [batch, heads_q, row_tiles, rows × dim], as accumulators lie; null: not wanted

  bool sums = false;                          ///< RowSums::d_c and d_scores are wanted
  bool dense = false;                         ///< a boolean mask or a bias, which may hide pairs
  bool natural = false;                       ///< kOrigin is −lse, not times log2(e): scores may be huge
  int q_width = 0, k_width = 0, v_width = 0;  ///< bytes that rows are copied by
  int o_width = 0, d_o_width = 0;
  unsigned char bias_pairs = 0, allowed_pairs = 0;  ///< as mma::Pairs
  int rows = 0, keys = 0;                           ///< of a tile
  int row_tiles = 0, key_tiles = 0;
};

void launch_prepare(const Arguments& a, DType dtype, cudaStream_t stream);
/// What an instance is for: scores that are scaled by a number that is the same in all rows of a head, and no more;
/// any; any, where there is little shared memory.
enum class Kind { kScaled, kRich, kSmall };
/// Main and finish, of dims padded to this.
void launch_backward_64(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream);
void launch_backward_128(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream);
void launch_backward_256(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream);
void launch_bias_gradient(const Arguments& a, DType dtype, int dim, cudaStream_t stream);

}  // namespace rootdk::cuda::mma::back
