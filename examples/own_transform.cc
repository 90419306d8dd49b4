// A score function of your own, fused into the pass, with its gradient checked against a finite difference.
#include <rootdk/rootdk.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace {

/// s / (1 + |s|/room): bounded by ±room like a tanh cap, but with tails that never quite go flat.
struct SoftSign {
  double room = 4;

  template <class T>
  T operator()(T s) const {
    return s / (T(1) + std::abs(s) / T(room));
  }
  template <class T>
  T derivative(T s) const {
    const T bend = T(1) + std::abs(s) / T(room);
    return T(1) / (bend * bend);
  }
};

}  // namespace

int main() {
  std::vector<double> q(2 * 16 * 8), k(q.size()), v(q.size()), o(q.size()), lse(2 * 16);
  std::vector<double> d_o(q.size(), 1), d_q(q.size());
  std::mt19937 random(1);
  for (auto* x : {&q, &k, &v})
    for (double& value : *x) value = 2 * std::normal_distribution<double>()(random);
  const auto view = [](auto& x) {
    return rootdk::tensor(x.data(), {1, 2, 16, static_cast<std::int64_t>(x.size()) / 32});
  };

  const SoftSign soft_sign;
  rootdk::Problem problem;
  problem.transform = rootdk::ScoreTransform::of(soft_sign);

  const auto sum_of_outputs = [&] {
    rootdk::forward(problem, {view(q), view(k), view(v)}, {.o = view(o), .lse = view(lse)});
    return std::accumulate(o.begin(), o.end(), 0.0);
  };

  sum_of_outputs();
  rootdk::backward(problem, {view(q), view(k), view(v), view(o), view(lse), view(d_o)}, {.d_q = view(d_q)});

  const double step = 1e-5, start = q[3];
  q[3] = start + step;
  const double above = sum_of_outputs();
  q[3] = start - step;
  const double below = sum_of_outputs();
  const double difference = (above - below) / (2 * step);
  std::printf("d sum(o) / d q[3]: %.8f from backward, %.8f from a finite difference\n", d_q[3], difference);
  return std::fabs(d_q[3] - difference) < 1e-6 ? 0 : 1;
}
