// The public face of the CUDA backend: checks, lays out the workspace, and reads statistics back.
#include "rootdk/cuda.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "base/memory_errors.h"
#include "base/validate.h"
#include "cuda/backend.h"
#include "engine/records.h"
#include "engine/reduce.h"

namespace rootdk::cuda {

namespace {

const gpu::Backend& backend() {
  const std::string why = missing();
  if (!why.empty()) throw Error(ErrorCode::kInvalidArgument, "cuda: " + why);
  return *gpu::load_backend().backend;
}

void check_plan(const Plan& plan, Pass pass, std::span<const std::byte> workspace) {
  const char* wanted = pass == Pass::kForward ? "forward" : "backward";
  if (plan.device != Device::kCuda) throw Error(ErrorCode::kInvalidArgument, "plan: made for the CPU, but a GPU was called (make_plan with cuda::machine())");
  if (plan.pass != pass) throw Error(ErrorCode::kInvalidArgument, fmt::format("plan: not made for {}, which was called", wanted));
  if (workspace.size() < plan.workspace_bytes)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("workspace: {} bytes, but the plan needs {}", workspace.size(), plan.workspace_bytes));
  if (!workspace.empty() && reinterpret_cast<std::uintptr_t>(workspace.data()) % base::kAlignment != 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("workspace: not aligned to {} bytes", base::kAlignment));
  base::check_problem(plan.problem, plan.shape, Device::kCuda);  // its arrays may have changed since the plan was made
}

}  // namespace

std::string missing() {
  const gpu::Loaded& loaded = gpu::load_backend();
  return loaded.backend ? loaded.backend->missing() : loaded.why_not;
}

Machine machine() {
  Machine here;
  here.gpu = backend().current_card();
  return here;
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace, Stream stream) {
  base::with_memory_errors([&] {
    check_plan(plan, Pass::kForward, workspace);
    base::check_forward(plan.problem, plan.shape, inputs, outputs, Device::kCuda);
    base::Arena arena(workspace.data());
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
    backend().forward({plan, inputs, outputs, records.rows, records.full, records.causes, records.gaps, workspace.data() + arena.used()}, stream);
  });
}

void backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients, std::span<std::byte> workspace, Stream stream) {
  base::with_memory_errors([&] {
    check_plan(plan, Pass::kBackward, workspace);
    base::check_backward(plan.problem, plan.shape, inputs, gradients, Device::kCuda);
    base::Arena arena(workspace.data());
    const engine::BackwardRecords records = engine::BackwardRecords::take(arena, plan);
    backend().backward({plan, inputs, gradients, records.heads, workspace.data() + arena.used()}, stream);
  });
}

Stats read_stats(const Plan& plan, std::span<const std::byte> workspace, Stream stream) {
  return base::with_memory_errors([&] {
    check_plan(plan, Pass::kForward, workspace);
    Stats stats{plan.problem.stats, plan.shape.batch, plan.shape.heads_q, {}};
    const std::size_t bytes = engine::records_bytes(plan);
    if (bytes == 0) return stats;
    std::vector<std::byte> memory(bytes + base::kAlignment);
    std::byte* host = memory.data() + (base::kAlignment - reinterpret_cast<std::uintptr_t>(memory.data()) % base::kAlignment) % base::kAlignment;
    backend().to_host(host, workspace.data(), bytes, stream);
    base::Arena arena(host);
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
    for (std::int64_t head = 0; head < stats.batch * stats.heads; ++head) stats.per_head.push_back(engine::reduce_head(plan, records, head));
    return stats;
  });
}

GradientStats read_gradient_stats(const Plan& plan, std::span<const std::byte> workspace, Stream stream) {
  return base::with_memory_errors([&] {
    check_plan(plan, Pass::kBackward, workspace);
    GradientStats stats{plan.shape.batch, plan.shape.heads_q, {}};
    if (engine::records_bytes(plan) == 0) return stats;
    stats.per_head.resize(static_cast<std::size_t>(stats.batch * stats.heads));
    backend().to_host(stats.per_head.data(), workspace.data(), stats.per_head.size() * sizeof(HeadGradients), stream);
    return stats;
  });
}

}  // namespace rootdk::cuda
