// Memory for outputs, a plan forced onto one kernel, both passes, and everything widened to double.
#include "support/run_case.h"

#include <cstdlib>

#include "base/row_tensors.h"
#include "support/plain.h"

namespace rootdk::test {

namespace {

std::vector<double> widen(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace

Result run(const Case& c, const engine::Kernel& kernel, const RunOptions& options) {
  const Shape& s = c.shape;
  const DType rows = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Extents row_shape = {s.batch, s.heads_q, s.len_q, 1};
  Buffer o(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, c.out_layout);
  Buffer lse(rows, row_shape), raw_max(rows, row_shape), score_max(rows, row_shape), p_max(rows, row_shape);

  // The kernel is called as the engine would, but for choosing it.
  Machine machine;
  machine.threads = options.threads;
  if (!kernel.isa.empty()) machine.isas = {kernel.isa};
  const auto plan_for = [&](Pass pass) {
    Plan plan = make_plan(c.problem, s, pass, machine);
    if (kernel.name == "reference" || kernel.name == "plain") plan.kernel = "reference", plan.isa = "";
    return plan;
  };
  Result r;
  const Plan plan = plan_for(Pass::kForward);
  r.rounded_weights = kernel.bf16_step != 0 && plan.isa == kernel.isa;
  const Inputs inputs = c.inputs();
  Outputs outputs{o.tensor(), lse.tensor(), {raw_max.tensor(), score_max.tensor(), p_max.tensor()}};
  std::vector<Buffer> full_rows;
  for (const base::FullRowTensor& row : base::kFullRowTensors) {
    if (c.problem.stats != StatsLevel::kFull || kernel.name == "plain") break;
    full_rows.emplace_back(rows, row_shape);
    outputs.rows.*row.tensor = full_rows.back().tensor();
  }
  Buffer key_mass(rows, {s.batch, s.heads_q, s.len_kv, 1});
  if (c.problem.stats_options.key_mass) outputs.key_mass = key_mass.tensor();
  if (kernel.name == "plain") {
    plain_forward({plan, inputs, outputs, nullptr, nullptr, nullptr, nullptr, nullptr});
  } else {
    std::vector<std::byte> memory(plan.workspace_bytes + 64);
    std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    r.stats = forward(plan, inputs, outputs, {aligned, plan.workspace_bytes});
  }
  r.o = o.values(), r.lse = lse.values();
  r.raw_max = raw_max.values(), r.score_max = score_max.values(), r.p_max = p_max.values();
  for (const Buffer& row : full_rows) r.rows.push_back(row.values());
  if (c.problem.stats_options.key_mass) r.key_mass = key_mass.values();
  r.guards_intact = key_mass.guards_intact() && o.guards_intact() && lse.guards_intact() && raw_max.guards_intact() &&
                    score_max.guards_intact() && p_max.guards_intact();
  if (!options.backward) return r;

  Buffer d_q(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, c.out_layout);
  Buffer d_k(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, c.out_layout);
  Buffer d_v(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, c.out_layout);
  Buffer d_bias = c.bias.empty() ? Buffer() : Buffer(c.bias.tensor().dtype, c.bias.tensor().shape, c.out_layout);
  std::vector<float> d_scale(static_cast<std::size_t>(s.heads_q)), d_sink(c.sink.size());
  std::vector<float> d_log_n_gain(c.problem.scale.length == Scale::Length::kLogN ? d_scale.size() : 0),
      d_log_n_offset = d_log_n_gain;
  const Plan back = plan_for(Pass::kBackward);
  const BackwardInputs from{inputs.q, inputs.k, inputs.v, o.tensor(), lse.tensor(), c.d_o.tensor(), c.d_lse.tensor()};
  const Gradients to{d_q.tensor(),    d_k.tensor(), d_v.tensor(), d_scale,
                     d_bias.tensor(), d_sink,       d_log_n_gain, d_log_n_offset};
  if (kernel.name == "plain") {
    plain_backward({back, from, to, nullptr, nullptr});
  } else {
    std::vector<std::byte> memory(back.workspace_bytes + 64);
    std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    r.gradient_stats = backward(back, from, to, {aligned, back.workspace_bytes});
  }
  r.d_q = d_q.values(), r.d_k = d_k.values(), r.d_v = d_v.values(), r.d_bias = d_bias.values();
  r.d_scale = widen(d_scale), r.d_sink = widen(d_sink);
  r.d_log_n_gain = widen(d_log_n_gain), r.d_log_n_offset = widen(d_log_n_offset);
  r.guards_intact =
      r.guards_intact && d_q.guards_intact() && d_k.guards_intact() && d_v.guards_intact() && d_bias.guards_intact();
  return r;
}

Result run_reference(const Case& c, const RunOptions& options) {
  return run(*c.exact(), engine::kernel_table().back(), options);
}

Result run_plain(const Case& c, const RunOptions& options) {
  engine::Kernel plain{};
  plain.name = "plain";
  return run(c, plain, options);
}

std::vector<engine::Kernel> fast_kernels() {
  const auto& table = engine::kernel_table();
  return {table.begin(), table.end() - 1};
}

int problem_count(int otherwise) {
  const char* text = std::getenv("ROOTDK_TEST_PROBLEMS");
  return text ? std::atoi(text) : otherwise;
}

}  // namespace rootdk::test
