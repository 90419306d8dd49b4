// Eigen as this component uses it: row-major doubles, and the three products that all of it is made of.
#pragma once

#include <Eigen/Core>

namespace rootdk::theory {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using ConstMatrixMap = Eigen::Map<const Matrix>;
using ConstVectorMap = Eigen::Map<const Vector>;

/// A·Aᵀ, at half the price of a product.
template <class Derived>
Matrix gram(const Eigen::MatrixBase<Derived>& a) {
  Matrix out = Matrix::Zero(a.rows(), a.rows());
  out.selfadjointView<Eigen::Lower>().rankUpdate(a);
  out.triangularView<Eigen::StrictlyUpper>() = out.transpose();
  return out;
}

/// ⟨A, B⟩ = Σ AᵢⱼBᵢⱼ; tr(AB) where one is symmetric.
inline double inner(const Matrix& a, const Matrix& b) { return a.cwiseProduct(b).sum(); }

/// vᵀAv.
inline double form(const Matrix& a, const Vector& v) { return v.dot(a * v); }

/// λ_max of a symmetric matrix, to rounding; quicker than all eigenvalues. NaN where something is not finite.
double largest_eigenvalue(const Matrix& m);

}  // namespace rootdk::theory
