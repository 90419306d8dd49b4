// The gradient of a bias: a block owns a tile of the bias and goes through all pairs that share its elements, heads of
// items in order, then tiles of rows and of keys where the bias repeats along them. It computes S and dP again, two
// products, and dS stays in f32, so that every element is one sum in a fixed order.
#include "cuda/common/launch.h"
#include "cuda/mma/backward/gradients.cuh"
#include "cuda/mma/backward/loads.cuh"
#include "cuda/mma/backward/products.cuh"

namespace rootdk::cuda::mma::back {

namespace {

consteval TileShape in_one_stage(TileShape shape) {
  shape.stages = 1;
  return shape;
}
template <int kDim>
using BiasTile = Tile<in_one_stage(shape_of<kDim, Kind::kSmall>())>;

/// A range of tiles along an axis.
struct Range {
  int begin, end;
};

/// Whether any row of the tile may see any of the keys. The rows' tiles are multiples of this kernel's.
template <class Tile>
__device__ __forceinline__ bool meets(const Arguments& a, int b, int first_row, int first_key) {
  const RowTile tile = a.tiles[std::int64_t{b} * a.row_tiles + first_row / a.rows];
  return first_key < tile.last_block * a.keys && first_key + Tile::kKeys > tile.first_block * a.keys;
}

/// The rows' numbers and places as main has them, for rows of this kernel's tiles; main's tiles are as large or larger.
template <class Tile>
__device__ __forceinline__ void copy_numbers(const Arguments& a, unsigned char* memory, int b, int h, int first_row) {
  const float* numbers = numbers_of(a, b, h, first_row / a.rows) + first_row % a.rows;
  const int* places = places_of(a, b, first_row / a.rows) + first_row % a.rows;
  auto* to = reinterpret_cast<float*>(memory + Tile::kNumbers);
  auto* to_places = reinterpret_cast<int*>(to) + kRowNumbers * Tile::kRows;
  for (int x = static_cast<int>(threadIdx.x); x < kRowNumbers * Tile::kRows; x += Tile::kThreads)
    to[x] = numbers[x / Tile::kRows * a.rows + x % Tile::kRows];
  for (int x = static_cast<int>(threadIdx.x); x < kRowPlaces * Tile::kRows; x += Tile::kThreads)
    to_places[x] = places[x / Tile::kRows * a.rows + x % Tile::kRows];
}

/// Sums in shared memory, [rows][keys], over rows or keys or both where the bias repeats along them, and out.
template <class Tile>
__device__ __forceinline__ void write_bias(const Arguments& a, const float* sums, int b, int h, int first_row,
                                           int first_key) {
  const ProblemView& p = a.f.p;
  const bool one_row = a.f.bias_shape[2] == 1, one_key = a.f.bias_shape[3] == 1;
  const int rows = one_row ? 1 : Tile::kRows, keys = one_key ? 1 : Tile::kKeys;
  for (int x = static_cast<int>(threadIdx.x); x < rows * keys; x += Tile::kThreads) {
    const int row = x / keys, key = x % keys;
    double sum = 0;
    for (int r = row; r < (one_row ? Tile::kRows : row + 1); ++r)
      for (int k = key; k < (one_key ? Tile::kKeys : key + 1); ++k)
        sum += static_cast<double>(sums[r * Tile::kKeys + k]);
    const int i = one_row ? 0 : first_row + row, j = one_key ? 0 : first_key + key;
    if ((one_row || i < p.len_q) && (one_key || j < p.len_kv))
      write(a.f.d_bias, at(a.f.d_bias, b, h, i, j), static_cast<float>(sum));
  }
}

template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads, 1) mma_bias_kernel(const __grid_constant__ Arguments a) {
  using Grid = typename Tile::Scores;
  const ProblemView& p = a.f.p;
  unsigned char* memory = shared_memory();
  const SharedAddress base = address_of(memory);
  const std::int64_t* shape = a.f.bias_shape;
  const int row_tiles = static_cast<int>(divide_up(p.len_q, Tile::kRows)),
            key_tiles = static_cast<int>(divide_up(p.len_kv, Tile::kKeys));
  // Which tile: keys run fastest.
  std::int64_t left = blockIdx.x;
  const auto take = [&](bool repeats, std::int64_t tiles) {
    if (repeats) return Range{0, static_cast<int>(tiles)};
    const int own = static_cast<int>(left % tiles);
    left /= tiles;
    return Range{own, own + 1};
  };
  const Range keys = take(shape[3] == 1, key_tiles), rows = take(shape[2] == 1, row_tiles),
              heads = take(shape[1] == 1, p.heads_q), items = take(shape[0] == 1, p.batch);
  float sums[Grid::kM][Grid::kN][4];
  clear(sums);
  for (int b = items.begin; b < items.end; ++b)
    for (int h = heads.begin; h < heads.end; ++h)
      for (int m = rows.begin; m < rows.end; ++m)
        for (int n = keys.begin; n < keys.end; ++n) {
          const int first_row = m * Tile::kRows, first_key = n * Tile::kKeys;
          if (!meets<Tile>(a, b, first_row, first_key)) continue;
          __syncthreads();  // nobody reads the tiles before
          load_key_tiles<Tile>(a, base, b, h / static_cast<int>(p.group), n);
          load_row_tile<Tile>(a, base + Tile::kQ, a.f.q, p.dim_qk, a.q_width, b, h, m);
          load_row_tile<Tile>(a, base + Tile::kDO, a.f.d_o, p.dim_v, a.d_o_width, b, h, m);
          copies_commit();
          copy_numbers<Tile>(a, memory, b, h, first_row);
          copies_wait<0>();
          __syncthreads();
          float s[Grid::kM][Grid::kN][4], d_p[Grid::kM][Grid::kN][4];
          clear(s), clear(d_p);
          multiply_scores<Tile, T>(s, base + Tile::kQ, base + Tile::kK);
          multiply_scores<Tile, T>(d_p, base + Tile::kDO, base + Tile::kV);
          const Pairing pairing{b, h, first_row, first_key, true, false, 1};
          rich_gradients<Tile::kRows, true>(a, s, d_p, RowArrays<Tile::kRows>(memory + Tile::kNumbers),
                                            Grid::first_row(), Grid::first_column(), nullptr, pairing, nullptr);
#pragma unroll
          for (int x = 0; x < Grid::kM * Grid::kN * 4; ++x)
            sums[x / 4 / Grid::kN][x / 4 % Grid::kN][x % 4] += d_p[x / 4 / Grid::kN][x / 4 % Grid::kN][x % 4];
        }
  __syncthreads();
  auto* shared = reinterpret_cast<float*>(memory);
  const int lane = thread_now() % 32;
#pragma unroll
  for (int x = 0; x < Grid::kM * Grid::kN * 4; ++x) {
    const int m = x / 4 / Grid::kN, j = x / 4 % Grid::kN, e = x % 4;
    const int row = Grid::first_row() + 16 * m + 8 * (e / 2) + lane / 4,
              key = Grid::first_column() + 8 * j + lane % 4 * 2 + e % 2;
    shared[row * Tile::kKeys + key] = sums[m][j][e];
  }
  __syncthreads();
  write_bias<Tile>(a, shared, items.begin, heads.begin, rows.begin * Tile::kRows, keys.begin * Tile::kKeys);
}

template <int kDim, class T>
void launch(const Arguments& a, cudaStream_t stream) {
  using Tile = BiasTile<kDim>;
  static_assert(Tile::kBytes <= 101376 && Tile::kRows * Tile::kKeys * 4 <= Tile::kNumbers);
  const ProblemView& p = a.f.p;
  const std::int64_t* shape = a.f.bias_shape;
  std::int64_t blocks = shape[0] * shape[1];
  if (shape[2] != 1) blocks *= divide_up(p.len_q, Tile::kRows);
  if (shape[3] != 1) blocks *= divide_up(p.len_kv, Tile::kKeys);
  if (blocks == 0) return;
  const auto kernel = mma_bias_kernel<Tile, T>;
  allow_shared(kernel, Tile::kBytes);
  launch_kernel("mma backward, bias", kernel, static_cast<unsigned>(blocks), Tile::kThreads, Tile::kBytes, stream, a);
}

}  // namespace

void launch_bias_gradient(const Arguments& a, DType dtype, int dim, cudaStream_t stream) {
  const auto go = [&]<class T>(T) {
    if (dim == 64) launch<64, T>(a, stream);
    else if (dim == 128) launch<128, T>(a, stream);
    else launch<256, T>(a, stream);
  };
  if (dtype == DType::kBF16) go(__nv_bfloat16{});
  else go(__half{});
}

}  // namespace rootdk::cuda::mma::back
