// Pairs brought side by side, 2×2 blocks as complex numbers, phases averaged over distances.
#include "theory/rotation.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace rootdk::theory {

namespace {

using Complex = std::complex<double>;

Eigen::Index places(const Pairs& pairs) { return static_cast<Eigen::Index>(pairs.order.size()); }

}  // namespace

Pairs::Pairs(const Rotation& rotation, std::int64_t dim) {
  const auto turning = static_cast<std::int64_t>(rotation.frequencies.size());
  for (std::int64_t i = 0; i < turning; ++i) {
    const bool halves = rotation.pairing == Rotation::Pairing::kHalfSplit;
    order.push_back(halves ? i : 2 * i);
    order.push_back(halves ? i + turning : 2 * i + 1);
  }
  for (std::int64_t i = 2 * turning; i < dim; ++i) order.push_back(i);
  if (order.size() % 2 != 0) order.push_back(-1);
  frequency.assign(rotation.frequencies.begin(), rotation.frequencies.end());
  frequency.resize(order.size() / 2, 0.0);
}

Matrix Pairs::arrange(const Matrix& m) const {
  Matrix out = Matrix::Zero(places(*this), places(*this));
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j)
      if (order[i] >= 0 && order[j] >= 0)
        out(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) = m(order[i], order[j]);
  return out;
}

Vector Pairs::arrange(const Vector& v) const {
  Vector out = Vector::Zero(places(*this));
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] >= 0) out(static_cast<Eigen::Index>(i)) = v(order[i]);
  return out;
}

Complex Phases::mean(double omega) const {
  switch (kind_) {
    case Kind::kAt: return std::polar(1.0, -omega * parameter_);
    case Kind::kAll: return omega == 0 ? 1 : 0;
    case Kind::kOver: break;
  }
  // A geometric series: sin(Nω/2)/(N sin(ω/2))·e^{−iω(N−1)/2}, the last factor as e^{iω/2}·e^{−iωN/2}.
  const double half = (std::fabs(omega) <= std::numbers::pi ? omega : std::remainder(omega, 2 * std::numbers::pi)) / 2;
  if (half == 0) return 1;
  const double c = std::cos(half), s = std::sin(half), cn = std::cos(parameter_ * half),
               sn = std::sin(parameter_ * half);
  const double factor = sn / (parameter_ * s);
  return {factor * (c * cn + s * sn), factor * (s * cn - c * sn)};
}

Matrix turned(const Matrix& m, const Pairs& pairs, const Phases& phases) {
  Matrix out(m.rows(), m.cols());
  for (Eigen::Index p = 0; p < m.rows() / 2; ++p) {
    for (Eigen::Index r = 0; r <= p; ++r) {
      const double a = pairs.frequency[static_cast<std::size_t>(p)], b = pairs.frequency[static_cast<std::size_t>(r)];
      const auto block = m.block<2, 2>(2 * p, 2 * r);
      const Complex u = Complex(block(0, 0) + block(1, 1), block(1, 0) - block(0, 1)) / 2.0 * phases.mean(a - b);
      const Complex w = Complex(block(0, 0) - block(1, 1), block(1, 0) + block(0, 1)) / 2.0 * phases.mean(a + b);
      const Complex sum = u + w, difference = u - w;  // the images of 1 and, over i, of i
      const Eigen::Matrix2d result{{sum.real(), -difference.imag()}, {sum.imag(), difference.real()}};
      out.block<2, 2>(2 * p, 2 * r) = result;
      out.block<2, 2>(2 * r, 2 * p) = result.transpose();
    }
  }
  return out;
}

Vector turned(const Vector& v, const Pairs& pairs, const Phases& phases) {
  Vector out(v.size());
  for (Eigen::Index p = 0; p < v.size() / 2; ++p) {
    const Complex z = Complex(v(2 * p), v(2 * p + 1)) * phases.mean(pairs.frequency[static_cast<std::size_t>(p)]);
    out(2 * p) = z.real();
    out(2 * p + 1) = z.imag();
  }
  return out;
}

TurnedInner::TurnedInner(const Matrix& m, const Matrix& s)
    : difference_(m.rows() / 2, m.rows() / 2), sum_(m.rows() / 2, m.rows() / 2) {
  const auto parts = [](const Matrix& x, Eigen::Index p, Eigen::Index r) {
    const auto block = x.block<2, 2>(2 * p, 2 * r);
    return std::pair(Complex(block(0, 0) + block(1, 1), block(1, 0) - block(0, 1)),
                     Complex(block(0, 0) - block(1, 1), block(1, 0) + block(0, 1)));
  };
  for (Eigen::Index p = 0; p < difference_.rows(); ++p)
    for (Eigen::Index r = 0; r < difference_.cols(); ++r) {
      const auto [u, w] = parts(s, p, r);
      const auto [mu, mw] = parts(m, p, r);
      difference_(p, r) = u * std::conj(mu) / 2.0;
      sum_(p, r) = w * std::conj(mw) / 2.0;
    }
}

double TurnedInner::at(const Pairs& pairs, double distance) const {
  Eigen::VectorXcd phase(difference_.rows());
  for (Eigen::Index p = 0; p < phase.size(); ++p)
    phase(p) = std::polar(1.0, -pairs.frequency[static_cast<std::size_t>(p)] * distance);
  return (phase.transpose() * (difference_ * phase.conjugate() + sum_ * phase)).value().real();
}

}  // namespace rootdk::theory
