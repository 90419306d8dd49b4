// Every fused kernel on every instruction set of this machine, forward and every gradient, against the double reference
// over random problems from the whole space.
#include <gtest/gtest.h>

#include "support/case.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

TEST(Sweep, EveryKernelIsWithinTheErrorRule) {
  int failures = 0;
  const int problems = problem_count(2000);
  for (int seed = 0; seed < problems && failures < 10; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed));
    const Yardstick yardstick(*c);
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;  // another would take its place
      const std::string wrong = yardstick.judge(run(*c, kernel));
      if (wrong.empty()) continue;
      ADD_FAILURE() << "seed " << seed << ", " << kernel.label() << ":\n" << wrong << c->describe();
      ++failures;
    }
  }
}

}  // namespace
}  // namespace rootdk::test
