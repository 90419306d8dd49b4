#include "rootdk/attention.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <new>

#include "base/arena.h"
#include "base/memory_errors.h"
#include "base/validate.h"
#include "engine/kernel_table.h"
#include "engine/records.h"

namespace rootdk {

using base::with_memory_errors;  // what a kernel or a check asks for beside the workspace

namespace {

struct Free {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{base::kAlignment}); }
};

class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes) {
    try {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{base::kAlignment})));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::kOutOfMemory, fmt::format("workspace: {} bytes could not be allocated", bytes));
    }
  }
  std::span<std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_;
};

void check_run(const Plan& plan, Pass pass, std::span<std::byte> workspace) {
  if (plan.pass != pass)
    throw Error(ErrorCode::kInvalidArgument, pass == Pass::kForward ? "plan: made for backward, but forward was called"
                                                                    : "plan: made for forward, but backward was called");
  if (workspace.size() < plan.workspace_bytes)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("workspace: {} bytes, but the plan needs {}", workspace.size(), plan.workspace_bytes));
  if (!workspace.empty() && reinterpret_cast<std::uintptr_t>(workspace.data()) % base::kAlignment != 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("workspace: not aligned to {} bytes", base::kAlignment));
  base::check_problem(plan.problem, plan.shape);  // its arrays may have changed since the plan was made
}

Stats reduce(const Plan& plan, const engine::Records& records) {
  Stats stats;
  stats.level = plan.problem.stats;
  stats.batch = plan.shape.batch;
  stats.heads = plan.shape.heads_q;
  if (stats.level == StatsLevel::kNone) return stats;
  const auto rows = static_cast<std::size_t>(plan.shape.len_q);
  for (std::int64_t head = 0; head < stats.batch * stats.heads; ++head) {
    const std::size_t first = static_cast<std::size_t>(head) * rows;
    const std::span<const base::FullRecord> full = records.full ? std::span<const base::FullRecord>(records.full + first, rows) : std::span<const base::FullRecord>();
    stats.per_head.push_back(base::reduce_rows({records.rows + first, rows}, full));
  }
  return stats;
}

}  // namespace

Stats forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace) {
  return with_memory_errors([&] {
    check_run(plan, Pass::kForward, workspace);
    base::check_forward(plan.problem, plan.shape, inputs, outputs);
    base::Arena arena(workspace.data());
    const engine::Records records = engine::Records::take(arena, plan);
    engine::kernel_of(plan).forward({plan, inputs, outputs, records.rows, records.full, workspace.data() + arena.used()});
    return reduce(plan, records);
  });
}

void backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients, std::span<std::byte> workspace) {
  with_memory_errors([&] {
    check_run(plan, Pass::kBackward, workspace);
    base::check_backward(plan.problem, plan.shape, inputs, gradients);
    engine::kernel_of(plan).backward({plan, inputs, gradients, workspace.data()});
  });
}

Stats forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs) {
  const Plan plan = make_plan(problem, shape_of(inputs, problem), Pass::kForward);
  with_memory_errors([&] { base::check_forward(problem, plan.shape, inputs, outputs); });  // before asking for a workspace
  return forward(plan, inputs, outputs, Workspace(plan.workspace_bytes).span());
}

void backward(const Problem& problem, const BackwardInputs& inputs, const Gradients& gradients) {
  const Plan plan = make_plan(problem, shape_of({inputs.q, inputs.k, inputs.v}, problem), Pass::kBackward);
  with_memory_errors([&] { base::check_backward(problem, plan.shape, inputs, gradients); });
  backward(plan, inputs, gradients, Workspace(plan.workspace_bytes).span());
}

}  // namespace rootdk
