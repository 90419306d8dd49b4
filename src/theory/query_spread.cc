// A trapezoidal lattice for the χ² of ‖q‖², thinned to a few nodes by Gauss's rule.
#include "theory/query_spread.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "theory/matrix.h"

namespace rootdk::theory {

namespace {

// With y = ln(χ²/d) the density is proportional to e^{(d/2)(y − e^y)}, and y = z − e^{−z} makes its left end fall as
// fast as its right one, for d = 1 too (Takahasi & Mori 1974). Then the trapezoidal rule in z, out to where the density
// is 1e-13.
std::vector<SpreadNode> lattice(std::int64_t dim_qk, double refinement) {
  constexpr double kMode = 0.56714329040978384;  // z = e^{−z}: y = 0
  constexpr double kEnd = 1e-13;
  const double half_d = static_cast<double>(dim_qk) / 2;
  const double step = std::min(0.125, 0.4 / std::sqrt(half_d)) / refinement;

  std::vector<SpreadNode> nodes;
  const auto add = [&](double z) {
    const double y = z - std::exp(-z), density = std::exp(half_d * (y + 1 - std::exp(y))) * (1 + std::exp(-z));
    nodes.push_back({std::exp(y / 2), density});
    return density > kEnd;
  };
  for (int i = 0; add(kMode + i * step);) ++i;
  for (int i = 1; add(kMode - i * step);) ++i;

  double total = 0;
  for (const SpreadNode& node : nodes) total += node.weight;
  for (SpreadNode& node : nodes) node.weight /= total;
  return nodes;
}

// Gauss's rule for the measure that the nodes are, over ln factor: Lanczos gives its Jacobi matrix, whose eigenvalues
// are the new nodes (Golub & Welsch 1969).
std::vector<SpreadNode> gauss_rule(const std::vector<SpreadNode>& nodes, Eigen::Index count) {
  Vector y(static_cast<Eigen::Index>(nodes.size())), v(y.size());
  for (Eigen::Index i = 0; i < y.size(); ++i) {
    y(i) = std::log(nodes[static_cast<std::size_t>(i)].factor);
    v(i) = std::sqrt(nodes[static_cast<std::size_t>(i)].weight);
  }
  Matrix basis = Matrix::Zero(y.size(), count), jacobi = Matrix::Zero(count, count);
  for (Eigen::Index k = 0; k < count; ++k) {
    basis.col(k) = v.normalized();
    v = y.cwiseProduct(basis.col(k));
    jacobi(k, k) = basis.col(k).dot(v);
    for (int twice = 0; twice < 2; ++twice) v -= basis.leftCols(k + 1) * (basis.leftCols(k + 1).transpose() * v);
    if (k + 1 < count) jacobi(k, k + 1) = jacobi(k + 1, k) = v.norm();
  }
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(jacobi);
  std::vector<SpreadNode> out;
  for (Eigen::Index k = 0; k < count; ++k) {
    const double first = solver.eigenvectors()(0, k);
    out.push_back({std::exp(solver.eigenvalues()(k)), first * first});
  }
  return out;
}

}  // namespace

// The more components, the surer the length, and the fewer points tell it. Of few components the left tail is long.
std::vector<SpreadNode> query_spread(std::int64_t dim_qk, double refinement) {
  std::vector<SpreadNode> nodes = lattice(dim_qk, refinement);
  // So many keep entropy, Σp², tr J and p_max within 1e-7, for σ up to 40 and up to a million keys.
  const double enough = dim_qk < 16 ? 1e9 : dim_qk < 32 ? 16 : dim_qk < 64 ? 12 : dim_qk < 256 ? 8 : 6;
  if (enough * refinement >= static_cast<double>(nodes.size())) return nodes;
  return gauss_rule(nodes, static_cast<Eigen::Index>(enough * refinement));
}

std::vector<SpreadNode> rough_query_spread(std::int64_t dim_qk) {
  const std::vector<SpreadNode> nodes = lattice(dim_qk, 1);
  const Eigen::Index enough = dim_qk < 2 ? 32 : dim_qk < 4 ? 24 : dim_qk < 8 ? 12 : dim_qk < 16 ? 8 : 6;
  return gauss_rule(nodes, enough);
}

}  // namespace rootdk::theory
