// Attention forward and backward on arrays: the GIL is released, and signals are looked at between parts.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>

#include "arrays.h"
#include "base/refuse.h"
#include "base/row_tensors.h"
#include "bindings.h"
#include "parts.h"
#include "rootdk/qk_norm.h"
#include "signals.h"
#include "spec.h"

namespace rootdk::python {

namespace {

/// Runs one part after the other without the GIL; what one returns about its heads is put in its place in `all`.
template <class Some, class Run>
void in_parts(const std::vector<Part>& parts, const Shape& shape, Some& all, const Run& run) {
  const nb::gil_scoped_release release;
  if (parts.size() == 1) {
    all = run(parts[0]);
    return;
  }
  for (const Part& p : parts) {
    const Some some = run(p);
    if (all.per_head.empty() && !some.per_head.empty()) {
      all = some;
      all.batch = shape.batch;
      all.heads = shape.heads_q;
      all.per_head.assign(static_cast<std::size_t>(shape.batch * shape.heads_q), {});
    }
    for (std::int64_t b = 0; b < some.batch && !some.per_head.empty(); ++b)
      for (std::int64_t h = 0; h < some.heads; ++h)
        all.per_head[static_cast<std::size_t>((p.batch + b) * shape.heads_q + p.head_kv * shape.group() + h)] =
            some.at(b, h);
    if (signals_are_pending()) raise_pending();
  }
}

RowTensors row_tensors(const std::map<std::string, nb::object>& arrays, std::vector<Output>& keep) {
  RowTensors rows;
  for (const auto& [name, array] : arrays) {
    Tensor RowTensors::*field = nullptr;
    for (const auto& row : base::kBasicRowTensors)
      if (row.name == "rows." + name) field = row.tensor;
    for (const auto& row : base::kFullRowTensors)
      if (row.name == "rows." + name) field = row.tensor;
    if (field == nullptr) base::refuse("rows: \"{}\" is not one of the statistics of a row", name);
    keep.push_back(output("rows." + name, array));
    rows.*field = keep.back().view;
  }
  return rows;
}

Stats forward(const Spec& spec, nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse,
              const std::map<std::string, nb::object>& rows, nb::handle key_mass) {
  const Input in_q = input("q", q), in_k = input("k", k), in_v = input("v", v);
  const Output out_o = output("o", o);
  const std::optional<Output> out_lse = optional_output("lse", lse), out_mass = optional_output("key_mass", key_mass);
  std::vector<Output> keep;
  const Inputs inputs = {in_q.view, in_k.view, in_v.view};
  const Outputs outputs = {out_o.view, view_of(out_lse), row_tensors(rows, keep), view_of(out_mass)};
  const Problem problem = spec.problem();
  const Shape shape = shape_of(inputs, problem);
  make_plan(problem, shape);  // refuses what is wrong with the whole before a part has run
  Stats stats;
  in_parts(parts_of(problem, shape, Pass::kForward, false), shape, stats, [&](const Part& p) {
    return rootdk::forward(part(problem, shape, p), part(inputs, p), part(outputs, shape, p));
  });
  return stats;
}

std::span<float> per_head(const char* name, nb::handle array, std::optional<Output>& keep, std::int64_t heads) {
  if (array.is_none()) return {};
  keep = output(name, array);
  const Tensor& t = keep->view;
  if (t.dtype != DType::kF32 || t.shape != Extents{1, 1, 1, heads} || (heads > 1 && t.strides[3] != 1))
    base::refuse("{}: float32 [1, 1, 1, {}] is wanted", name, heads);
  return {static_cast<float*>(t.data), static_cast<std::size_t>(heads)};
}

GradientStats backward(const Spec& spec, nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse,
                       nb::handle d_o, nb::handle d_lse, nb::handle d_q, nb::handle d_k, nb::handle d_v,
                       nb::handle d_bias, nb::handle d_scale, nb::handle d_sink) {
  const Input in_q = input("q", q), in_k = input("k", k), in_v = input("v", v), in_o = input("o", o),
              in_lse = input("lse", lse), in_do = input("d_o", d_o);
  const std::optional<Input> in_dlse = optional_input("d_lse", d_lse);
  const std::optional<Output> out_q = optional_output("d_q", d_q), out_k = optional_output("d_k", d_k),
                              out_v = optional_output("d_v", d_v), out_bias = optional_output("d_bias", d_bias);
  std::optional<Output> out_scale, out_sink;
  const BackwardInputs inputs = {in_q.view, in_k.view, in_v.view, in_o.view, in_lse.view, in_do.view, view_of(in_dlse)};
  const Problem problem = spec.problem();
  const Shape shape = shape_of({inputs.q, inputs.k, inputs.v}, problem);
  make_plan(problem, shape, Pass::kBackward);
  Gradients gradients;
  gradients.d_q = view_of(out_q);
  gradients.d_k = view_of(out_k);
  gradients.d_v = view_of(out_v);
  gradients.d_bias = view_of(out_bias);
  gradients.d_scale = per_head("d_scale", d_scale, out_scale, shape.heads_q);
  gradients.d_sink = per_head("d_sink", d_sink, out_sink, shape.heads_q);
  GradientStats stats;
  in_parts(parts_of(problem, shape, Pass::kBackward, gradients.d_bias.present()), shape, stats, [&](const Part& p) {
    return rootdk::backward(part(problem, shape, p), part(inputs, shape, p), part(gradients, shape, p));
  });
  return stats;
}

QkNorm norm_of(const std::string& kind, double eps, const std::vector<float>& gain) {
  QkNorm norm;
  norm.eps = eps;
  norm.gain = gain;
  if (kind == "rms") norm.kind = QkNorm::Kind::kRms;
  else if (kind == "layer") norm.kind = QkNorm::Kind::kLayer;
  else if (kind == "l2") norm.kind = QkNorm::Kind::kL2;
  else base::refuse("qk_norm: \"{}\", but \"rms\", \"layer\" or \"l2\" is wanted", kind);
  return norm;
}

std::string explain_plan(const Spec& spec, nb::handle q, nb::handle k, nb::handle v, bool is_backward) {
  const Input in_q = input("q", q), in_k = input("k", k), in_v = input("v", v);
  const Problem problem = spec.problem();
  const Shape shape = shape_of({in_q.view, in_k.view, in_v.view}, problem);
  return make_plan(problem, shape, is_backward ? Pass::kBackward : Pass::kForward).explain();
}

}  // namespace

void bind_attention(nb::module_& m) {
  using nb::arg;
  m.def("empty", &empty);
  m.def("forward", &forward, arg("spec"), arg("q"), arg("k"), arg("v"), arg("o"), arg("lse").none(), arg("rows"),
        arg("key_mass").none());
  m.def("backward", &backward, arg("spec"), arg("q"), arg("k"), arg("v"), arg("o"), arg("lse"), arg("d_o"),
        arg("d_lse").none(), arg("d_q").none(), arg("d_k").none(), arg("d_v").none(), arg("d_bias").none(),
        arg("d_scale").none(), arg("d_sink").none());
  m.def("explain_plan", &explain_plan);
  m.def("normalise",
        [](const std::string& kind, double eps, const std::vector<float>& gain, nb::handle x, nb::handle y) {
          const QkNorm norm = norm_of(kind, eps, gain);
          const Input in = input("x", x);
          const Output out = output("y", y);
          const nb::gil_scoped_release release;
          normalise(norm, in.view, out.view);
        });
  m.def("stats_of_rows", [](const std::map<std::string, nb::object>& rows, nb::handle lse) {
    std::vector<Output> keep;
    const RowTensors tensors = row_tensors(rows, keep);
    const Input in = input("lse", lse);
    const nb::gil_scoped_release release;
    return stats_of_rows(tensors, in.view);
  });
  m.def("row_names", [] {
    std::vector<std::string> names;
    for (const auto& row : base::kBasicRowTensors) names.emplace_back(std::string_view(row.name).substr(5));
    for (const auto& row : base::kFullRowTensors) names.emplace_back(std::string_view(row.name).substr(5));
    return names;
  });
}

}  // namespace rootdk::python
