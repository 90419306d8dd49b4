// The public face of the CUDA backend: checks, lays out the workspace, and reads statistics back.
#include "rootdk/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/memory_errors.h"
#include "base/validate.h"
#include "cpu/parallel.h"
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

constexpr std::int64_t kRowsPerThread = 1 << 14;  // about a millisecond of reducing

using Bytes = std::unique_ptr<std::byte[]>;

std::byte* aligned(const Bytes& memory) {
  return memory.get() + (base::kAlignment - reinterpret_cast<std::uintptr_t>(memory.get()) % base::kAlignment) % base::kAlignment;
}

/// The records of a workspace in `bytes` of host memory. Where only some blocks of queries were sampled, only their full records travel.
std::vector<gpu::Copy> copies_of(const Plan& plan, const engine::ForwardRecords& records, std::byte* host, const std::byte* device, std::size_t bytes) {
  std::vector<gpu::Copy> copies;
  const auto add = [&](void* place, std::size_t pitch, std::size_t width, std::size_t height) {
    copies.push_back({place, device + (static_cast<std::byte*>(place) - host), pitch, width, height});
  };
  const StatsOptions& options = plan.problem.stats_options;
  if (!records.full || options.sample == 1) {
    add(host, bytes, bytes, 1);
    return copies;
  }
  const auto heads = static_cast<std::size_t>(plan.shape.batch * plan.shape.heads_q), queries = static_cast<std::size_t>(plan.shape.len_q);
  constexpr std::size_t kRecord = sizeof(base::FullRecord);
  const auto before = static_cast<std::size_t>(reinterpret_cast<std::byte*>(records.full) - host);
  add(host, before, before, 1);
  for (std::int64_t i = 0, end = 0; i < plan.shape.len_q; i = end) {
    end = std::min(plan.shape.len_q, ((options.first_query + i) / kSampleBlock + 1) * kSampleBlock - options.first_query);
    if (base::is_sampled(options, i)) add(records.full + i, queries * kRecord, static_cast<std::size_t>(end - i) * kRecord, heads);
  }
  std::byte* after = reinterpret_cast<std::byte*>(records.full + heads * queries);
  const std::size_t rest = bytes - static_cast<std::size_t>(after - host);
  if (rest > 0) add(after, rest, rest, 1);
  return copies;
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
    if (stats.level == StatsLevel::kNone) return stats;
    const std::size_t bytes = engine::records_bytes(plan);
    const Bytes memory = std::make_unique_for_overwrite<std::byte[]>(bytes + base::kAlignment);
    std::byte* host = aligned(memory);
    base::Arena arena(host);
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
    if (bytes > 0) backend().to_host(copies_of(plan, records, host, workspace.data(), bytes), stream);
    const std::int64_t heads = stats.batch * stats.heads;
    stats.per_head.resize(static_cast<std::size_t>(heads));
    const int threads = heads * plan.shape.len_q < kRowsPerThread ? 1 : Machine::here().threads;
    cpu::parallel_tasks(heads, threads, [&](std::int64_t head, int) { stats.per_head[static_cast<std::size_t>(head)] = engine::reduce_head(plan, records, head); });
    return stats;
  });
}

GradientStats read_gradient_stats(const Plan& plan, std::span<const std::byte> workspace, Stream stream) {
  return base::with_memory_errors([&] {
    check_plan(plan, Pass::kBackward, workspace);
    GradientStats stats{plan.shape.batch, plan.shape.heads_q, {}};
    if (engine::records_bytes(plan) == 0) return stats;
    stats.per_head.resize(static_cast<std::size_t>(stats.batch * stats.heads));
    const std::size_t bytes = stats.per_head.size() * sizeof(HeadGradients);
    const gpu::Copy copy{stats.per_head.data(), workspace.data(), bytes, bytes, 1};
    if (bytes > 0) backend().to_host({&copy, 1}, stream);
    return stats;
  });
}

}  // namespace rootdk::cuda
