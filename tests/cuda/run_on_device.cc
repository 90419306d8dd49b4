// Copies to the card and back around the backend's own table of functions.
#include "cuda/run_on_device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "base/row_tensors.h"
#include "cpu/reference/reference.h"
#include "cuda/api/backend.h"
#include "cuda/device.h"
#include "engine/records.h"
#include "engine/reduce.h"
#include "support/plain.h"

namespace rootdk::test {

namespace {

/// Everything a run writes, on the host.
struct Written {
  Buffer o, lse, raw_max, score_max, p_max, key_mass, d_q, d_k, d_v, d_bias;
  std::vector<Buffer> full_rows;
  std::vector<float> d_scale, d_sink, d_log_n_gain, d_log_n_offset;

  explicit Written(const Case& c, bool full) {
    const Shape& s = c.shape;
    const DType rows = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Extents row_shape = {s.batch, s.heads_q, s.len_q, 1};
    o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, c.out_layout);
    for (Buffer* row : {&lse, &raw_max, &score_max, &p_max}) *row = Buffer(rows, row_shape);
    for (std::size_t x = 0; full && x < std::size(base::kFullRowTensors); ++x) full_rows.emplace_back(rows, row_shape);
    if (c.problem.stats_options.key_mass) key_mass = Buffer(rows, {s.batch, s.heads_q, s.len_kv, 1});
    d_q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, c.out_layout);
    d_k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, c.out_layout);
    d_v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, c.out_layout);
    if (!c.bias.empty()) d_bias = Buffer(c.bias.tensor().dtype, c.bias.tensor().shape, c.out_layout);
    d_scale.assign(static_cast<std::size_t>(s.heads_q), NAN);
    d_sink.assign(c.sink.size(), NAN);
    d_log_n_gain.assign(c.problem.scale.length == Scale::Length::kLogN ? d_scale.size() : 0, NAN);
    d_log_n_offset = d_log_n_gain;
  }

  template <class Of>
  Outputs outputs(const Of& of) {
    Outputs out{of(o), of(lse), {of(raw_max), of(score_max), of(p_max)}};
    for (std::size_t x = 0; x < full_rows.size(); ++x) out.rows.*base::kFullRowTensors[x].tensor = of(full_rows[x]);
    if (!key_mass.empty()) out.key_mass = of(key_mass);
    return out;
  }

  Result result(bool backward) const {
    Result r;
    r.o = o.values(), r.lse = lse.values(), r.raw_max = raw_max.values(), r.score_max = score_max.values(),
    r.p_max = p_max.values();
    r.guards_intact = o.guards_intact() && lse.guards_intact() && raw_max.guards_intact() &&
                      score_max.guards_intact() && p_max.guards_intact();
    for (const Buffer& row : full_rows)
      r.rows.push_back(row.values()), r.guards_intact = r.guards_intact && row.guards_intact();
    if (!key_mass.empty())
      r.key_mass = key_mass.values(), r.guards_intact = r.guards_intact && key_mass.guards_intact();
    if (!backward) return r;
    r.d_q = d_q.values(), r.d_k = d_k.values(), r.d_v = d_v.values(), r.d_bias = d_bias.values();
    r.d_scale = {d_scale.begin(), d_scale.end()}, r.d_sink = {d_sink.begin(), d_sink.end()};
    r.d_log_n_gain = {d_log_n_gain.begin(), d_log_n_gain.end()},
    r.d_log_n_offset = {d_log_n_offset.begin(), d_log_n_offset.end()};
    r.guards_intact =
        r.guards_intact && d_q.guards_intact() && d_k.guards_intact() && d_v.guards_intact() && d_bias.guards_intact();
    return r;
  }
};

Plan bare_plan(const Case& c, Pass pass) {
  Plan plan;
  plan.pass = pass;
  plan.problem = c.problem;
  plan.shape = c.shape;
  return plan;
}

Stats reduce(const Plan& plan, const engine::ForwardRecords& records) {
  Stats stats{plan.problem.stats, plan.shape.batch, plan.shape.heads_q, {}};
  for (std::int64_t head = 0; records.rows && head < stats.batch * stats.heads; ++head)
    stats.per_head.push_back(engine::reduce_head(plan, records, head));
  return stats;
}

template <class Forward, class Backward>
Result run_on_cpu(const Case& c, bool backward, bool with_records, const Forward& run_forward,
                  const Backward& run_backward) {
  const bool full = with_records && c.problem.stats == StatsLevel::kFull;
  Written w(c, full);
  const auto host = [](Buffer& b) { return b.tensor(); };
  const Plan plan = bare_plan(c, Pass::kForward), back = bare_plan(c, Pass::kBackward);
  std::vector<std::byte> memory(engine::records_bytes(plan) + 64);
  base::Arena arena(memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64);
  engine::ForwardRecords records{};
  if (with_records) records = engine::ForwardRecords::take(arena, plan);
  const Inputs in = c.inputs();
  const Outputs out = w.outputs(host);
  run_forward(base::ForwardCall{plan, in, out, records.rows, records.full, records.causes, records.gaps, nullptr});
  const Stats stats = reduce(plan, records);
  std::vector<HeadGradients> head_gradients(static_cast<std::size_t>(c.shape.batch * c.shape.heads_q));
  if (backward) {
    const BackwardInputs from{in.q, in.k, in.v, w.o.tensor(), w.lse.tensor(), c.d_o.tensor(), c.d_lse.tensor()};
    const Gradients to{w.d_q.tensor(),    w.d_k.tensor(), w.d_v.tensor(), w.d_scale,
                       w.d_bias.tensor(), w.d_sink,       w.d_log_n_gain, w.d_log_n_offset};
    run_backward(base::BackwardCall{back, from, to, head_gradients.data(), nullptr});
  }
  Result r = w.result(backward);
  r.stats = stats;
  r.gradient_stats = {c.shape.batch, c.shape.heads_q, head_gradients};
  return r;
}

}  // namespace

Result run_exactly(const Case& c, bool backward) {
  return run_on_cpu(*c.exact(), backward, true, &cpu::reference_forward, &cpu::reference_backward);
}

Result run_plainly(const Case& c, bool backward) {
  return run_on_cpu(c, backward, false, &plain_forward, &plain_backward);
}

std::string chosen_kernel(const Case& c) {
  return rootdk_cuda_backend()
      ->choose(c.problem, c.shape, Pass::kForward, rootdk_cuda_backend()->current_card())
      .kernel;
}

Result run_on_device(const Case& c, const DeviceOptions& options) {
  Written w(c, c.problem.stats == StatsLevel::kFull && options.rows);
  // The case's buffers are not written; only their twins need a place to come from.
  const auto source = [](const Buffer& b) { return Twin(const_cast<Buffer&>(b)); };
  Twin q = source(c.q), k = source(c.k), v = source(c.v), d_o = source(c.d_o), d_lse = source(c.d_lse),
       allowed = source(c.allowed), bias = source(c.bias);
  std::vector<std::pair<Buffer*, Twin>> twins;
  const auto twin = [&](Buffer& b) {
    for (auto& [buffer, there] : twins)
      if (buffer == &b) return there.tensor();
    twins.emplace_back(&b, Twin(b));
    return twins.back().second.tensor();
  };

  DeviceMemory seed(sizeof(std::uint64_t));
  must(cudaMemcpy(seed.data(), &c.problem.dropout.seed, sizeof(std::uint64_t), cudaMemcpyHostToDevice), "seed");
  Plan plan = bare_plan(c, Pass::kForward), back = bare_plan(c, Pass::kBackward);
  for (Plan* p : {&plan, &back}) {
    if (options.seed_there)
      p->problem.dropout.seed = ~c.problem.dropout.seed,
      p->problem.dropout.device_seed = reinterpret_cast<const std::uint64_t*>(seed.data());
    p->problem.mask.allowed = c.allowed.empty() ? Tensor{} : allowed.tensor();
    p->problem.mask.bias = c.bias.empty() ? Tensor{} : bias.tensor();
    p->kernel =
        rootdk_cuda_backend()->choose(p->problem, p->shape, p->pass, rootdk_cuda_backend()->current_card()).kernel;
  }
  if (!options.kernel.empty()) plan.kernel = options.kernel;
  if (!options.back_kernel.empty()) back.kernel = options.back_kernel;

  // Records, then the kernel's own: as the engine lays a workspace out.
  const std::size_t record_bytes = engine::records_bytes(plan), back_record_bytes = engine::records_bytes(back);
  const std::size_t forward_bytes = record_bytes + rootdk_cuda_backend()->forward_bytes(plan),
                    backward_bytes = back_record_bytes + rootdk_cuda_backend()->backward_bytes(back);
  DeviceMemory workspace(std::max(forward_bytes, backward_bytes) + 64), back_workspace(backward_bytes + 64);
  must(cudaMemset(workspace.data(), 0xFF, forward_bytes), "poison");
  must(cudaMemset(back_workspace.data(), 0xFF, backward_bytes), "poison");
  base::Arena arena(workspace.data());
  const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);

  const Inputs in{q.tensor(), k.tensor(), v.tensor()};
  const Outputs out = w.outputs(twin);
  const std::size_t heads = w.d_scale.size(), sinks = w.d_sink.size(), gains = w.d_log_n_gain.size();
  DeviceMemory sums((heads + sinks + 2 * gains) * sizeof(float) + 4);
  must(cudaMemset(sums.data(), 0xFF, (heads + sinks + 2 * gains) * sizeof(float)), "poison");
  auto* floats = reinterpret_cast<float*>(sums.data());
  const BackwardInputs from{
      in.q, in.k, in.v, out.o, out.lse, d_o.tensor(), c.d_lse.empty() ? Tensor{} : d_lse.tensor()};
  Gradients to{twin(w.d_q),
               twin(w.d_k),
               twin(w.d_v),
               {floats, heads},
               {},
               {floats + heads, sinks},
               {floats + heads + sinks, gains},
               {floats + heads + sinks + gains, gains}};
  if (!c.bias.empty()) to.d_bias = twin(w.d_bias);
  if (!options.sums) to.d_scale = {}, to.d_sink = {}, to.d_log_n_gain = {}, to.d_log_n_offset = {};
  base::Arena back_arena(back_workspace.data());
  const engine::BackwardRecords back_records = engine::BackwardRecords::take(back_arena, back);

  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const auto enqueue = [&] {
    rootdk_cuda_backend()->forward(
        {plan, in, out, records.rows, records.full, records.causes, records.gaps, workspace.data() + arena.used()},
        stream);
    if (options.backward)
      rootdk_cuda_backend()->backward({back, from, to, back_records.heads, back_workspace.data() + back_arena.used()},
                                      stream);
  };
  if (options.graph) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    enqueue();
    must(cudaStreamEndCapture(stream, &graph), "end of capture");
    must(cudaGraphInstantiate(&executable, graph, 0), "graph");
    for (int replay = 0; replay < 2; ++replay) must(cudaGraphLaunch(executable, stream), "replay");
    must(cudaStreamSynchronize(stream), "graph replay");
    cudaGraphExecDestroy(executable), cudaGraphDestroy(graph);
  } else {
    enqueue();
  }
  must(cudaStreamSynchronize(stream), "kernels");
  cudaStreamDestroy(stream);

  for (auto& [buffer, there] : twins) there.pull();
  const auto pull = [&](std::vector<float>& to_host, const float* device) {
    if (!to_host.empty())
      must(cudaMemcpy(to_host.data(), device, to_host.size() * sizeof(float), cudaMemcpyDeviceToHost), "sums");
  };
  if (options.backward && options.sums) {
    pull(w.d_scale, floats), pull(w.d_sink, floats + heads);
    pull(w.d_log_n_gain, floats + heads + sinks), pull(w.d_log_n_offset, floats + heads + sinks + gains);
  }
  Result r = w.result(options.backward);
  r.rounded_weights = plan.kernel != "plain", r.rounded_backward = options.backward && back.kernel != "plain";

  std::vector<std::byte> host(record_bytes + 64);
  std::byte* aligned = host.data() + (64 - reinterpret_cast<std::uintptr_t>(host.data()) % 64) % 64;
  if (record_bytes > 0) must(cudaMemcpy(aligned, workspace.data(), record_bytes, cudaMemcpyDeviceToHost), "records");
  base::Arena host_arena(aligned);
  r.stats = reduce(plan, engine::ForwardRecords::take(host_arena, plan));
  if (options.backward && back_records.heads) {
    r.gradient_stats = {c.shape.batch, c.shape.heads_q,
                        std::vector<HeadGradients>(static_cast<std::size_t>(c.shape.batch * c.shape.heads_q))};
    must(cudaMemcpy(r.gradient_stats.per_head.data(), back_records.heads,
                    r.gradient_stats.per_head.size() * sizeof(HeadGradients), cudaMemcpyDeviceToHost),
         "gradient statistics");
  }
  return r;
}

}  // namespace rootdk::test
