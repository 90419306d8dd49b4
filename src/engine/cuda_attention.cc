// The public face of the CUDA backend: checks, lays out the workspace, and reads statistics back.
#include "rootdk/cuda.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "base/validate.h"
#include "cuda/api/backend.h"
#include "engine/check_plan.h"
#include "engine/records.h"
#include "engine/reduce.h"
#include "engine/slow.h"

namespace rootdk::cuda {

namespace {

const cuda::Backend& backend() {
  const std::string why = missing();
  if (!why.empty()) throw Error(ErrorCode::kInvalidArgument, "cuda: " + why);
  return *cuda::load_backend().backend;
}

constexpr std::int64_t kFewRows =
    1 << 15;  // a few milliseconds; for less, threads that spin afterwards cost the caller more than they bring

using Bytes = std::unique_ptr<std::byte[]>;

std::byte* aligned(const Bytes& memory) {
  return memory.get() +
         (base::kAlignment - reinterpret_cast<std::uintptr_t>(memory.get()) % base::kAlignment) % base::kAlignment;
}

/// What of a workspace's records the host needs, of `bytes` in all; where rows were reduced by the block only those
/// that were sampled.
std::vector<cuda::Copy> copies_of(const Plan& plan, const engine::ForwardRecords& records, std::byte* host,
                                  const std::byte* device, std::size_t bytes, bool in_blocks) {
  std::vector<cuda::Copy> copies;
  const auto add = [&](void* place, std::size_t pitch, std::size_t width, std::size_t height) {
    copies.push_back({place, device + (static_cast<std::byte*>(place) - host), pitch, width, height});
  };
  if (!in_blocks) {
    add(host, bytes, bytes, 1);
    return copies;
  }
  const auto heads = static_cast<std::size_t>(plan.shape.batch * plan.shape.heads_q),
             queries = static_cast<std::size_t>(plan.shape.len_q);
  const StatsOptions& options = plan.problem.stats_options;
  for (std::int64_t i = 0, end = 0; records.full && i < plan.shape.len_q; i = end) {
    end = base::block_end(options, i, plan.shape.len_q);
    if (!base::is_sampled(options, i)) continue;
    const auto count = static_cast<std::size_t>(end - i);
    add(records.rows + i, queries * sizeof(base::RowRecord), count * sizeof(base::RowRecord), heads);
    add(records.full + i, queries * sizeof(base::FullRecord), count * sizeof(base::FullRecord), heads);
  }
  void* rest = records.causes ? static_cast<void*>(records.causes) : records.gaps;
  if (rest) {
    const std::size_t left = bytes - static_cast<std::size_t>(static_cast<std::byte*>(rest) - host);
    add(rest, left, left, 1);
  }
  return copies;
}

}  // namespace

std::string missing() {
  const cuda::Loaded& loaded = cuda::load_backend();
  return loaded.backend ? loaded.backend->missing() : loaded.why_not;
}

Machine machine() {
  Machine here;
  here.gpu = backend().current_card();
  return here;
}

bool is_fast(const Plan& plan, const Inputs&) {
  if (plan.device != Device::kCuda)
    throw Error(ErrorCode::kInvalidArgument,
                "plan: made for the CPU, but a GPU was asked for (make it with the GPU's machine)");
  return plan.kernel != "plain";
}

std::string why_slow(const Plan& plan, const Inputs& inputs) {
  return is_fast(plan, inputs) ? std::string() : engine::why_slow(plan);
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace,
             Stream stream) {
  base::with_memory_errors([&] {
    engine::check_plan(plan, Pass::kForward, Device::kCuda, workspace);
    base::check_forward(plan.problem, plan.shape, inputs, outputs, Device::kCuda);
    base::Arena arena(workspace.data());
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
    backend().forward({plan, inputs, outputs, records.rows, records.full, records.causes, records.gaps,
                       workspace.data() + arena.used()},
                      stream);
  });
}

void backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients,
              std::span<std::byte> workspace, Stream stream) {
  base::with_memory_errors([&] {
    engine::check_plan(plan, Pass::kBackward, Device::kCuda, workspace);
    base::check_backward(plan.problem, plan.shape, inputs, gradients, Device::kCuda);
    base::Arena arena(workspace.data());
    const engine::BackwardRecords records = engine::BackwardRecords::take(arena, plan);
    backend().backward({plan, inputs, gradients, records.heads, workspace.data() + arena.used()}, stream);
  });
}

Stats read_stats(const Plan& plan, std::span<std::byte> workspace, Stream stream) {
  return base::with_memory_errors([&] {
    engine::check_plan(plan, Pass::kForward, Device::kCuda, workspace);
    Stats stats{plan.problem.stats, plan.shape.batch, plan.shape.heads_q, {}};
    if (stats.level == StatsLevel::kNone) return stats;
    const std::int64_t heads = stats.batch * stats.heads;
    const std::size_t bytes = engine::records_bytes(plan), block_bytes = engine::block_bytes(plan);
    const Bytes memory(new std::byte[bytes + block_bytes + base::kAlignment]);
    std::byte* host = aligned(memory);
    base::Arena arena(host), there(workspace.data());
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan),
                                 on_device = engine::ForwardRecords::take(there, plan);
    const base::BlockRecord* blocks = nullptr;
    std::vector<cuda::Copy> copies;
    if (bytes > 0) copies = copies_of(plan, records, host, workspace.data(), bytes, block_bytes > 0);
    if (block_bytes > 0) {
      std::byte* reduced = workspace.data() + plan.workspace_bytes - block_bytes;
      backend().summarise(on_device.rows, reinterpret_cast<base::BlockRecord*>(reduced), heads, plan.shape.len_q,
                          plan.problem.stats_options.first_query % kSampleBlock, stream);
      copies.push_back({host + bytes, reduced, block_bytes, block_bytes, 1});
      blocks = reinterpret_cast<const base::BlockRecord*>(host + bytes);
    }
    if (!copies.empty()) backend().to_host(copies, stream);
    stats.per_head.resize(static_cast<std::size_t>(heads));
    const std::int64_t rows =
        heads * plan.shape.len_q / (blocks && !records.full ? kSampleBlock : plan.problem.stats_options.sample);
    const int threads = rows < kFewRows ? 1 : Machine::here().threads;
    base::parallel_tasks(heads, threads, [&](std::int64_t head, int) {
      stats.per_head[static_cast<std::size_t>(head)] = engine::reduce_head(plan, records, head, blocks);
    });
    return stats;
  });
}

GradientStats read_gradient_stats(const Plan& plan, std::span<const std::byte> workspace, Stream stream) {
  return base::with_memory_errors([&] {
    engine::check_plan(plan, Pass::kBackward, Device::kCuda, workspace);
    GradientStats stats{plan.shape.batch, plan.shape.heads_q, {}};
    if (engine::records_bytes(plan) == 0) return stats;
    stats.per_head.resize(static_cast<std::size_t>(stats.batch * stats.heads));
    const std::size_t bytes = stats.per_head.size() * sizeof(HeadGradients);
    const cuda::Copy copy{stats.per_head.data(), workspace.data(), bytes, bytes, 1};
    if (bytes > 0) backend().to_host({&copy, 1}, stream);
    return stats;
  });
}

}  // namespace rootdk::cuda
