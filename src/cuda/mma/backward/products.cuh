// The five products of a step, each warp its part: operands from shared memory, sums in registers.
#pragma once

#include "cuda/mma/backward/shapes.cuh"

namespace rootdk::cuda::mma::back {

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) c[m][j][x] = 0;
}

/// c += a · b over kSteps times 16. read_a(x, m, step) and read_b(x, two, step) give operands of 16 rows and of 16
/// columns of c.
template <class T, int kSteps, int kM, int kN, class ReadA, class ReadB>
__device__ __forceinline__ void multiply_tiles(float (&c)[kM][kN][4], const ReadA& read_a, const ReadB& read_b) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) read_a(a[m], m, step);
#pragma unroll
    for (int two = 0; two < kN / 2; ++two) {
      std::uint32_t b[4];
      read_b(b, two, step);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply<T>(c[m][2 * two], a[m], b[0], b[1]);
        multiply<T>(c[m][2 * two + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// S = Q·Kᵀ or dP = dO·Vᵀ.
template <class Tile, class T, int kM, int kN>
__device__ __forceinline__ void multiply_scores(float (&s)[kM][kN][4], SharedAddress rows, SharedAddress keys) {
  using Grid = typename Tile::Scores;
  const ARows<Tile::kDim> a(rows + static_cast<unsigned>(Grid::first_row() * kPitch<Tile::kDim>));
  const BRows<Tile::kDim> b(keys + static_cast<unsigned>(Grid::first_column() * kPitch<Tile::kDim>));
  multiply_tiles<T, Tile::kDim / 16>(
      s, [&](std::uint32_t(&x)[4], int m, int step) { a.read(x, 16 * m, step); },
      [&](std::uint32_t(&x)[4], int two, int step) { b.read(x, 16 * two, step); });
}

/// dV += Pᵀ·dO or dK += dSᵀ·Q.
template <class Tile, class T, int kM, int kN>
__device__ __forceinline__ void multiply_rows(float (&sums)[kM][kN][4], SharedAddress weights, SharedAddress rows) {
  using Grid = typename Tile::KeySums;
  const AColumns<Tile::kScoreColumns> a(weights);
  const BColumns<Tile::kDim> b(rows);
  const int key = Grid::first_row() / 16, dim = Grid::first_column() / 16;
  multiply_tiles<T, Tile::kRows / 16>(
      sums, [&](std::uint32_t(&x)[4], int m, int step) { a.read(x, 16 * step, key + m); },
      [&](std::uint32_t(&x)[4], int two, int step) { b.read(x, 16 * step, dim + two); });
}

/// dQ += dS·K.
template <class Tile, class T, int kM, int kN>
__device__ __forceinline__ void multiply_keys(float (&sums)[kM][kN][4], SharedAddress d_scores, SharedAddress keys) {
  using Grid = typename Tile::QuerySums;
  const ARows<Tile::kScoreColumns> a(d_scores + static_cast<unsigned>(Grid::first_row() * kPitch<Tile::kScoreColumns>));
  const BColumns<Tile::kDim> b(keys);
  const int dim = Grid::first_column() / 16;
  multiply_tiles<T, Tile::kKeys / 16>(
      sums, [&](std::uint32_t(&x)[4], int m, int step) { a.read(x, 16 * m, step); },
      [&](std::uint32_t(&x)[4], int two, int step) { b.read(x, 16 * step, dim + two); });
}

/// P or dS, to shared memory.
template <class Tile, class T, int kM, int kN>
__device__ __forceinline__ void store_scores(SharedAddress to, const float (&s)[kM][kN][4]) {
  using Grid = typename Tile::Scores;
  const int lane = thread_now() % 32, row = Grid::first_row() + lane / 4, piece = Grid::first_column() / 8;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared(to + place_of<Tile::kScoreColumns>(row + 16 * m + 8 * half, piece + j) +
                         static_cast<unsigned>(lane % 4 * 4),
                     pack2<T>(s[m][j][2 * half], s[m][j][2 * half + 1]));
}

}  // namespace rootdk::cuda::mma::back
