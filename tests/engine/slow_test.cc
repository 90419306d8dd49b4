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
  plan.passed_over = {"hopper: takes f16 and bf16, not f32"};
  const std::string line = "slow: backward runs without tensor cores, around 100 times slower, since hopper takes f16 "
                           "and bf16, not f32: cast q, k and v to bf16 or f16, or call it "
                           "under torch.autocast";
  EXPECT_EQ(engine::why_slow(plan), line);
  EXPECT_TRUE(plan.explain().starts_with(line + "\nbackward in f32")) << plan.explain();
}

TEST(Slow, FastKernelsAndTheCpuSayNothing) {
  EXPECT_EQ(engine::why_slow(on_gpu("hopper")), "");
  Plan cpu;
  cpu.kernel = "plain";
  EXPECT_EQ(engine::why_slow(cpu), "");
}

// The reasons of hopper_misfit and hopper_backward_misfit.
TEST(Slow, EveryReasonHasAnInstruction) {
  const std::string general = "docs/cuda.md";
  std::string last;
  for (const char* why :
       {"is for compute capability 9.0, which A100 has not", "takes f16 and bf16, not f32", "takes dims up to 256",
        "does not take pages", "does not take key starts, query lengths or documents per item yet",
        "takes full statistics of scores that are scaled (by more than zero, alike in all rows of a head) and no more",
        "takes lengths and offsets up to 2^28", "takes fewer rows", "takes dims up to 256 backwards, multiples of 8",
        "does not take full statistics of dims above 128 backwards", "does not take boolean masks backwards",
        "does not take biases backwards", "does not take ALiBi backwards", "does not take a soft-cap backwards",
        "does not take dropout backwards", "does not take pages backwards", "does not take a scale by length backwards",
        "takes positive scales only"}) {
    Plan plan = on_gpu("plain");
    plan.passed_over = {std::string("hopper: ") + why};
    const std::string line = engine::why_slow(plan), advice = line.substr(line.find(why) + std::string(why).size());
    EXPECT_NE(line.find(why), std::string::npos) << line;
    EXPECT_EQ(advice.find(general), std::string::npos) << line;
    EXPECT_NE(advice, last) << line;  // no neighbour's by mistake
    last = advice;
  }
  Plan wide = on_gpu("plain", Pass::kBackward);
  wide.shape.dim_qk = 264;
  wide.passed_over = {"hopper: takes dims up to 256 backwards, multiples of 8"};
  EXPECT_TRUE(engine::why_slow(wide).ends_with("use more heads of at most 256 dims")) << engine::why_slow(wide);
  Plan plan = on_gpu("plain");
  plan.passed_over = {"hopper: for a reason of tomorrow"};
  EXPECT_NE(engine::why_slow(plan).find(general), std::string::npos);
}

TEST(Slow, StridesNameTheTensor) {
  const ConstTensor even{nullptr, DType::kBF16, Device::kCuda, {1, 1, 3, 16}, {48, 48, 1, 3}},
      odd{nullptr, DType::kBF16, Device::kCuda, {1, 1, 3, 12}, {36, 36, 12, 1}};
  const std::string line = engine::slow_strides(on_gpu("hopper"), "k", even);
  EXPECT_TRUE(line.starts_with("slow: forward")) << line;
  EXPECT_NE(line.find("call k.contiguous()"), std::string::npos) << line;
  const std::string padded = engine::slow_strides(on_gpu("hopper"), "k", odd);  // contiguous already
  EXPECT_EQ(padded.find("contiguous"), std::string::npos) << padded;
  EXPECT_NE(padded.find("multiples of 8"), std::string::npos) << padded;
}

}  // namespace
}  // namespace rootdk::test
