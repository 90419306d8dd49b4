// E p_max: the key with score s is the largest if all others lie below it, so
//   E p_max = n ∫ dx E[v e^{−v} (1 − D(x, s))^{n−1}],  v = e^{x+s},
//   D(x, s) = 1 − E[e^{−e^{x+u}} 1(u < s)] = P(u > s) + E[(1 − e^{−e^{x+u}}) 1(u < s)].
// D, not 1 − D, is accumulated: the n-th power needs its relative error. Its integral ends at s in the middle of a
// smooth function, so the trapezoidal sum gets two Euler–Maclaurin terms; the error is then of order step⁶/30240.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "theory/quadrature.h"

namespace rootdk::theory {

namespace {

constexpr double kFurtherDown = 20;  // below −ln n − kFurtherDown all keys together add e^{−kFurtherDown}

// ∫ over y = x + σz at one x, without the factor n. Both y and z run along, since either may be too fine for the other.
double over_scores(double x, double sigma, double n, double step) {
  const double reach = gaussian_tail(n), bottom = -std::log(n) - kFurtherDown;
  const double low_y = std::max(bottom, x - sigma * reach), high_y = std::min(kTop, x + sigma * reach);
  const double low_z = std::max(-reach, (bottom - x) / sigma), high_z = std::min(reach, (kTop - x) / sigma);
  const double count = sigma > 1 ? (high_y - low_y) / (sigma * step) : (high_z - low_z) / step;
  const double step2 = step * step;
  double total = 0, before = 0;  // before: Σ of w·(1 − e^{−v}) left of z
  for (double i = 0; i <= count; ++i) {
    const double z = low_z + i * step, v = std::exp(low_y + i * (sigma * step));
    const double w = std::exp(-0.5 * z * z) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    // b = 1 − e^{−v} and its derivatives in z; those of w are −z, z² − 1 and 3z − z³ times w.
    const double b = -std::expm1(-v), kernel = v * (1 - b);
    const double b1 = sigma * kernel, b2 = sigma * b1 * (1 - v), b3 = sigma * sigma * b1 * (1 - 3 * v + v * v);
    const double first = w * (b1 - z * b),
                 third = w * (b3 - 3 * z * b2 + 3 * (z * z - 1) * b1 + (3 * z - z * z * z) * b);
    const double below = step * (before + 0.5 * w * b) - step2 / 12 * first + step2 * step2 / 720 * third;
    const double d = 0.5 * std::erfc(z / std::numbers::sqrt2) + below;
    total += w * kernel * std::exp((n - 1) * std::log1p(-std::clamp(d, 0.0, 1.0)));
    before += w * b;
  }
  return total * step;
}

}  // namespace

double integrate_p_max(double sigma, double keys, double step) {
  const OuterLattice lattice = outer_lattice(sigma, keys, step, 1);
  // The largest of n scores is Gumbel of scale σ/σ_c, which must be resolved.
  const double inner_step = std::min(step / sigma, 2.5 * step / critical_sigma(keys));
  double total = 0;
  for (double i = 0, x = lattice.first; x <= lattice.last; x = lattice.first + ++i * lattice.step)
    total += over_scores(x, sigma, keys, inner_step);
  return std::min(1.0, keys * lattice.step * total);
}

}  // namespace rootdk::theory
