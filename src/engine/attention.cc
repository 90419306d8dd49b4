// Check, hand out the workspace, call the plan's kernel, reduce its records.
#include "rootdk/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "base/arena.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "base/validate.h"
#include "engine/check_plan.h"
#include "engine/kernel_table.h"
#include "engine/records.h"
#include "engine/reduce.h"

namespace rootdk {

using base::with_memory_errors;  // what a kernel or a check asks for beside the workspace

namespace {

struct Free {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{base::kAlignment}); }
};

class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes) {
    try {
      memory_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{base::kAlignment})));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::kOutOfMemory, fmt::format("workspace: {} bytes could not be allocated", bytes));
    }
  }
  std::span<std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_;
};

Stats reduce(const Plan& plan, const engine::ForwardRecords& records) {
  Stats stats{plan.problem.stats, plan.shape.batch, plan.shape.heads_q, {}};
  if (stats.level == StatsLevel::kNone) return stats;
  const std::int64_t heads = stats.batch * stats.heads;
  stats.per_head.resize(static_cast<std::size_t>(heads));
  base::parallel_tasks(heads, plan.threads, [&](std::int64_t head, int) {
    stats.per_head[static_cast<std::size_t>(head)] = engine::reduce_head(plan, records, head);
  });
  return stats;
}

// Of what has been checked.
Stats run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace) {
  base::Arena arena(workspace.data());
  const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
  if (records.gaps) std::fill_n(records.gaps, plan.shape.batch * plan.shape.heads_q * GapHistogram::kBins, 0);
  engine::kernel_of(plan).forward({plan, inputs, outputs, records.rows, records.full, records.causes, records.gaps,
                                   workspace.data() + arena.used()});
  return reduce(plan, records);
}

GradientStats run_backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients,
                           std::span<std::byte> workspace) {
  base::Arena arena(workspace.data());
  const engine::BackwardRecords records = engine::BackwardRecords::take(arena, plan);
  engine::kernel_of(plan).backward({plan, inputs, gradients, records.heads, workspace.data() + arena.used()});
  GradientStats stats{plan.shape.batch, plan.shape.heads_q, {}};
  if (records.heads) stats.per_head.assign(records.heads, records.heads + stats.batch * stats.heads);
  return stats;
}

}  // namespace

Stats forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace) {
  return with_memory_errors([&] {
    engine::check_plan(plan, Pass::kForward, Device::kCpu, workspace);
    base::check_forward(plan.problem, plan.shape, inputs, outputs);
    return run_forward(plan, inputs, outputs, workspace);
  });
}

GradientStats backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients,
                       std::span<std::byte> workspace) {
  return with_memory_errors([&] {
    engine::check_plan(plan, Pass::kBackward, Device::kCpu, workspace);
    base::check_backward(plan.problem, plan.shape, inputs, gradients);
    return run_backward(plan, inputs, gradients, workspace);
  });
}

Stats forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  const Plan plan = make_plan(problem, shape_of(inputs, problem), Pass::kForward);
  return with_memory_errors([&] {
    base::check_forward(problem, plan.shape, inputs, outputs);
    return run_forward(plan, inputs, outputs, Workspace(plan.workspace_bytes).span());
  });
}

GradientStats backward(const Problem& problem, const BackwardInputs& inputs, const Gradients& gradients) {
  const Plan plan = make_plan(problem, shape_of({inputs.q, inputs.k, inputs.v}, problem), Pass::kBackward);
  return with_memory_errors([&] {
    base::check_backward(problem, plan.shape, inputs, gradients);
    return run_backward(plan, inputs, gradients, Workspace(plan.workspace_bytes).span());
  });
}

}  // namespace rootdk
