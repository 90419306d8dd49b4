// How much memory calls ask for beside their tensors, from the library that has the kernels: sizes only, so no GPU is
// wanted. docs/cuda.md states the bounds.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/api/backend.h"
#include "engine/records.h"

namespace rootdk::test {
namespace {

const cuda::Backend& backend() {
  static const cuda::Backend* found = [] {
    void* library = dlopen(ROOTDK_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    return reinterpret_cast<const cuda::Backend* (*)()>(dlsym(library, cuda::kBackendSymbol))();
  }();
  return *found;
}

Plan plan_of(const Shape& s, Pass pass, StatsLevel level, bool causal) {
  Plan plan;
  plan.pass = pass, plan.shape = s;
  plan.problem.stats = level, plan.problem.mask.causal = causal;
  plan.kernel = backend().choose(plan.problem, s, pass, Gpu{"H200", 9, 0, 132}).kernel;
  return plan;
}

double bytes_of(const Plan& plan) {
  const std::size_t kernel =
      plan.pass == Pass::kForward ? backend().forward_bytes(plan) : backend().backward_bytes(plan);
  return static_cast<double>(engine::records_bytes(plan) + engine::block_bytes(plan) + kernel);
}

/// Q, K, V and O, their lengths counted in steps of 128: tiles are whole.
double tensors_of(const Shape& s) {
  const auto rows = [](std::int64_t length) { return static_cast<double>((length + 127) / 128 * 128); };
  return 2.0 * static_cast<double>(s.batch) * static_cast<double>(s.dim_qk + s.dim_v) *
         (static_cast<double>(s.heads_q) * rows(s.len_q) + static_cast<double>(s.heads_kv) * rows(s.len_kv));
}

constexpr std::int64_t kMillion = std::int64_t{1} << 20;

/// Sizes from one key to a million, alone and in large batches; f(shape).
template <class F>
void each_shape(const F& f) {
  for (const std::int64_t dim : {64, 128, 256})
    for (const std::int64_t group : {1, 8})
      for (const std::int64_t batch : {1, 3, 64, 512})
        for (const std::int64_t len_kv :
             {std::int64_t{64}, std::int64_t{1000}, std::int64_t{4096}, std::int64_t{32768}, kMillion})
          for (const std::int64_t len_q : {std::int64_t{1}, std::int64_t{4}, std::int64_t{8}, len_kv})
            if (batch * len_kv <= 4 * kMillion) f(Shape{batch, 8 * group, 8, len_q, len_kv, dim, dim, DType::kBF16});
}

void expect_share(Pass pass, StatsLevel level, double share) {
  double most = 0;
  each_shape([&](const Shape& s) {
    for (const bool causal : {false, true}) {
      const double bytes = bytes_of(plan_of(s, pass, level, causal)), tensors = tensors_of(s);
      most = std::max(most, (bytes - 65536) / tensors);
      EXPECT_LE(bytes, share * tensors + 65536)
          << "batch " << s.batch << ", heads " << s.heads_q << "/" << s.heads_kv << ", " << s.len_q << " × " << s.len_kv
          << ", dim " << s.dim_qk << (causal ? ", causal" : "");
    }
  });
  std::printf("%s, statistics %d: at most %.3f of Q, K, V and O\n", pass == Pass::kForward ? "forward" : "backward",
              static_cast<int>(level), most);
}

TEST(CudaWorkspace, IsAShareOfTheTensorsForward) {
  expect_share(Pass::kForward, StatsLevel::kNone, 0.15);
  expect_share(Pass::kForward, StatsLevel::kBasic, 0.15);
  expect_share(Pass::kForward, StatsLevel::kFull, 0.5);
}

TEST(CudaWorkspace, IsAShareOfTheTensorsBackward) {
  expect_share(Pass::kBackward, StatsLevel::kNone, 1.1);
  expect_share(Pass::kBackward, StatsLevel::kFull, 1.1);
}

TEST(CudaWorkspace, GrowsWithTheTokensOnly) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    for (const StatsLevel level : {StatsLevel::kBasic, StatsLevel::kFull})
      for (const std::int64_t dim : {64, 128}) {
        const auto bytes = [&](std::int64_t length) {
          return bytes_of(plan_of({1, 8, 8, length, length, dim, dim, DType::kBF16}, pass, level, true));
        };
        EXPECT_LE(bytes(kMillion), 8.01 * bytes(kMillion / 8));
      }
}

/// Where the batch alone fills the card, blocks merge the splits of a row themselves.
TEST(CudaWorkspace, OfDecodingDoesNotGrowWithSplitsWhereTheBatchFillsTheCard) {
  const auto bytes = [](std::int64_t batch) {
    return bytes_of(
        plan_of({batch, 32, 8, 1, 32768, 128, 128, DType::kBF16}, Pass::kForward, StatsLevel::kBasic, false));
  };
  EXPECT_LT(bytes(64), 16 * bytes(1)) << "64 times the rows, a part for every eight splits";
}

}  // namespace
}  // namespace rootdk::test
