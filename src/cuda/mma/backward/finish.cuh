// The mma backward after its main kernel: dQ from the workspace, in the order of registers, to rows, and what is summed
// up along them.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/mma/backward/kernel.cuh"

namespace rootdk::cuda::mma::back {

/// A block per tile of rows of a head. `sums`: RowSums are wanted, of which main has d_c and d_scores.
template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads) mma_finish_kernel(const __grid_constant__ Arguments a, bool sums) {
  using Grid = typename Tile::QuerySums;
  __shared__ float parts[Grid::kColumns * Tile::kRows];
  const ProblemView& p = a.f.p;
  const int m = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.row_tiles));
  const std::int64_t head = blockIdx.x / static_cast<unsigned>(a.row_tiles), b = head / p.heads_q, h = head % p.heads_q;
  const RowTile tile = a.tiles[b * a.row_tiles + m];
  const bool any = tile.first_block < tile.last_block;
  const float reference = a.reference[h];
  float d_q[Grid::kM][Grid::kN][4];
  if (a.d_q && any) read_queries<Tile>(a.d_q + std::int64_t{blockIdx.x} * (Tile::kRows * Tile::kDim), d_q);
  else clear(d_q);
  const int first = m * Tile::kRows;
  const RowsOf<T> to{a.f.d_q, static_cast<int>(p.dim_qk), p.len_q, static_cast<int>(b), static_cast<int>(h), first};
  write_rows<Grid>(to, d_q, reference);
  if (!sums) return;
  share_squares<Grid, Tile::kRows>(d_q, reference, parts);
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row >= Tile::kRows || first + row >= p.len_q) return;
  const float lse = read(a.f.lse, at(a.f.lse, b, h, first + row)),
              delta = a.numbers[std::int64_t{blockIdx.x} * (kRowNumbers * a.rows) + kDelta * a.rows + row];
  RowSums& to_sums = a.f.rows[head * p.len_q + first + row];
  if (!any || !a.sums) to_sums.d_c = to_sums.d_scores = 0;
  to_sums.d_sink = p.sink && lse != -kInfinityF ? -static_cast<double>(expf(p.sink[h] - lse) * delta) : 0;
  to_sums.d_q = square_of<Grid, Tile::kRows>(parts, row);
}

template <class Tile, class T, bool kRich>
void launch_tile(const Arguments& a, cudaStream_t stream) {
  const ProblemView& p = a.f.p;
  if (p.batch * p.heads_kv * a.key_tiles > 0) launch_main<Tile, T, kRich>(a, stream);
  const bool sums = a.sums || a.f.d_sink;
  const auto tiles = static_cast<unsigned>(p.batch * p.heads_q * a.row_tiles);
  if (tiles > 0 && (a.f.d_q.data || sums))
    launch_kernel("mma backward, dQ", mma_finish_kernel<Tile, T>, tiles, Tile::kThreads, 0, stream, a, sums);
}

template <int kDim>
void launch_dim(const Arguments& a, DType dtype, Kind kind, cudaStream_t stream) {
  const auto go = [&]<class T>(T) {
    if (kind == Kind::kScaled) launch_tile<TileFor<kDim, Kind::kScaled>, T, false>(a, stream);
    else if (kind == Kind::kRich) launch_tile<TileFor<kDim, Kind::kRich>, T, true>(a, stream);
    else launch_tile<TileFor<kDim, Kind::kSmall>, T, true>(a, stream);
  };
  if (dtype == DType::kBF16) go(__nv_bfloat16{});
  else go(__half{});
}

}  // namespace rootdk::cuda::mma::back
