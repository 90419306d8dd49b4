// What rootdk/cuda.h says where there is no GPU, or where the wrong device is called. Results on a GPU: tests/cuda, ./run gpu-test.
#include <gtest/gtest.h>

#include <vector>

#include "rootdk/cuda.h"
#include "support/message.h"

namespace rootdk::test {
namespace {

struct Small {
  std::vector<float> q = std::vector<float>(8), k = q, v = q, o = q;
  Inputs in{tensor(q.data(), {1, 1, 2, 4}), tensor(k.data(), {1, 1, 2, 4}), tensor(v.data(), {1, 1, 2, 4})};
  Outputs out{tensor(o.data(), {1, 1, 2, 4})};
};

TEST(CudaApi, PlansForTheCpuAreRefused) {
  Small s;
  const Plan plan = make_plan({}, shape_of(s.in));
  EXPECT_EQ(message_of([&] { cuda::forward(plan, s.in, s.out, {}); }), "plan: made for the CPU, but a GPU was called (make_plan with cuda::machine())");
}

TEST(CudaApi, PlansForAGpuAreRefusedOnTheCpu) {
  Small s;
  Plan plan = make_plan({}, shape_of(s.in));
  plan.device = Device::kCuda;
  std::vector<std::byte> workspace(plan.workspace_bytes + 64);
  EXPECT_EQ(message_of([&] { forward(plan, s.in, s.out, {workspace.data(), workspace.size()}); }),
            "plan: made for a GPU, but the CPU was called (rootdk/cuda.h has forward and backward for GPUs)");
}

TEST(CudaApi, SaysWhyThereIsNoGpu) {
  const std::string why = cuda::missing();
  if (why.empty()) GTEST_SKIP() << "there is one";
  EXPECT_EQ(message_of([] { cuda::machine(); }), "cuda: " + why);
}

}  // namespace
}  // namespace rootdk::test
