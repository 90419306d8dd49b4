#include "demo.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "rootdk/rootdk.h"

namespace rootdk::app {

namespace {

constexpr std::int64_t kQueries = 256, kKeys = 1024;

// Standard normal numbers, the same on every machine: Box–Muller on a fixed engine.
std::vector<float> normal_numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937_64 engine(seed);
  const auto uniform = [&engine] { return (static_cast<double>(engine() >> 11) + 0.5) * 0x1p-53; };
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    out.push_back(static_cast<float>(radius * std::cos(2 * 3.14159265358979323846 * uniform())));
  }
  return out;
}

// Standard deviation of q·k within a row, over all rows, without the scores: √⟨QᵀQ/T, Cov(K)⟩.
double within_row_spread(const std::vector<float>& q, const std::vector<float>& k, std::int64_t dim) {
  const auto d = static_cast<std::size_t>(dim);
  const auto second_moments = [d](const std::vector<float>& x, const std::vector<double>& mean) {
    const std::size_t rows = x.size() / d;
    std::vector<double> moments(d * d);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t i = 0; i < d; ++i)
        for (std::size_t j = 0; j < d; ++j)
          moments[i * d + j] += (x[r * d + i] - mean[i]) * (x[r * d + j] - mean[j]) / static_cast<double>(rows);
    return moments;
  };
  std::vector<double> mean(d);
  for (std::size_t i = 0; i < k.size(); ++i) mean[i % d] += k[i] / static_cast<double>(k.size() / d);
  const std::vector<double> gram = second_moments(q, std::vector<double>(d)), covariance = second_moments(k, mean);
  double variance = 0;
  for (std::size_t i = 0; i < d * d; ++i) variance += gram[i] * covariance[i];
  return std::sqrt(variance);
}

void show(std::int64_t dim) {
  const std::vector<float> q = normal_numbers(kQueries * dim, 1), k = normal_numbers(kKeys * dim, 2),
                           v = normal_numbers(kKeys * dim, 3);
  std::vector<float> o(static_cast<std::size_t>(kQueries * dim));
  const double spread = within_row_spread(q, k, dim);
  fmt::print("\nd_k = {}: {} queries, {} keys, components of unit variance\n", dim, kQueries, kKeys);
  fmt::print("  {:<14}{:>14}{:>16}{:>14}{:>12}\n", "scale", "score spread", "largest score", "mean p_max", "mean lse");
  for (const Scale& scale : {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()}) {
    Problem problem;
    problem.scale = scale;
    const Stats stats = forward(problem,
                                {tensor(q.data(), {1, 1, kQueries, dim}), tensor(k.data(), {1, 1, kKeys, dim}),
                                 tensor(v.data(), {1, 1, kKeys, dim})},
                                {tensor(o.data(), {1, 1, kQueries, dim})});
    const HeadStats& head = stats.at(0, 0);
    fmt::print("  {:<14}{:>14.3f}{:>16.3f}{:>14.4f}{:>12.3f}\n", scale.describe(), spread * scale.factor(0, dim), head.score_max,
               head.mean_p_max, head.mean_lse);
  }
}

}  // namespace

int run_demo() {
  fmt::print("softmax(c·QKᵀ)V: what the scale c does to the scores that softmax sees\n");
  show(64);
  show(512);
  fmt::print(
      "\nUnscaled, the scores spread as the root of d_k and one key takes nearly all the weight; divided by d_k they are all\n"
      "but equal (p_max near 1/{} = {:.4f}); divided by the root of d_k their spread is 1 at every size.\n",
      kKeys, 1.0 / static_cast<double>(kKeys));
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace rootdk::app
