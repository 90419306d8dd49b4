// Tiles in shared memory and the operands that matrix products take from them.
//
// A tile is rows (queries or keys) of kDim elements of 2 bytes, kDim a multiple of 64. Pieces of 16 bytes are swizzled,
// piece x of row r lies where x ^ (r % 8) would, so that eight rows' pieces are in different banks. A tile begins at a
// multiple of 1024 bytes.
//
// Four readers give the operands of multiply() (instructions.cuh), each of 16 rows of the tile by 16 of its columns:
//   ARows     a of  rows · …      m = rows,    k = columns     Q in Q·Kᵀ
//   BRows     b of  … · rowsᵀ     n = rows,    k = columns     K in Q·Kᵀ; x[0], x[1] are rows 0-7, x[2], x[3] rows 8-15
//   BColumns  b of  … · rows      k = rows,    n = columns     V in P·V; x[0], x[1] are columns 0-7, x[2], x[3] 8-15
//   AColumns  a of  rowsᵀ · …     m = columns, k = rows        Q in dK = dSᵀ·Q turned around, or P in Pᵀ·dO
// A reader is made once of the tile's address, costs one register, and read(x, row, step) loads rows row … row + 15
// (row a multiple of 8) and columns 16 · step … 16 · step + 15. A result of multiply() becomes the operand a of the
// next product by as_operand().
#pragma once

#include "cuda/mma/instructions.cuh"

namespace rootdk::cuda::mma {

/// Bytes between rows of a tile.
template <int kDim>
inline constexpr int kPitch = 2 * kDim;

/// Bytes from a tile's beginning to a piece of a row.
template <int kDim>
__device__ __forceinline__ unsigned place_of(int row, int piece) {
  static_assert(kDim % 64 == 0);
  return static_cast<unsigned>(row * kPitch<kDim> + (piece ^ (row & 7)) * 16);
}

enum class Operand { kARows, kBRows, kBColumns, kAColumns };

template <int kDim, Operand kOperand>
struct Reader {
  SharedAddress first;  ///< of this lane, at row 0 and step 0

  __device__ __forceinline__ explicit Reader(SharedAddress tile) {
    const int lane = thread_now() % 32;
    const bool halves = kOperand == Operand::kARows || kOperand == Operand::kBColumns;  // rows first, columns second
    const int row = halves ? lane % 16 : lane / 16 * 8 + lane % 8, piece = halves ? lane / 16 : lane / 8 % 2;
    first = tile + place_of<kDim>(row, piece);
  }

  __device__ __forceinline__ void read(std::uint32_t (&x)[4], int row, int step) const {
    // Of the bits that a step changes, a row has none.
    const SharedAddress at = (first + static_cast<unsigned>(row * kPitch<kDim>)) ^ static_cast<unsigned>(step * 32);
    if constexpr (kOperand == Operand::kARows || kOperand == Operand::kBRows) load_matrices(x, at);
    else load_matrices_transposed(x, at);
  }
};

template <int kDim>
using ARows = Reader<kDim, Operand::kARows>;
template <int kDim>
using BRows = Reader<kDim, Operand::kBRows>;
template <int kDim>
using BColumns = Reader<kDim, Operand::kBColumns>;
template <int kDim>
using AColumns = Reader<kDim, Operand::kAColumns>;

/// Columns 0-15 of a result, in two accumulators of eight columns, as operand a of a product over those columns.
template <class T>
__device__ __forceinline__ void as_operand(std::uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack2<T>(left[0], left[1]), a[1] = pack2<T>(left[2], left[3]);
  a[2] = pack2<T>(right[0], right[1]), a[3] = pack2<T>(right[2], right[3]);
}

}  // namespace rootdk::cuda::mma
