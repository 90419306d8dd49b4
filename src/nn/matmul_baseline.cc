// Tile products for the instruction set that the whole library is compiled for: SSE2 on x86-64, NEON on arm64.
#define Eigen RootdkEigenBaseline
#include "nn/matmul_tile-inl.h"

namespace rootdk::nn {

const TileProducts* tile_products_baseline() {
  static constexpr TileProducts kProducts = {"baseline", &add_nt, &add_nn, &add_tn};
  return &kProducts;
}

}  // namespace rootdk::nn
