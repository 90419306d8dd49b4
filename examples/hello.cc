#include <rootdk/rootdk.h>
#include <cstdio>
int main() {
  float x[] = {1, 0, 1, 0, /* and */ 0, 1, 1, 1}, o[8];  // two tokens of dimension 4
  const rootdk::Tensor in = rootdk::tensor(x, {1, 1, 2, 4}), out = rootdk::tensor(o, {1, 1, 2, 4});  // batch, heads, length, dim
  const rootdk::Stats stats = rootdk::forward({.scale = rootdk::Scale::inv_sqrt_dk()}, {.q = in, .k = in, .v = in}, {.o = out});
  std::printf("o = %.3f %.3f %.3f %.3f; largest score %.2f, mean p_max %.3f\n", o[0], o[1], o[2], o[3], stats.at(0, 0).score_max, stats.at(0, 0).mean_p_max);
}
