// The largest eigenvalue alone: tridiagonal form, then bisection by counting signs.
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "theory/matrix.h"

namespace rootdk::theory {

namespace {

// Whether some eigenvalue of the tridiagonal matrix is above x: some pivot of T − x is positive (Sturm). A pivot of 0
// is taken for a tiny negative one, which moves x by less than rounding does.
bool any_above(const Vector& diagonal, const Vector& beside, double x, double tiny) {
  double pivot = diagonal(0) - x;
  if (pivot > 0) return true;
  for (Eigen::Index i = 1; i < diagonal.size(); ++i) {
    pivot = diagonal(i) - x - beside(i - 1) * beside(i - 1) / std::min(pivot, -tiny);
    if (pivot > 0) return true;
  }
  return false;
}

}  // namespace

double largest_eigenvalue(const Matrix& m) {
  if (m.rows() == 1) return m(0, 0);
  const Eigen::Tridiagonalization<Matrix> form(m);
  const Vector diagonal = form.diagonal(), beside = form.subDiagonal();
  double low = diagonal.maxCoeff(), high = low,
         size = 0;  // λ_max is at least any diagonal element; Gershgorin's discs end at `high`
  for (Eigen::Index i = 0; i < diagonal.size(); ++i) {
    const double radius = (i > 0 ? std::fabs(beside(i - 1)) : 0) + (i + 1 < diagonal.size() ? std::fabs(beside(i)) : 0);
    high = std::max(high, diagonal(i) + radius);
    size = std::max(size, std::fabs(diagonal(i)) + radius);
  }
  if (!std::isfinite(size)) return std::numeric_limits<double>::quiet_NaN();
  const double tiny = std::max(size * 0x1p-100, std::numeric_limits<double>::min());
  while (high - low > 0x1p-52 * size) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (any_above(diagonal, beside, middle, tiny) ? low : high) = middle;
  }
  return high;
}

}  // namespace rootdk::theory
