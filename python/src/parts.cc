// How large a part may be, and the slices of problem, inputs, outputs and gradients that belong to it.
#include "parts.h"

#include <algorithm>

#include "base/row_tensors.h"
#include "base/visibility.h"

namespace rootdk::python {

namespace {

// About a tenth of a second on a slow core; the reference kernel (f64) does a tenth of that work in the time.
constexpr double kMostWork = 4e9, kMostReferenceWork = 2e8;

template <class T>
T slice(T tensor, const Part& p, std::int64_t head, std::int64_t heads) {
  if (!tensor.present()) return tensor;
  const auto take = [&](std::size_t axis, std::int64_t from, std::int64_t count) {
    if (tensor.shape[axis] == count) return;  // all of it, or repeated
    if (tensor.shape[axis] == 1) return;
    using Byte = std::conditional_t<std::is_same_v<T, Tensor>, char, const char>;
    tensor.data = static_cast<Byte*>(tensor.data) + from * tensor.strides[axis] * size_of(tensor.dtype);
    tensor.shape[axis] = count;
  };
  take(0, p.batch, p.batches);
  take(1, head, heads);
  return tensor;
}

template <class T>
std::span<T> slice(std::span<T> values, std::int64_t from, std::int64_t count) {
  if (values.empty()) return values;
  return values.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(count));
}

struct QueryHeads {
  std::int64_t first, count;
  QueryHeads(const Shape& shape, const Part& p) : first(p.head_kv * shape.group()), count(p.heads_kv * shape.group()) {}
};

}  // namespace

std::vector<Part> parts_of(const Problem& problem, const Shape& s, Pass pass, bool shared_bias_gradient) {
  const std::vector<Part> whole = {{0, s.batch, 0, s.heads_kv}};
  // Dropout counts batch items and heads from 0. Gradients that are summed over the batch or over heads stay in one
  // call.
  if (problem.dropout.p > 0 || problem.paged || s.batch == 0 || s.heads_kv == 0) return whole;
  if (pass == Pass::kBackward && shared_bias_gradient) return whole;
  const double most = s.dtype == DType::kF64 ? kMostReferenceWork : kMostWork;
  const double passes = pass == Pass::kBackward ? 2.5 : 1;
  const double pairs = static_cast<double>(s.group()) * static_cast<double>(s.len_q) * static_cast<double>(s.len_kv);
  const double head = 2.0 * passes * pairs * static_cast<double>(s.dim_qk + s.dim_v);
  if (head * static_cast<double>(s.batch * s.heads_kv) <= most) return whole;
  const auto fit = [&](double work, std::int64_t count) {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(most / std::max(work, 1.0)), 1, count);
  };
  std::vector<Part> parts;
  const bool split_batch = pass == Pass::kForward;
  const std::int64_t batches = split_batch ? fit(head * static_cast<double>(s.heads_kv), s.batch) : s.batch;
  const std::int64_t heads =
      batches > 1 && split_batch ? s.heads_kv : fit(head * static_cast<double>(batches), s.heads_kv);
  for (std::int64_t b = 0; b < s.batch; b += batches)
    for (std::int64_t h = 0; h < s.heads_kv; h += heads)
      parts.push_back({b, std::min(batches, s.batch - b), h, std::min(heads, s.heads_kv - h)});
  return parts;
}

Problem part(const Problem& problem, const Shape& shape, const Part& p) {
  Problem out = problem;
  const QueryHeads q(shape, p);
  out.scale.head_values = slice(problem.scale.head_values, q.first, q.count);
  out.scale.head_gains = slice(problem.scale.head_gains, q.first, q.count);
  out.scale.head_offsets = slice(problem.scale.head_offsets, q.first, q.count);
  for (const base::PerItem& field : base::kPerItem)
    out.mask.*field.numbers = slice(field.of(problem.mask), p.batch, p.batches);
  if (out.mask.documents && out.mask.documents->items > 0) {
    Documents& documents = *out.mask.documents;
    const auto count = static_cast<std::int64_t>(documents.q_starts.size()) / documents.items;
    documents.items = p.batches;
    documents.q_starts = slice(documents.q_starts, p.batch * count, p.batches * count);
    documents.kv_starts = slice(documents.kv_starts, p.batch * count, p.batches * count);
  }
  out.mask.allowed = slice(problem.mask.allowed, p, q.first, q.count);
  out.mask.bias = slice(problem.mask.bias, p, q.first, q.count);
  out.mask.alibi_slopes = slice(problem.mask.alibi_slopes, q.first, q.count);
  out.sink = slice(problem.sink, q.first, q.count);
  return out;
}

Inputs part(const Inputs& in, const Part& p) {
  const std::int64_t group = in.k.shape[1] > 0 ? in.q.shape[1] / in.k.shape[1] : 0;
  return {slice(in.q, p, p.head_kv * group, p.heads_kv * group), slice(in.k, p, p.head_kv, p.heads_kv),
          slice(in.v, p, p.head_kv, p.heads_kv)};
}

Outputs part(const Outputs& out, const Shape& shape, const Part& p) {
  const QueryHeads q(shape, p);
  const auto cut = [&](const Tensor& t) { return slice(t, p, q.first, q.count); };
  Outputs o = {cut(out.o), cut(out.lse), out.rows, cut(out.key_mass)};
  for (const auto& row : base::kBasicRowTensors) o.rows.*row.tensor = cut(out.rows.*row.tensor);
  for (const auto& row : base::kFullRowTensors) o.rows.*row.tensor = cut(out.rows.*row.tensor);
  return o;
}

BackwardInputs part(const BackwardInputs& in, const Shape& shape, const Part& p) {
  const QueryHeads q(shape, p);
  const auto cut = [&](const ConstTensor& t) { return slice(t, p, q.first, q.count); };
  const auto cut_kv = [&](const ConstTensor& t) { return slice(t, p, p.head_kv, p.heads_kv); };
  return {cut(in.q), cut_kv(in.k), cut_kv(in.v), cut(in.o), cut(in.lse), cut(in.d_o), cut(in.d_lse)};
}

Gradients part(const Gradients& g, const Shape& shape, const Part& p) {
  const QueryHeads q(shape, p);
  Gradients out;
  out.d_q = slice(g.d_q, p, q.first, q.count);
  out.d_k = slice(g.d_k, p, p.head_kv, p.heads_kv);
  out.d_v = slice(g.d_v, p, p.head_kv, p.heads_kv);
  out.d_bias = slice(g.d_bias, p, q.first, q.count);
  out.d_scale = slice(g.d_scale, q.first, q.count);
  out.d_sink = slice(g.d_sink, q.first, q.count);
  return out;
}

}  // namespace rootdk::python
