// E p_max: the key with score s is the largest if all others lie below it, so
//   E p_max = n ∫ dx E[v e^{−v} (1 − D(x, s))^{n−1}],  v = e^{x+s},
//   D(x, s) = 1 − E[e^{−e^{x+u}} 1(u < s)] = P(u > s) + E[(1 − e^{−e^{x+u}}) 1(u < s)].
// D, not 1 − D, is accumulated: the n-th power needs its relative error. Its integral ends at s in the middle of a
// smooth function, so the trapezoidal sum gets two Euler–Maclaurin terms; the error is then of order step⁶/30240.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "theory/quadrature.h"

namespace rootdk::theory {

namespace {

constexpr double kFurtherDown = 20;  // below −ln n − kFurtherDown all keys together add e^{−kFurtherDown}

constexpr double kMostShared = 20'000;  // points of a lattice: some 40 bytes each

/// What depends on z alone.
struct Mass {
  double z, density, above;

  explicit Mass(double at)
      : z(at),
        density(std::exp(-0.5 * at * at) * std::numbers::inv_sqrtpi / std::numbers::sqrt2),
        above(0.5 * std::erfc(at / std::numbers::sqrt2)) {}
};
/// And on y = x + σz alone.
struct Kernel {
  double v, b;  ///< b = 1 − e^{−v}

  explicit Kernel(double y) : v(std::exp(y)), b(-std::expm1(-v)) {}
};

// ∫ over y = x + σz at one x, without the factor n. at(i): Mass and Kernel of the i-th point of the lattice in z.
template <class At>
double over_scores(int count, const At& at, double sigma, double n, double step) {
  const double step2 = step * step;
  const double most = (std::log(n) + 20) * 2 / (n - 1);  // beyond, (1 − D)^{n−1} < e^{−40}/n², of integrals above 1/n²
  double total = 0, before = 0;                          // before: Σ of w·(1 − e^{−v}) left of z
  for (int i = 0; i < count; ++i) {
    const auto& [mass, point] = at(i);
    const double z = mass.z, w = mass.density, v = point.v, b = point.b;
    // The derivatives of b in z; those of w are −z, z² − 1 and 3z − z³ times w.
    const double kernel = v * (1 - b);
    const double b1 = sigma * kernel, b2 = sigma * b1 * (1 - v), b3 = sigma * sigma * b1 * (1 - 3 * v + v * v);
    const double first = w * (b1 - z * b),
                 third = w * (b3 - 3 * z * b2 + 3 * (z * z - 1) * b1 + (3 * z - z * z * z) * b);
    const double below = step * (before + 0.5 * w * b) - step2 / 12 * first + step2 * step2 / 720 * third;
    if (below > most) break;  // it grows with z
    const double d = mass.above + below;
    if (d < most) total += w * kernel * std::exp((n - 1) * std::log1p(-std::clamp(d, 0.0, 1.0)));
    before += w * b;
  }
  return total * step;
}

}  // namespace

double integrate_p_max(double sigma, double keys, double step) {
  const OuterLattice lattice = outer_lattice(sigma, keys, step, 1);
  const double reach = gaussian_tail(keys), bottom = -std::log(keys) - kFurtherDown;
  // The largest of n scores is Gumbel of scale σ/σ_c, which must be resolved. From one x to the next, y moves by whole
  // steps, too.
  const double coarsest = std::min(step / sigma, 2.5 * step / critical_sigma(keys));
  const double stride = std::ceil(lattice.step / (sigma * coarsest) - 1e-9);
  const double inner = lattice.step / (stride * sigma), inner_y = lattice.step / stride;
  const double scores = 2 * reach / inner + 1, points = scores + stride * lattice.count;

  double total = 0;
  if (points < kMostShared) {  // so both are tabulated: z from −reach on, y from where z is that at the first x
    std::vector<Mass> masses;
    std::vector<Kernel> kernels;
    const double first_y = lattice.first - sigma * reach;
    for (int i = 0; i < static_cast<int>(scores); ++i) masses.emplace_back(i * inner - reach);
    for (int i = 0; i < static_cast<int>(points); ++i) kernels.emplace_back(first_y + i * inner_y);
    const int lowest = static_cast<int>(std::ceil((bottom - first_y) / inner_y)),
              highest = static_cast<int>((kTop - first_y) / inner_y), all = static_cast<int>(masses.size());
    for (int i = 0; i < lattice.count; ++i) {
      const int moved = i * static_cast<int>(stride);
      const int low = std::max(0, lowest - moved), high = std::min(all - 1, highest - moved);
      const auto at = [&](int k) {
        return std::pair<const Mass&, const Kernel&>(masses[static_cast<std::size_t>(low + k)],
                                                     kernels[static_cast<std::size_t>(moved + low + k)]);
      };
      total += over_scores(high - low + 1, at, sigma, keys, inner);
    }
  } else {  // one of them is too fine for the other: both run along
    for (int i = 0; i < lattice.count; ++i) {
      const double x = lattice.at(i);
      const double low_y = std::max(bottom, x - sigma * reach), high_y = std::min(kTop, x + sigma * reach);
      const double low_z = std::max(-reach, (bottom - x) / sigma), high_z = std::min(reach, (kTop - x) / sigma);
      const double steps = sigma > 1 ? (high_y - low_y) / inner_y : (high_z - low_z) / inner;
      const auto at = [&](int k) { return std::pair(Mass(low_z + k * inner), Kernel(low_y + k * inner_y)); };
      total += over_scores(static_cast<int>(std::floor(steps)) + 1, at, sigma, keys, inner);
    }
  }
  return std::min(1.0, keys * lattice.step * total);
}

}  // namespace rootdk::theory
