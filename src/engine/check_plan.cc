// Plans and workspaces that do not fit the call.
#include "engine/check_plan.h"

#include <cstdint>

#include "base/arena.h"
#include "base/refuse.h"
#include "base/validate.h"

namespace rootdk::engine {

using base::refuse;

void check_plan(const Plan& plan, Pass pass, Device device, std::span<const std::byte> workspace) {
  if (plan.device != device && device == Device::kCuda)
    refuse("plan: made for the CPU, but a GPU was called (make it with the GPU's machine)");
  if (plan.device != device)
    refuse("plan: made for a GPU, but the CPU was called (rootdk/cuda.h has forward and backward for GPUs)");
  if (plan.pass != pass)
    refuse("plan: made for {}, but {} was called", plan.pass == Pass::kForward ? "forward" : "backward",
           pass == Pass::kForward ? "forward" : "backward");
  if (workspace.size() < plan.workspace_bytes)
    refuse("workspace: {} bytes, but the plan needs {}", workspace.size(), plan.workspace_bytes);
  if (!workspace.empty() && reinterpret_cast<std::uintptr_t>(workspace.data()) % base::kAlignment != 0)
    refuse("workspace: not aligned to {} bytes", base::kAlignment);
  base::check_problem(plan.problem, plan.shape, device);
}

}  // namespace rootdk::engine
