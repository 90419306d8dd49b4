// Expectations of softmax over n Gaussian scores as one-dimensional integrals.
//
// From 1/Z^k = ∫ t^{k−1} e^{−tZ} dt / (k−1)!, with t = e^x and averages over one score s of spread σ,
//   φ(x) = E[e^{−v}],  a_k(x) = E[v^k e^{−v}],  m(x) = E[M(x+s)],  v = e^{x+s},
// every expectation is an integral over x of n-th powers. Written so that nothing cancels (all integrands are ≥ 0):
//   E Σp²    = n ∫ a₂ φ^{n−1} dx
//   E tr J   = E Σ_{i≠j} pᵢpⱼ = n(n−1) ∫ a₁² φ^{n−2} dx
//   E ‖J‖²   = E [2 Σ pᵢ²pⱼ² + Σ pᵢ²pⱼpₖ] over different i, j, k
//            = n(n−1)/6 ∫ (2 a₂² φ^{n−2} + (n−2) a₂ a₁² φ^{n−3}) dx
//   E H      = n(n−1) ∫ m a₁ φ^{n−2} dx
//   E ln Z   = E H + σ² E tr J   (Stein)
// The entropy: ln Z / Z = ∫ e^{−tZ}(−γ − ln t) dt gives E H = n ∫ E[v e^{−v}(−γ − ln v)] φ^{n−1} dx. The bracket is the
// derivative of M(y) = e^{−v}(γ + y) + E₁(v), v = e^y, which is ≥ 0 and vanishes at both ends; φ′ = −a₁; integrate by
// parts.
#include "theory/quadrature.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

namespace rootdk::theory {

namespace {

// Kernels are localised in y = x + s: below kTop because of e^{−v} (e^{−67} there), and above −ln n − kDepth because
// what n keys can gather from further down is e^{−kDepth}.
constexpr double kDepth = 30;

// ∫₀^v (1 − e^{−u})/u du, for v ≤ 1.
double ein(double v) {
  double term = v, sum = v;
  for (int k = 2; std::fabs(term) > 1e-17 * sum; ++k) {
    term *= -v / k;
    sum += term / k;
  }
  return sum;
}

// E₁(v)·e^v for v ≥ 1, by its continued fraction 1/(v+1−1/(v+3−4/(v+5−…))), from the inside out.
double scaled_e1(double v) {
  const int depth = 10 + static_cast<int>(60 / v);
  double f = 0;
  for (int k = depth; k >= 1; --k) f = static_cast<double>(k) * k / (v + 2 * k + 1 - f);
  return 1 / (v + 1 - f);
}

// M(y).
double entropy_kernel(double y) {
  const double v = std::exp(y);
  if (v <= 1) return std::expm1(-v) * (std::numbers::egamma + y) + ein(v);
  return std::exp(-v) * (std::numbers::egamma + y + scaled_e1(v));
}

double upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

constexpr double kInvSqrt2Pi = std::numbers::inv_sqrtpi / std::numbers::sqrt2;

// The averages over one score, at one x.
struct Averages {
  double one_minus_phi = 0, a1 = 0, a2 = 0, m = 0;

  // At least ln 1e-300, so that a zeroth power stays 1.
  double log_phi() const { return std::max(-690.0, std::log1p(-std::min(one_minus_phi, 1.0))); }
};

// Where the Gaussian is at least as wide as the lattice: the kernels are tabulated in y, the Gaussian moves over them.
// From one x to the next it moves by whole steps of y, so that it is tabulated, too, once for all x.
class WideGaussian {
 public:
  WideGaussian(double sigma, double keys, double step, const OuterLattice& lattice)
      : sigma_(sigma), step_(step), reach_(sigma * gaussian_tail(keys)), lattice_(lattice) {
    const double bottom = -std::log(keys) - kDepth;
    const auto count = static_cast<std::size_t>((kTop - bottom) / step) + 1;
    nodes_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double y = kTop - static_cast<double>(count - 1 - i) * step;
      const double v = std::exp(y), k1 = v * std::exp(-v);
      nodes_.push_back({y, k1, v * k1, entropy_kernel(y)});
    }
    // Beyond so many steps no two x share a point.
    const double stride = std::round(lattice.step / step);
    if (stride >= static_cast<double>(count)) return;
    stride_ = static_cast<std::size_t>(stride);
    const double lowest = nodes_.front().y - lattice.at(lattice.count - 1);
    shared_.resize(count + stride_ * static_cast<std::size_t>(lattice.count - 1));
    for (std::size_t i = 0; i < shared_.size(); ++i) shared_[i] = mass(lowest + static_cast<double>(i) * step);
  }

  // 1 − φ by parts, too: E[1 − e^{−v}] = ∫ v e^{−v} P(s > y − x) dy, again localised and ≥ 0.
  Averages at(int i) const {
    Averages sum;
    const auto add = [&](const Node& node, const Mass& mass) {
      sum.one_minus_phi += node.k1 * mass.above;
      sum.a1 += mass.density * node.k1;
      sum.a2 += mass.density * node.k2;
      sum.m += mass.density * node.m;
    };
    if (stride_ > 0) {
      const Mass* row = &shared_[stride_ * static_cast<std::size_t>(lattice_.count - 1 - i)];
      for (std::size_t k = 0; k < nodes_.size(); ++k) add(nodes_[k], row[k]);
    } else {
      for (const Node& node : nodes_) add(node, mass(node.y - lattice_.at(i)));
    }
    const double density = step_ / sigma_ * kInvSqrt2Pi;
    return {sum.one_minus_phi * step_, sum.a1 * density, sum.a2 * density, sum.m * density};
  }

 private:
  struct Node {
    double y, k1, k2, m;
  };
  struct Mass {
    double density = 0, above = 0;  ///< e^{−z²/2}; the share of scores beyond
  };
  Mass mass(double s) const {
    if (s > reach_) return {};
    if (s < -reach_) return {0, 1};
    const double z = s / sigma_;
    return {std::exp(-0.5 * z * z), upper_tail(z)};
  }

  double sigma_, step_, reach_;
  OuterLattice lattice_;
  std::vector<Node> nodes_;
  std::size_t stride_ = 0;    ///< from one x to the next; 0 where nothing is shared
  std::vector<Mass> shared_;  ///< from the last x and the lowest node on
};

// Where it is narrower: the lattice is laid over the Gaussian, in units of σ, and the kernels are evaluated there.
class NarrowGaussian {
 public:
  NarrowGaussian(double sigma, double keys, double step, const OuterLattice& lattice) : lattice_(lattice) {
    const double step_z = 2.5 * step;  // error e^{−2π²/step_z²} = 5e-35
    const auto half = static_cast<int>(gaussian_tail(keys) / step_z) + 1;
    for (int i = -half; i <= half; ++i) {
      const double z = i * step_z;
      nodes_.push_back({sigma * z, step_z * kInvSqrt2Pi * std::exp(-0.5 * z * z)});
    }
  }

  Averages at(int i) const {
    const double x = lattice_.at(i);
    Averages sum;
    for (const auto& [s, weight] : nodes_) {
      const double v = std::exp(x + s), k1 = v * std::exp(-v);
      sum.one_minus_phi -= weight * std::expm1(-v);
      sum.a1 += weight * k1;
      sum.a2 += weight * v * k1;
      sum.m += weight * entropy_kernel(x + s);
    }
    return sum;
  }

 private:
  struct Node {
    double s, weight;
  };
  OuterLattice lattice_;
  std::vector<Node> nodes_;
};

template <class Gaussian>
GaussianSoftmax integrate_over(const Gaussian& gaussian, double sigma, double n, const OuterLattice& lattice) {
  double p2 = 0, trace = 0, norm2 = 0, entropy = 0;
  for (int i = 0; i < lattice.count; ++i) {
    const Averages a = gaussian.at(i);
    const double log_phi = a.log_phi();
    if ((n - 3) * log_phi < -80) break;  // φ falls with x: nothing comes after
    const double phi_n2 = std::exp((n - 2) * log_phi), phi_n3 = n > 2 ? std::exp((n - 3) * log_phi) : 0;
    p2 += a.a2 * phi_n2 * (1 - a.one_minus_phi);
    trace += a.a1 * a.a1 * phi_n2;
    entropy += a.m * a.a1 * phi_n2;
    norm2 += 2 * a.a2 * a.a2 * phi_n2 + (n - 2) * a.a2 * a.a1 * a.a1 * phi_n3;
  }
  const double one = n * lattice.step, two = one * (n - 1);
  GaussianSoftmax out;
  out.entropy = two * entropy;
  out.sum_p2 = one * p2;
  out.trace_j = two * trace;
  out.frobenius_j = two / 6 * norm2;
  out.log_z = out.entropy + sigma * (sigma * out.trace_j);
  return out;
}

}  // namespace

double gaussian_tail(double keys) { return std::sqrt(2 * (std::log(keys) + 32)); }

// The integrands are mixtures of e^{k(x + ln Z) − e^{x + ln Z}}, k ≥ power, over ln Z. Beyond σ_c ln Z spreads like a
// Gumbel variable of scale σ/σ_c, and what is smooth on that scale needs no finer step: so the work does not grow with
// σ.
OuterLattice outer_lattice(double sigma, double keys, double step, int power) {
  const double reach = sigma * gaussian_tail(keys);
  const double stretched = step * std::max(1.0, std::floor(sigma / critical_sigma(keys)));
  const double first = -std::log(keys) - reach - kDepth / power, last = reach + kTop;
  return {stretched, first, static_cast<int>((last - first) / stretched) + 1};
}

GaussianSoftmax integrate(double sigma, double keys, double step) {
  const OuterLattice lattice = outer_lattice(sigma, keys, step, 2);
  if (sigma >= 2 * step) return integrate_over(WideGaussian(sigma, keys, step, lattice), sigma, keys, lattice);
  return integrate_over(NarrowGaussian(sigma, keys, step, lattice), sigma, keys, lattice);
}

}  // namespace rootdk::theory
