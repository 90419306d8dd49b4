// The rows: fused forward and backward per instruction set, then the reference; and why one does not fit.
#include "engine/kernel_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cpu/fused.h"
#include "cpu/reference/reference.h"

namespace rootdk::engine {

const std::vector<Kernel>& kernel_table() {
  static const std::vector<Kernel> table = [] {
    std::vector<Kernel> rows;
    for (const cpu::FusedForward& forward : cpu::fused_forward())
      for (const cpu::FusedBackward& backward : cpu::fused_backward()) {
        if (std::string_view(forward.backward_isa) != backward.isa) continue;
        const std::int64_t bf16_step = forward.bf16 ? static_cast<std::int64_t>(forward.bf16->dim_step) : 0;
        rows.push_back({"fused", forward.isa, forward.backward_isa, forward.tile_rows, forward.tile_keys, forward.lanes,
                        bf16_step, forward.workspace_bytes, backward.workspace_bytes, forward.run, backward.run});
      }
    const auto nothing = [](const Plan&) -> std::size_t { return 0; };
    rows.push_back(
        {"reference", "", "", 1, 1, 1, 0, nothing, nothing, &cpu::reference_forward, &cpu::reference_backward});
    return rows;
  }();
  return table;
}

std::string misfit(const Kernel& kernel, const Shape& shape, const Machine& machine) {
  if (kernel.name == "reference") return {};
  if (shape.dtype == DType::kF64) return "takes f32, f16 and bf16, not f64";
  const auto includes = [&](const std::string& isa) {  // an extension includes what it extends
    return isa == kernel.isa || std::any_of(kernel_table().begin(), kernel_table().end(), [&](const Kernel& other) {
             return other.isa == isa && other.base_isa == kernel.isa;
           });
  };
  if (std::none_of(machine.isas.begin(), machine.isas.end(), includes))
    return "its instruction set is not in the machine given";
  if (kernel.bf16_step != 0 && shape.dtype != DType::kBF16)
    return fmt::format("takes bf16, not {}", name_of(shape.dtype));
  if (kernel.bf16_step != 0 && shape.dim_qk % kernel.bf16_step != 0)
    return fmt::format("takes a dim_qk that is a multiple of {}, not {}", kernel.bf16_step, shape.dim_qk);
  return {};
}

const Kernel& kernel_of(const Plan& plan) {
  for (const Kernel& kernel : kernel_table())
    if (kernel.name == plan.kernel && kernel.isa == plan.isa) return kernel;
  throw Error(ErrorCode::kInvalidArgument, "plan: no kernel here is called " + plan.kernel + " " + plan.isa);
}

}  // namespace rootdk::engine
