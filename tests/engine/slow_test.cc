// What a plan says where a GPU would compute it without tensor cores. Which problems those are:
// tests/python/test_cuda.py, on a GPU.
#include "engine/slow.h"

#include <gtest/gtest.h>

#include <string>

namespace rootdk::test {
namespace {

Plan on_gpu(const std::string& kernel, Pass pass = Pass::kForward) {
  Plan plan;
  plan.device = Device::kCuda;
  plan.kernel = kernel, plan.pass = pass;
  return plan;
}

TEST(Slow, ExplanationsBeginWithIt) {
  Plan plan = on_gpu("plain", Pass::kBackward);
  plan.passed_over = {"hopper: takes f16 and bf16, not f32", "mma: takes f16 and bf16, not f32"};
  const std::string line = "slow: backward runs without tensor cores, around 100 times slower, since mma takes f16 "
                           "and bf16, not f32: cast q, k and v to bf16 or f16, or call it "
                           "under torch.autocast";
  EXPECT_EQ(engine::why_slow(plan), line);
  EXPECT_TRUE(plan.explain().starts_with(line + "\nbackward in f32")) << plan.explain();
}

TEST(Slow, FastKernelsAndTheCpuSayNothing) {
  for (const char* kernel : {"hopper", "mma"}) EXPECT_EQ(engine::why_slow(on_gpu(kernel)), "");
  Plan cpu;
  cpu.kernel = "plain";
  EXPECT_EQ(engine::why_slow(cpu), "");
}

// The reasons of mma_misfit and mma_backward_misfit.
TEST(Slow, EveryReasonHasAnInstruction) {
  const std::string general = "docs/cuda.md";
  std::string last;
  for (const char* why : {"takes f16 and bf16, not f32", "takes dims up to 256", "takes lengths and offsets up to 2^28",
                          "takes fewer rows", "is left out, since ROOTDK_KERNEL is plain"}) {
    Plan plan = on_gpu("plain");
    plan.passed_over = {"hopper: does not take pages", std::string("mma: ") + why};
    const std::string line = engine::why_slow(plan), advice = line.substr(line.find(why) + std::string(why).size());
    EXPECT_NE(line.find(why), std::string::npos) << line;
    EXPECT_EQ(advice.find(general), std::string::npos) << line;
    EXPECT_NE(advice, last) << line;  // no neighbour's by mistake
    last = advice;
  }
  Plan plan = on_gpu("plain");
  plan.passed_over = {"mma: for a reason of tomorrow"};
  EXPECT_NE(engine::why_slow(plan).find(general), std::string::npos);
}

}  // namespace
}  // namespace rootdk::test
