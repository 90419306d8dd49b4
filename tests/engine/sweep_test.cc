// Every fused kernel on every instruction set of this machine, forward and every gradient, against the double reference
// over random problems from the whole space. What masks hide holds zeros, and then anything at all: not a bit may
// differ.
#include <gtest/gtest.h>

#include "support/bits.h"
#include "support/case.h"
#include "support/hidden.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

TEST(Sweep, EveryKernelIsWithinTheErrorRule) {
  int failures = 0, hidden = 0;
  const int problems = problem_count(2000);
  for (int seed = 0; seed < problems && failures < 10; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed));
    const Sight sight(*c);
    const auto poisoned = c->copy();
    const bool hides = fill_hidden(*c, sight, Filling::kZeros);
    if (hides) fill_hidden(*poisoned, sight, Filling::kPoison, static_cast<std::uint64_t>(seed));
    hidden += hides;
    const Yardstick yardstick(*c);
    const auto judge = [&](const std::string& wrong, const std::string& kernel) {
      if (wrong.empty()) return;
      ADD_FAILURE() << "seed " << seed << ", " << kernel << ":\n" << wrong << c->describe();
      ++failures;
    };
    if (hides && seed % 4 == 0) {  // the slowest of all
      const Result again = run_reference(*poisoned);
      judge(other_bits(yardstick.exact(), again) + hidden_gradients(*c, sight, again), "reference, poisoned");
    }
    int tried = 0;
    for (const engine::Kernel& kernel : fast_kernels()) {
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;  // another would take its place
      const Result fast = run(*c, kernel);
      judge(yardstick.judge(fast), kernel.label());
      const bool first = tried++ == 0;  // what users get; the others, which are slower, every third time
      if (hides && (first || (seed + tried) % 3 == 0))
        judge(other_bits(fast, run(*poisoned, kernel)) + hidden_gradients(*c, sight, fast),
              kernel.label() + ", poisoned");
    }
  }
  EXPECT_GT(hidden, problems / 3);
}

// A row that is not finite reaches those that see it, and no others.
TEST(Sweep, APoisonedRowReachesOnlyWhatSeesIt) {
  int failures = 0, found = 0;
  const int problems = problem_count(2000) / 5;
  for (int seed = 0; seed < problems && failures < 10; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 20000, {.work = 1 << 16});
    const Sight sight(*c);
    const Stain stain(*c, sight, static_cast<std::uint64_t>(seed));
    if (!stain.found()) continue;
    ++found;
    if (seed % 2 == 0) c->problem.stats = StatsLevel::kFull;
    const auto poisoned = c->copy();
    stain.fill(*c, Filling::kZeros), stain.fill(*poisoned, Filling::kPoison, static_cast<std::uint64_t>(seed));
    for (const engine::Kernel& kernel : engine::kernel_table()) {
      const bool reference = kernel.name == "reference";
      if (!reference && !engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
      const std::string wrong = reference ? stain.spread(run_reference(*c), run_reference(*poisoned))
                                          : stain.spread(run(*c, kernel), run(*poisoned, kernel));
      if (wrong.empty()) continue;
      ADD_FAILURE() << "seed " << seed << ", " << stain.where() << ", " << kernel.label() << ":\n"
                    << wrong << c->describe();
      ++failures;
    }
  }
  EXPECT_GT(found, problems / 2);
}

}  // namespace
}  // namespace rootdk::test
