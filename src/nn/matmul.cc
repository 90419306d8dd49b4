// Tiles handed to threads; which instruction set multiplies one is looked up once.
#include "nn/matmul.h"

#include <algorithm>

#include "base/parallel.h"
#include "nn/matmul_tile.h"

namespace rootdk::nn {

namespace {

// Part of what the result's bits depend on. Large enough that packing the operands is small beside the product (a tile
// of 128×256 does 85 multiply-adds for every operand element packed), small enough to occupy many threads.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileCols = 256;
constexpr std::int64_t kSumCols = 64;

// tile(row, col, rows, cols) for every tile of a [rows, cols] result, on whichever thread is free.
template <class Tile>
void for_each_tile(std::int64_t rows, std::int64_t cols, const Tile& tile) {
  const std::int64_t down = (rows + kTileRows - 1) / kTileRows, across = (cols + kTileCols - 1) / kTileCols;
  base::parallel_tasks(down * across, base::free_threads(), [&](std::int64_t task, int) {
    const std::int64_t row = task / across * kTileRows, col = task % across * kTileCols;
    tile(row, col, std::min(kTileRows, rows - row), std::min(kTileCols, cols - col));
  });
}

const TileProducts& best() {
  static const TileProducts& products = *tile_products_here().front();
  return products;
}

}  // namespace

std::vector<const TileProducts*> tile_products_here() {
  std::vector<const TileProducts*> all;
  for (const TileProducts* products : {tile_products_avx2(), tile_products_baseline()})
    if (products) all.push_back(products);
  return all;
}

void multiply_by_transpose(std::int64_t rows, std::int64_t in, std::int64_t out, const float* x, const float* w,
                           const float* b, float* y) {
  for_each_tile(rows, out, [&](std::int64_t row, std::int64_t col, std::int64_t n, std::int64_t m) {
    for (std::int64_t r = row; r < row + n; ++r) {
      if (b != nullptr) {
        std::copy_n(b + col, m, y + r * out + col);
      } else {
        std::fill_n(y + r * out + col, m, 0.0f);
      }
    }
    best().add_nt({n, m, in}, {x + row * in, in}, {w + col * in, in}, {y + row * out + col, out});
  });
}

void add_product(std::int64_t rows, std::int64_t in, std::int64_t out, const float* d_y, const float* w, float* d_x) {
  for_each_tile(rows, in, [&](std::int64_t row, std::int64_t col, std::int64_t n, std::int64_t m) {
    best().add_nn({n, m, out}, {d_y + row * out, out}, {w + col, in}, {d_x + row * in + col, in});
  });
}

void add_outer_products(std::int64_t rows, std::int64_t in, std::int64_t out, const float* d_y, const float* x,
                        float* d_w) {
  for_each_tile(out, in, [&](std::int64_t row, std::int64_t col, std::int64_t n, std::int64_t m) {
    best().add_tn({n, m, rows}, {d_y + row, out}, {x + col, in}, {d_w + row * in + col, in});
  });
}

void add_column_sums(std::int64_t rows, std::int64_t out, const float* d_y, float* sum) {
  base::parallel_tasks((out + kSumCols - 1) / kSumCols, base::free_threads(), [&](std::int64_t chunk, int) {
    const std::int64_t col = chunk * kSumCols, n = std::min(kSumCols, out - col);
    double total[kSumCols] = {};
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < n; ++c) total[c] += static_cast<double>(d_y[r * out + col + c]);
    for (std::int64_t c = 0; c < n; ++c)
      sum[col + c] = static_cast<float>(static_cast<double>(sum[col + c]) + total[c]);
  });
}

}  // namespace rootdk::nn
