// Generation with a key/value cache: plan once, then one call per token, in a workspace of your own.
#include <rootdk/rootdk.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

namespace {

constexpr std::int64_t kHeadsQ = 8, kHeadsKv = 2, kDim = 64, kCapacity = 512, kTokens = 48;

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

}  // namespace

int main() {
  std::mt19937 random(1);
  const auto fill = [&](float* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = std::normal_distribution<float>()(random);
  };

  // The cache lies [heads_kv, capacity, dim]; how much of it is filled changes from call to call, the tensors do not.
  std::vector<float> keys(kHeadsKv * kCapacity * kDim), values(keys.size()), q(kHeadsQ * kDim), o(q.size());
  std::int64_t filled = kCapacity;  // what to plan for

  rootdk::Problem problem;
  problem.mask = rootdk::Mask::make_causal(rootdk::Diagonal::last_key());
  problem.mask.key_lengths = {&filled, 1};

  const rootdk::Inputs inputs = {rootdk::tensor(q.data(), {1, kHeadsQ, 1, kDim}),
                                 rootdk::tensor(keys.data(), {1, kHeadsKv, kCapacity, kDim}),
                                 rootdk::tensor(values.data(), {1, kHeadsKv, kCapacity, kDim})};
  const rootdk::Outputs outputs = {rootdk::tensor(o.data(), {1, kHeadsQ, 1, kDim})};

  const rootdk::Plan plan = rootdk::make_plan(problem, rootdk::shape_of(inputs, problem));
  std::vector<CacheLine> workspace(plan.workspace_bytes / sizeof(CacheLine) + 1);
  std::printf("%s\n", plan.explain().c_str());

  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t head = 0; head < kHeadsKv; ++head) {
      fill(&keys[static_cast<std::size_t>((head * kCapacity + token) * kDim)], kDim);
      fill(&values[static_cast<std::size_t>((head * kCapacity + token) * kDim)], kDim);
    }
    fill(q.data(), kHeadsQ * kDim);
    filled = token + 1;
    const rootdk::Stats stats = rootdk::forward(plan, inputs, outputs, std::as_writable_bytes(std::span(workspace)));
    if ((token + 1) % 16 == 0)
      std::printf("token %2d: head 0 gives its favourite key a weight of %.3f (uniform would be %.3f)\n",
                  static_cast<int>(token + 1), stats.at(0, 0).mean_p_max, 1.0 / static_cast<double>(token + 1));
  }
}
