// The tile products in terms of Eigen, for the instruction set that is switched on where this file is included. The
// includer renames namespace Eigen first: the same template compiled for two instruction sets must not be the same
// symbol.

#include "nn/matmul_tile.h"

// Threads are ours, over fixed tiles: Eigen's would cut the inner axis by their number, which changes bits. Sizes are
// checked at the API's edge: a library does not end the process by an assertion.
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#include <Eigen/Core>

namespace rootdk::nn {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using ConstView = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

ConstView view(const Operand& x, std::int64_t rows, std::int64_t cols) {
  return ConstView(x.data, rows, cols, Eigen::OuterStride<>(x.stride));
}
View view(const Result& x, std::int64_t rows, std::int64_t cols) {
  return View(x.data, rows, cols, Eigen::OuterStride<>(x.stride));
}

// Eigen blocks the inner axis by the sizes of the caches. Fixed ones give the same bits on every machine with this
// instruction set.
void fix_block_sizes() {
  static const bool done = (Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20), true);
  static_cast<void>(done);
}

void add_nt(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  fix_block_sizes();
  view(c, s.rows, s.cols).noalias() += view(a, s.rows, s.inner) * view(b, s.cols, s.inner).transpose();
}

void add_nn(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  fix_block_sizes();
  view(c, s.rows, s.cols).noalias() += view(a, s.rows, s.inner) * view(b, s.inner, s.cols);
}

void add_tn(const TileSize& s, const Operand& a, const Operand& b, const Result& c) {
  fix_block_sizes();
  view(c, s.rows, s.cols).noalias() += view(a, s.inner, s.rows).transpose() * view(b, s.inner, s.cols);
}

}  // namespace
}  // namespace rootdk::nn
