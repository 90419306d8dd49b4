// The integrals behind rootdk/theory/gaussian_softmax.h, with the lattice step in the open so that tests can halve it.
#pragma once

#include <cstdint>

#include "rootdk/theory/gaussian_softmax.h"

namespace rootdk::theory {

/// In the logarithmic variables of the integrals. Every integrand is analytic in a strip of half-width π/2, so the
/// trapezoidal rule errs by about e^{−π²/step}: 4e-22 here, times powers of 1/step.
constexpr double kStep = 0.2;
/// For rough_softmax: 6e-13 there; p_max, whose inner integral must resolve the largest of n scores, is what limits it.
constexpr double kRoughStep = 0.35;

/// Beyond x + s = kTop, e^{−v} with v = e^{x+s} is less than e^{−66}.
constexpr double kTop = 4.2;

/// sigma > 0, keys ≥ 2.
GaussianSoftmax integrate(double sigma, double keys, double step = kStep);
double integrate_p_max(double sigma, double keys, double step = kStep);

/// The trapezoidal rule in x: a step, and where integrands that start as e^{power·x} have fallen to nothing.
struct OuterLattice {
  double step;  ///< a whole multiple of the step that was asked for
  double first;
  int count;

  double at(int i) const { return first + i * step; }
};
OuterLattice outer_lattice(double sigma, double keys, double step, int power);

/// How many σ away a score is never met among so many keys: beyond this, keys·P(|s| > σ·tail) < 1e-14.
double gaussian_tail(double keys);

}  // namespace rootdk::theory
