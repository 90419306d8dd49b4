// One tile of a matrix product, by one thread, compiled for several instruction sets.
//
// Eigen's own product does the work. A BLAS underneath would have to be serial and safe to call from many threads at
// once, and Debian's serial OpenBLAS (0.3.21) is not: its scratch memory has no lock (USE_LOCKING), and results come
// out wrong.
#pragma once

#include <cstdint>
#include <vector>

namespace rootdk::nn {

/// A row-major matrix, `stride` elements from row to row.
struct Operand {
  const float* data;
  std::int64_t stride;
};
struct Result {
  float* data;
  std::int64_t stride;
};
struct TileSize {
  std::int64_t rows, cols, inner;  ///< c is [rows, cols]; sums run over inner
};

struct TileProducts {
  const char* isa;
  void (*add_nt)(const TileSize& size, const Operand& a, const Operand& b,
                 const Result& c);  ///< c += a·bᵀ, b [cols, inner]
  void (*add_nn)(const TileSize& size, const Operand& a, const Operand& b,
                 const Result& c);  ///< c += a·b, b [inner, cols]
  void (*add_tn)(const TileSize& size, const Operand& a, const Operand& b,
                 const Result& c);  ///< c += aᵀ·b, a [inner, rows]
};

const TileProducts* tile_products_baseline();
const TileProducts* tile_products_avx2();  ///< null if this build or this machine has none

/// All that run here, best first.
std::vector<const TileProducts*> tile_products_here();

}  // namespace rootdk::nn
