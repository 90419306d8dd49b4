// Plan, allocate and run: nothing but what the engine itself needs, since a small call lasts some microseconds.
#include "attend.h"

#include "base/refuse.h"
#include "rootdk/attention.h"
#include "workspace.h"

namespace rootdk::torch_operators {

namespace {

DType wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

std::span<float> values(const Tensor& per_head) {
  return {static_cast<float*>(per_head.data), static_cast<std::size_t>(per_head.shape[3])};
}

}  // namespace

Attended attend(const Given& given, const Problem& problem, bool with_lse) {
  const Inputs inputs = {view_of("q", given.q), view_of("k", given.k), view_of("v", given.v)};
  const Shape s = shape_of(inputs, problem);
  const Plan plan = make_plan(problem, s);
  Fresh out = fresh_like(inputs.q, {s.batch, s.heads_q, s.len_q, s.dim_v});
  std::optional<Fresh> lse;
  if (with_lse) lse = fresh_rows({s.batch, s.heads_q, s.len_q, 1}, wide(s.dtype));
  forward(plan, inputs, {out.view, lse ? lse->view : Tensor{}}, Workspace(plan.workspace_bytes).span());
  Attended done{std::move(out.tensor), {}};
  if (lse) done.lse = std::move(lse->tensor);
  return done;
}

std::vector<TorchTensor> attend_backward(const Returned& returned, const Given& given, const Problem& problem,
                                         std::int64_t wanted) {
  BackwardInputs inputs = {view_of("q", given.q),      view_of("k", given.k),        view_of("v", given.v),
                           view_of("o", returned.out), rows_of("lse", returned.lse), view_of("d_o", returned.d_out)};
  if (returned.d_lse) inputs.d_lse = rows_of("d_lse", *returned.d_lse);
  const Shape s = shape_of({inputs.q, inputs.k, inputs.v}, problem);
  const Plan plan = make_plan(problem, s, Pass::kBackward);
  Gradients gradients;
  std::vector<TorchTensor> found;
  const auto keep = [&](Fresh fresh) {
    found.push_back(std::move(fresh.tensor));
    return fresh.view;
  };
  const auto like = [&](const ConstTensor& x) { return keep(fresh_like(x, x.shape)); };
  const auto per_head = [&] { return values(keep(fresh_per_head(s.heads_q))); };
  if (wanted & kQ) gradients.d_q = like(inputs.q);
  if (wanted & kK) gradients.d_k = like(inputs.k);
  if (wanted & kV) gradients.d_v = like(inputs.v);
  if (wanted & kScale) gradients.d_scale = per_head();
  if (wanted & kBias && !problem.mask.bias.present()) base::refuse("d_bias: wanted, but the problem has no bias");
  if (wanted & kBias) gradients.d_bias = like(problem.mask.bias);
  if (wanted & kSink) gradients.d_sink = per_head();
  backward(plan, inputs, gradients, Workspace(plan.workspace_bytes).span());
  return found;
}

}  // namespace rootdk::torch_operators
