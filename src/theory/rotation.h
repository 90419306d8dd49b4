// Rotary positions seen from the moments of k: what R M Rᵀ is at one distance, and on average over many.
//
// A pair of components is a complex number. A 2×2 block of M is then the map z ↦ u z + w z̄, and turning its two sides
// by α and β multiplies u by e^{i(α−β)} and w by e^{i(α+β)}. So an average over distances is an average of such phases.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

#include "rootdk/theory/head.h"
#include "theory/matrix.h"

namespace rootdk::theory {

/// The components of a head reordered: pair i is (2i, 2i+1). Those that do not turn come last, with frequency 0; a zero
/// is added if their number is odd.
struct Pairs {
  std::vector<std::int64_t> order;  ///< component at each place; −1 is the added zero
  std::vector<double> frequency;    ///< of each pair

  Pairs(const Rotation& rotation, std::int64_t dim);
  Matrix arrange(const Matrix& m) const;
  Vector arrange(const Vector& v) const;
};

/// The mean of e^{−iωΔ} over some distances Δ of query − key: keys turn back by the distance.
class Phases {
 public:
  static Phases at(double distance) { return {Kind::kAt, distance}; }
  static Phases over(std::int64_t context) { return {Kind::kOver, static_cast<double>(context)}; }  ///< 0 … context−1
  static Phases all() { return {Kind::kAll, 0}; }  ///< as if every phase were met equally often

  std::complex<double> mean(double omega) const;

 private:
  enum class Kind { kAt, kOver, kAll };
  Phases(Kind kind, double parameter) : kind_(kind), parameter_(parameter) {}
  Kind kind_;
  double parameter_;
};

/// ⟨M, R S Rᵀ⟩ at any distance, for M and S in pair order: their blocks are made complex numbers once, and a distance
/// then takes one phase a pair.
class TurnedInner {
 public:
  TurnedInner(const Matrix& m, const Matrix& s);
  double at(const Pairs& pairs, double distance) const;

 private:
  Eigen::MatrixXcd difference_, sum_;  // what goes with e^{−i(ω_p − ω_r)Δ} and with e^{−i(ω_p + ω_r)Δ}
};

/// Means of R M Rᵀ (M symmetric) and R v; both in pair order.
Matrix turned(const Matrix& m, const Pairs& pairs, const Phases& phases);
Vector turned(const Vector& v, const Pairs& pairs, const Phases& phases);

}  // namespace rootdk::theory
