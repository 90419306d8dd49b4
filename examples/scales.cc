// Why the root is there: the same attention with c = 1 and with c = 1/√d_k, and what its scores did.
#include <rootdk/rootdk.h>

#include <cstdio>
#include <random>
#include <vector>

int main() {
  std::vector<float> q(256 * 64), k(q.size()), v(q.size()), o(q.size());
  std::mt19937 random(1);
  for (auto* x : {&q, &k, &v})
    for (float& value : *x) value = std::normal_distribution<float>()(random);

  const auto view = [](auto& x) { return rootdk::tensor(x.data(), {1, 1, 256, 64}); };  // batch, heads, length, dim
  for (const rootdk::Scale& scale : {rootdk::Scale::none(), rootdk::Scale::inv_sqrt_dk()}) {
    const rootdk::Stats stats = rootdk::forward({.scale = scale}, {view(q), view(k), view(v)}, {.o = view(o)});
    std::printf("c = %-12s  largest score %5.1f, mean largest probability %.2f\n", scale.describe().c_str(),
                stats.at(0, 0).score_max, stats.at(0, 0).mean_p_max);
  }
}
