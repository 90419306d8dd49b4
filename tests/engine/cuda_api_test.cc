// What rootdk/cuda.h says where there is no GPU, or where the wrong device is called. Results on a GPU: tests/cuda,
// ./run gpu-test.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "rootdk/c.h"
#include "rootdk/cuda.h"
#include "rootdk/version.h"
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
  EXPECT_EQ(message_of([&] { cuda::forward(plan, s.in, s.out, {}); }),
            "plan: made for the CPU, but a GPU was called (make it with the GPU's machine)");
}

TEST(CudaApi, PlansForAGpuAreRefusedOnTheCpu) {
  Small s;
  Plan plan = make_plan({}, shape_of(s.in));
  plan.device = Device::kCuda;
  std::vector<std::byte> workspace(plan.workspace_bytes + 64);
  EXPECT_EQ(message_of([&] {
              forward(plan, s.in, s.out, {workspace.data(), workspace.size()});
            }),
            "plan: made for a GPU, but the CPU was called (rootdk/cuda.h has forward and backward for GPUs)");
}

TEST(CudaApi, SaysWhyThereIsNoGpu) {
  const std::string why = cuda::missing();
  if (why.empty()) GTEST_SKIP() << "there is one";
  EXPECT_EQ(message_of([] { cuda::machine(); }), "cuda: " + why);
}

/// The C ABI for GPUs, with arguments that would be right on one.
struct CudaC : ::testing::Test {
  std::vector<float> memory = std::vector<float>(8, 7.0f);
  std::vector<std::byte> workspace = std::vector<std::byte>(1 << 16);
  rootdk_problem problem;
  rootdk_inputs in = {};
  rootdk_outputs out = {};
  rootdk_backward_inputs back = {};
  rootdk_gradients gradients = {};
  rootdk_stats* stats = nullptr;
  rootdk_head_gradients head = {};

  CudaC() {
    rootdk_problem_init(&problem);
    problem.stats = ROOTDK_STATS_FULL;
    rootdk_tensor t = rootdk_row_major(memory.data(), ROOTDK_F32, 1, 1, 2, 4);
    t.device = ROOTDK_CUDA;
    in.q = in.k = in.v = out.o = back.q = back.k = back.v = back.o = back.d_o = gradients.d_q = t;
    back.lse = rootdk_row_major(memory.data(), ROOTDK_F32, 1, 1, 2, 1);
    back.lse.device = ROOTDK_CUDA;
  }

  int forward() { return rootdk_cuda_forward(&problem, &in, &out, workspace.data(), workspace.size(), nullptr); }
  int backward() {
    return rootdk_cuda_backward(&problem, &back, &gradients, workspace.data(), workspace.size(), nullptr);
  }
  int read_stats() {
    return rootdk_cuda_read_stats(&problem, &in, workspace.data(), workspace.size(), nullptr, &stats);
  }
  int read_gradient_stats() {
    return rootdk_cuda_read_gradient_stats(&problem, &in, workspace.data(), workspace.size(), nullptr, &head, 1);
  }

  void expect_refused(const std::function<int()>& call, const std::string& why) {
    EXPECT_EQ(call(), ROOTDK_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(rootdk_last_error()), why);
    EXPECT_EQ(memory, std::vector<float>(8, 7.0f));
    EXPECT_EQ(stats, nullptr);
  }
};

TEST_F(CudaC, SaysWhyThereIsNoGpu) {
  const std::string why = cuda::missing();
  EXPECT_EQ(rootdk_cuda_missing(), why);
  if (why.empty()) GTEST_SKIP() << "there is one";
  std::size_t size = 42;
  std::int32_t fast = 42;
  expect_refused([&] { return forward(); }, "cuda: " + why);
  expect_refused([&] { return backward(); }, "cuda: " + why);
  expect_refused([&] { return read_stats(); }, "cuda: " + why);
  expect_refused([&] { return read_gradient_stats(); }, "cuda: " + why);
  expect_refused([&] { return rootdk_cuda_workspace_size(&problem, &in, ROOTDK_FORWARD, &size); }, "cuda: " + why);
  expect_refused([&] { return rootdk_cuda_is_fast(&problem, &in, ROOTDK_BACKWARD, &fast); }, "cuda: " + why);
  expect_refused([&] { return rootdk_cuda_explain(&problem, &in, ROOTDK_FORWARD, nullptr, 0, &size); }, "cuda: " + why);
  EXPECT_EQ(size, 42u);
  EXPECT_EQ(fast, 42);
}

TEST_F(CudaC, StatisticsCannotBeHadFromTheCallItself) {
  const std::string later = ": on a GPU it cannot be filled before the call returns; ";
  rootdk_head_stats heads;
  std::int64_t gap = 0;
  out.head_stats = &heads, out.head_stats_count = 1;
  expect_refused([&] { return forward(); }, "head_stats" + later + "rootdk_cuda_read_stats reads it afterwards");
  out.head_stats = nullptr, out.head_stats_count = 0;
  out.gaps = &gap;
  expect_refused([&] { return forward(); }, "gaps" + later + "rootdk_cuda_read_stats reads it afterwards");
  out.gaps = nullptr;
  out.stats = &stats;
  expect_refused([&] { return forward(); }, "stats" + later + "rootdk_cuda_read_stats reads it afterwards");
  gradients.head_stats = &head, gradients.head_stats_count = 1;
  expect_refused([&] { return backward(); },
                 "head_stats" + later + "rootdk_cuda_read_gradient_stats reads it afterwards");
}

TEST_F(CudaC, HostileArgumentsAreRefused) {
  std::size_t size = 0;
  expect_refused([&] { return rootdk_cuda_forward(&problem, nullptr, &out, nullptr, 0, nullptr); }, "inputs: null");
  expect_refused([&] { return rootdk_cuda_forward(&problem, &in, nullptr, nullptr, 0, nullptr); }, "outputs: null");
  expect_refused([&] { return rootdk_cuda_backward(&problem, &back, nullptr, nullptr, 0, nullptr); },
                 "gradients: null");
  expect_refused([&] { return rootdk_cuda_backward(&problem, nullptr, &gradients, nullptr, 0, nullptr); },
                 "inputs: null");
  expect_refused([&] { return rootdk_cuda_workspace_size(&problem, &in, ROOTDK_FORWARD, nullptr); }, "size: null");
  expect_refused([&] { return rootdk_cuda_is_fast(&problem, &in, ROOTDK_FORWARD, nullptr); }, "fast: null");
  expect_refused([&] { return rootdk_cuda_read_stats(&problem, &in, nullptr, 0, nullptr, nullptr); }, "stats: null");
  expect_refused([&] { return rootdk_cuda_read_gradient_stats(&problem, &in, nullptr, 0, nullptr, nullptr, 0); },
                 "heads: null");
  expect_refused([&] { return rootdk_cuda_workspace_size(&problem, &in, 2, &size); },
                 "pass: value is 2, but 0 to 1 is wanted");
  in.reserved[7] = 1;
  expect_refused([&] { return forward(); },
                 "inputs: reserved is not zero: not initialised, or made for a later version than " ROOTDK_VERSION);
  in.reserved[7] = 0;
  in.q.dtype = 77;
  expect_refused([&] { return forward(); }, "q: dtype is 77, but 0 to 4 is wanted");
  in.q.dtype = ROOTDK_F32;
  problem.version = 0;
  expect_refused([&] { return forward(); }, "problem: version is 0, but 2 is wanted; call rootdk_problem_init first");
}

}  // namespace
}  // namespace rootdk::test
