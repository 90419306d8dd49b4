// Tile products for AVX2 and FMA, about three times the baseline. The build compiles this file alone for them; where it
// does not, there is nothing here. No inline function of anything but Eigen may be left to the linker from here: it
// could be taken for the whole program, and must run on any machine. (Optimised builds inline the few that Eigen
// calls.)
#include "nn/matmul_tile.h"

#if defined(__AVX2__) && defined(__FMA__)

#define Eigen RootdkEigenAvx2
#include "nn/matmul_tile-inl.h"

namespace rootdk::nn {

const TileProducts* tile_products_avx2() {
  static constexpr TileProducts kProducts = {"AVX2", &add_nt, &add_nn, &add_tn};
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kProducts : nullptr;
}

}  // namespace rootdk::nn

#else

namespace rootdk::nn {

const TileProducts* tile_products_avx2() { return nullptr; }

}  // namespace rootdk::nn

#endif
