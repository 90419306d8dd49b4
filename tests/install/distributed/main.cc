// A program of somebody else's over rootdk::distributed: two threads share a sequence of four tokens.
#include <rootdk/distributed.h>

#include <thread>

int main() {
  namespace distributed = rootdk::distributed;
  const auto ranks = distributed::in_process_transports(2);
  const distributed::Layout layout = distributed::Layout::zigzag(4, 2);
  bool right[2] = {};
  const auto run = [&](int rank) {
    const float x[] = {1, 1}, v[] = {2, 2};
    float o[2] = {};
    const auto in = rootdk::tensor(x, {1, 1, 2, 1});
    rootdk::Problem problem;
    problem.mask.causal = true;
    distributed::forward(*ranks[static_cast<std::size_t>(rank)], problem, {layout, layout},
                         {in, in, rootdk::tensor(v, {1, 1, 2, 1})}, {rootdk::tensor(o, {1, 1, 2, 1})});
    right[rank] = o[0] == 2 && o[1] == 2;
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return right[0] && right[1] ? 0 : 1;
}
