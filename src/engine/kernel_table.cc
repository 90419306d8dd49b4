#include "engine/kernel_table.h"

#include <algorithm>

#include "cpu/fused.h"
#include "cpu/reference.h"

namespace rootdk::engine {

const std::vector<Kernel>& kernel_table() {
  static const std::vector<Kernel> table = [] {
    std::vector<Kernel> rows;
    for (std::size_t i = 0; i < cpu::fused_forward().size(); ++i) {
      const cpu::FusedForward& forward = cpu::fused_forward()[i];
      const cpu::FusedBackward& backward = cpu::fused_backward()[i];
      rows.push_back({"fused", forward.isa, forward.tile_rows, forward.tile_keys, forward.lanes, forward.workspace_bytes,
                      backward.workspace_bytes, forward.run, backward.run});
    }
    const auto nothing = [](const Plan&) -> std::size_t { return 0; };
    rows.push_back({"reference", "", 1, 1, 1, nothing, nothing, &cpu::reference_forward, &cpu::reference_backward});
    return rows;
  }();
  return table;
}

std::string misfit(const Kernel& kernel, const Shape& shape, const Machine& machine) {
  if (kernel.name == "reference") return {};
  if (shape.dtype == DType::kF64) return "takes f32, f16 and bf16, not f64";
  if (std::find(machine.isas.begin(), machine.isas.end(), kernel.isa) == machine.isas.end())
    return "its instruction set is not in the machine given";
  return {};
}

const Kernel& kernel_of(const Plan& plan) {
  for (const Kernel& kernel : kernel_table())
    if (kernel.name == plan.kernel && kernel.isa == plan.isa) return kernel;
  throw Error(ErrorCode::kInvalidArgument, "plan: no kernel here is called " + plan.kernel + " " + plan.isa);
}

}  // namespace rootdk::engine
