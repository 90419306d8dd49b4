// Projections, rotary, the engine's call on views of heads, and all of it backwards, with everything checked first.
#include "base/refuse.h"
#include "rootdk/nn/multi_head_attention.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "nn/buffer.h"
#include "nn/linear.h"
#include "nn/positions.h"
#include "nn/rotary.h"
#include "nn/sizes.h"

namespace rootdk::nn {

using base::refuse;

namespace {

// Scratch for a plan, aligned as it wants.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes)
      : space_(bytes + kAlignment), memory_(new std::byte[space_]), aligned_(memory_.get()) {
    std::align(kAlignment, bytes, aligned_, space_);
    bytes_ = bytes;
  }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(aligned_), bytes_}; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t space_, bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  void* aligned_;
};

// [batch, length, heads, dim] storage seen as [batch, heads, length, dim].
template <class Float>
auto heads_of(Float* data, std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim) {
  return tensor(data, {batch, heads, length, dim}, {length * heads * dim, dim, heads * dim, 1});
}

template <class T>
void turn_heads(const Rotary& rotary, const BasicAttentionSaved<T>& saved, T* q, T* k, Turn turn) {
  const Shape& s = saved.shape;
  if (q)
    rotate(rotary, heads_of(q, s.batch, s.heads_q, s.len_q, s.dim_qk), query_positions(saved.problem.mask, s), turn);
  if (k) rotate(rotary, heads_of(k, s.batch, s.heads_kv, s.len_kv, s.dim_qk), key_positions(s), turn);
}

template <class Float>
void check_sequence(std::string_view name, const BasicSequence<Float>& x, std::int64_t width) {
  if (x.batch < 0 || x.length < 0)
    refuse("{}: batch is {} and length {}, but neither can be negative", name, x.batch, x.length);
  if (x.width != width) refuse("{}: width is {}, but {} is wanted", name, x.width, width);
  if (x.batch > 0 && x.length > kMaxExtent / x.batch)
    refuse("{}: batch {} × length {}, but at most {} rows are supported", name, x.batch, x.length, kMaxExtent);
  if (!x.present() && x.rows() > 0) refuse("{}: data is null, but it has {} rows", name, x.rows());
}

template <class Float>
void check_sequence(std::string_view name, const BasicSequence<Float>& x, std::int64_t batch, std::int64_t length,
                    std::int64_t width) {
  check_sequence(name, x, width);
  if (x.batch != batch || x.length != length)
    refuse("{}: [batch, length] is [{}, {}], but [{}, {}] is wanted", name, x.batch, x.length, batch, length);
}

// Both are contiguous, so this is exact.
template <class T, class Float>
void check_apart(std::string_view name, const BasicSequence<T>& written, std::string_view other_name,
                 const BasicSequence<Float>& other) {
  const std::less<const T*> before;
  const auto a = written.values();
  const auto b = other.values();
  if (written.present() && other.present() && !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
      before(b.data(), a.data() + a.size()))
    refuse("{}: overlaps {}", name, other_name);
}

template <class T>
void check_parameters(std::string_view name, const BasicAttentionParameters<T>& p, const MultiHeadAttentionOptions& o) {
  check_linear(fmt::format("{}.q", name), p.q, o.width, o.heads_q * o.dim_qk);
  check_linear(fmt::format("{}.k", name), p.k, o.width_kv, o.heads_kv * o.dim_qk);
  check_linear(fmt::format("{}.v", name), p.v, o.width_kv, o.heads_kv * o.dim_v);
  check_linear(fmt::format("{}.o", name), p.o, o.heads_q * o.dim_v, o.width);
}

MultiHeadAttentionOptions with_defaults(MultiHeadAttentionOptions o) {
  check_size("width", o.width);
  check_size("heads_q", o.heads_q);
  if ((o.dim_qk == 0 || o.dim_v == 0) && o.width % o.heads_q != 0)
    refuse("heads_q: {}, which does not divide the width {}; give dim_qk and dim_v, or another number", o.heads_q,
           o.width);
  if (o.heads_kv == 0) o.heads_kv = o.heads_q;
  if (o.dim_qk == 0) o.dim_qk = o.width / o.heads_q;
  if (o.dim_v == 0) o.dim_v = o.width / o.heads_q;
  if (o.width_kv == 0) o.width_kv = o.width;
  check_size("heads_kv", o.heads_kv);
  check_size("dim_qk", o.dim_qk);
  check_size("dim_v", o.dim_v);
  check_size("width_kv", o.width_kv);
  check_size("heads_q × dim_qk", o.heads_q * o.dim_qk);
  check_size("heads_q × dim_v", o.heads_q * o.dim_v);
  if (o.heads_q % o.heads_kv != 0) refuse("heads_kv: {}, which does not divide heads_q = {}", o.heads_kv, o.heads_q);
  if (o.rotary) check_rotary(*o.rotary, o.dim_qk);
  return o;
}

template <class T>
void check_backward(const BasicMultiHeadAttention<T>& layer, const BasicAttentionSaved<T>& saved,
                    const BasicSequence<const T>& d_out, const BasicAttentionGradients<T>& g) {
  const MultiHeadAttentionOptions& o = layer.options();
  const Shape& s = saved.shape;
  check_parameters("parameters", layer.parameters(), o);
  const auto holds = [](const std::vector<T>& array, const ConstTensor& view) {
    return static_cast<std::int64_t>(array.size()) == view.count();
  };
  if (s.heads_q != o.heads_q || s.heads_kv != o.heads_kv || s.dim_qk != o.dim_qk || s.dim_v != o.dim_v ||
      saved.x_q.width != o.width || saved.x_kv.width != o.width_kv || !holds(saved.q, saved.q_view()) ||
      !holds(saved.k, saved.k_view()) || !holds(saved.v, saved.v_view()) || !holds(saved.o, saved.o_view()) ||
      !holds(saved.lse, saved.lse_view()))
    refuse("saved: not made by the forward pass of a layer with these options");
  check_sequence("d_out", d_out, s.batch, s.len_q, o.width);
  if (g.parameters) {
    check_parameters("gradients.parameters", *g.parameters, o);
    for (std::size_t n = 0; n < 4; ++n)
      if (g.parameters->each()[n]->has_bias() != layer.parameters().each()[n]->has_bias())
        refuse("gradients.parameters: has other biases than the layer; make it with zeros_like");
  }
  if (g.d_x_q.present()) check_sequence("gradients.d_x_q", g.d_x_q, s.batch, s.len_q, o.width);
  if (g.d_x_kv.present()) check_sequence("gradients.d_x_kv", g.d_x_kv, s.batch, s.len_kv, o.width_kv);
  if (saved.self && g.d_x_kv.present())
    refuse("gradients.d_x_kv: given, but after self-attention d_x_q holds the whole gradient of x");
  check_apart("gradients.d_x_q", g.d_x_q, "gradients.d_x_kv", g.d_x_kv);
  for (const auto& [name, dx] : {std::pair{"gradients.d_x_q", g.d_x_q}, {"gradients.d_x_kv", g.d_x_kv}}) {
    check_apart(name, dx, "d_out", d_out);
    check_apart(name, dx, "x_q", saved.x_q);
    check_apart(name, dx, "x_kv", saved.x_kv);
  }
  for (const auto& [name, values] : {std::pair{"d_scale", g.d_scale},
                                     {"d_sink", g.d_sink},
                                     {"d_log_n_gain", g.d_log_n_gain},
                                     {"d_log_n_offset", g.d_log_n_offset}})
    if (!values.empty() && static_cast<std::int64_t>(values.size()) != s.heads_q)
      refuse("gradients.{}: {} values, but there are {} query heads", name, values.size(), s.heads_q);
  if (!g.d_sink.empty() && saved.problem.sink.empty()) refuse("gradients.d_sink: wanted, but the problem has no sink");
  if ((!g.d_log_n_gain.empty() || !g.d_log_n_offset.empty()) && saved.problem.scale.length != Scale::Length::kLogN)
    refuse("gradients.d_log_n_gain, d_log_n_offset: wanted, but the scale has no log-n part (ssmax)");
}

void add_to(std::span<float> sum, std::span<const float> part) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
}

}  // namespace

template <class T>
void BasicAttentionParameters<T>::set_zero() {
  for (BasicLinear<T>* layer : each()) layer->set_zero();
}

template <class T>
BasicAttentionParameters<T> zeros_like(const BasicAttentionParameters<T>& p) {
  return {zeros_like(p.q), zeros_like(p.k), zeros_like(p.v), zeros_like(p.o)};
}

template <class T>
void initialise(BasicAttentionParameters<T>& p, const Init& init, const Seed& seed, QkvFans fans) {
  std::uint64_t stream = seed.stream;
  for (BasicLinear<T>* layer : p.each()) initialise(*layer, init, {seed.value, stream++});
  if (fans == QkvFans::kSeparate) return;
  stream = seed.stream;
  for (BasicLinear<T>* layer : {&p.q, &p.k, &p.v})
    fill(layer->weight, init, {layer->in, p.q.out + p.k.out + p.v.out}, {seed.value, stream++});
}

template <class T>
ConstTensor BasicAttentionSaved<T>::q_view() const {
  return heads_of(q.data(), shape.batch, shape.heads_q, shape.len_q, shape.dim_qk);
}
template <class T>
ConstTensor BasicAttentionSaved<T>::k_view() const {
  return heads_of(k.data(), shape.batch, shape.heads_kv, shape.len_kv, shape.dim_qk);
}
template <class T>
ConstTensor BasicAttentionSaved<T>::v_view() const {
  return heads_of(v.data(), shape.batch, shape.heads_kv, shape.len_kv, shape.dim_v);
}
template <class T>
ConstTensor BasicAttentionSaved<T>::o_view() const {
  return heads_of(o.data(), shape.batch, shape.heads_q, shape.len_q, shape.dim_v);
}
template <class T>
ConstTensor BasicAttentionSaved<T>::lse_view() const {
  return tensor(lse.data(), {shape.batch, shape.heads_q, shape.len_q, 1});
}

template <class T>
BasicMultiHeadAttention<T>::BasicMultiHeadAttention(const MultiHeadAttentionOptions& options)
    : options_(with_defaults(options)) {
  const MultiHeadAttentionOptions& o = options_;
  parameters_.q = BasicLinear<T>(o.width, o.heads_q * o.dim_qk, o.bias_qkv);
  parameters_.k = BasicLinear<T>(o.width_kv, o.heads_kv * o.dim_qk, o.bias_qkv);
  parameters_.v = BasicLinear<T>(o.width_kv, o.heads_kv * o.dim_v, o.bias_qkv);
  parameters_.o = BasicLinear<T>(o.heads_q * o.dim_v, o.width, o.bias_out);
}

template <class T>
Stats BasicMultiHeadAttention<T>::forward(const Problem& problem, const ConstSequence& x_q, const ConstSequence& x_kv,
                                          const Sequence& out, Saved* saved) const {
  Saved dropped;
  Saved& kept = saved ? *saved : dropped;
  Stats stats = run(problem, x_q, x_kv, out, kept);
  kept.self = false;
  return stats;
}

template <class T>
Stats BasicMultiHeadAttention<T>::forward(const Problem& problem, const ConstSequence& x, const Sequence& out,
                                          Saved* saved) const {
  if (options_.width_kv != options_.width)
    refuse("width_kv: {}, but self-attention needs the width of x, {}", options_.width_kv, options_.width);
  check_sequence("x", x, options_.width);
  Saved dropped;
  Saved& kept = saved ? *saved : dropped;
  Stats stats = run(problem, x, x, out, kept);
  kept.self = true;
  return stats;
}

template <class T>
Stats BasicMultiHeadAttention<T>::run(const Problem& problem, const ConstSequence& x_q, const ConstSequence& x_kv,
                                      const Sequence& out, Saved& saved) const {
  const MultiHeadAttentionOptions& opt = options_;
  check_parameters("parameters", parameters_, opt);
  check_sequence("x_q", x_q, opt.width);
  check_sequence("x_kv", x_kv, opt.width_kv);
  if (x_kv.batch != x_q.batch) refuse("x_kv: batch is {}, but x_q has {}", x_kv.batch, x_q.batch);
  check_sequence("out", out, x_q.batch, x_q.length, opt.width);
  check_apart("out", out, "x_q", x_q);
  check_apart("out", out, "x_kv", x_kv);
  if (problem.paged) refuse("problem.paged: given, but the layer makes its own keys and values, which have no pages");
  const Shape shape = {x_q.batch,   opt.heads_q, opt.heads_kv, x_q.length,
                       x_kv.length, opt.dim_qk,  opt.dim_v,    kDTypeOf<T>};
  const Plan plan = make_plan(problem, shape);  // throws if the problem does not fit

  saved.problem = problem;
  saved.shape = shape;
  saved.x_q = x_q;
  saved.x_kv = x_kv;
  const std::int64_t rows_q = x_q.rows(), rows_kv = x_kv.rows();
  saved.q.resize(static_cast<std::size_t>(rows_q * parameters_.q.out));
  saved.k.resize(static_cast<std::size_t>(rows_kv * parameters_.k.out));
  saved.v.resize(static_cast<std::size_t>(rows_kv * parameters_.v.out));
  saved.o.resize(static_cast<std::size_t>(rows_q * parameters_.o.in));
  saved.lse.resize(static_cast<std::size_t>(rows_q * opt.heads_q));

  apply(parameters_.q, x_q.values(), saved.q);
  apply(parameters_.k, x_kv.values(), saved.k);
  apply(parameters_.v, x_kv.values(), saved.v);
  if (opt.rotary) turn_heads(*opt.rotary, saved, saved.q.data(), saved.k.data(), Turn::kForward);

  const Outputs outputs = {
      .o = heads_of(saved.o.data(), shape.batch, shape.heads_q, shape.len_q, shape.dim_v),
      .lse = tensor(saved.lse.data(), {shape.batch, shape.heads_q, shape.len_q, 1}),
  };
  Stats stats = rootdk::forward(plan, {saved.q_view(), saved.k_view(), saved.v_view()}, outputs,
                                Workspace(plan.workspace_bytes).bytes());
  apply(parameters_.o, saved.o, out.values());
  return stats;
}

template <class T>
void BasicMultiHeadAttention<T>::backward(const Saved& saved, const ConstSequence& d_out,
                                          const Gradients& gradients) const {
  const Shape& s = saved.shape;
  const Gradients& g = gradients;
  check_backward(*this, saved, d_out, gradients);
  const Plan plan = make_plan(saved.problem, s, Pass::kBackward);

  // out = o·W_oᵀ + b_o
  const std::int64_t rows_q = s.batch * s.len_q, rows_kv = s.batch * s.len_kv;
  const Buffer<T> d_o(rows_q * parameters_.o.in);
  backward_input(parameters_.o, d_out.values(), d_o.values());

  // o = attention(q, k, v): only the parts that someone asked for.
  const bool want_q = g.parameters || g.d_x_q.present();
  const bool want_kv = g.parameters || g.d_x_kv.present() || (saved.self && g.d_x_q.present());
  const Buffer<T> d_q(want_q ? rows_q * parameters_.q.out : 0);
  const Buffer<T> d_k(want_kv ? rows_kv * parameters_.k.out : 0), d_v(want_kv ? rows_kv * parameters_.v.out : 0);
  std::vector<float> d_scale(g.d_scale.size()), d_sink(g.d_sink.size());
  std::vector<float> d_log_n_gain(g.d_log_n_gain.size()), d_log_n_offset(g.d_log_n_offset.size());
  rootdk::Gradients parts;
  if (want_q) parts.d_q = heads_of(d_q.data(), s.batch, s.heads_q, s.len_q, s.dim_qk);
  if (want_kv) parts.d_k = heads_of(d_k.data(), s.batch, s.heads_kv, s.len_kv, s.dim_qk);
  if (want_kv) parts.d_v = heads_of(d_v.data(), s.batch, s.heads_kv, s.len_kv, s.dim_v);
  parts.d_scale = d_scale;
  parts.d_sink = d_sink;
  parts.d_log_n_gain = d_log_n_gain, parts.d_log_n_offset = d_log_n_offset;
  rootdk::backward(plan,
                   {saved.q_view(), saved.k_view(), saved.v_view(), saved.o_view(), saved.lse_view(),
                    heads_of(static_cast<const T*>(d_o.data()), s.batch, s.heads_q, s.len_q, s.dim_v)},
                   parts, Workspace(plan.workspace_bytes).bytes());
  add_to(g.d_scale, d_scale);
  add_to(g.d_sink, d_sink);
  add_to(g.d_log_n_gain, d_log_n_gain);
  add_to(g.d_log_n_offset, d_log_n_offset);
  if (options_.rotary)
    turn_heads(*options_.rotary, saved, want_q ? d_q.data() : nullptr, want_kv ? d_k.data() : nullptr, Turn::kBack);

  // q = x_q·W_qᵀ + b_q, k and v likewise from x_kv
  if (g.parameters) {
    backward_parameters(saved.x_q.values(), d_q.values(), g.parameters->q);
    backward_parameters(saved.x_kv.values(), d_k.values(), g.parameters->k);
    backward_parameters(saved.x_kv.values(), d_v.values(), g.parameters->v);
    backward_parameters(saved.o, d_out.values(), g.parameters->o);
  }
  if (g.d_x_q.present()) backward_input(parameters_.q, d_q.values(), g.d_x_q.values());
  const Sequence& d_x_kv = saved.self ? g.d_x_q : g.d_x_kv;
  if (d_x_kv.present()) {
    backward_input(parameters_.k, d_k.values(), d_x_kv.values(), saved.self ? Write::kAdd : Write::kReplace);
    backward_input(parameters_.v, d_v.values(), d_x_kv.values(), Write::kAdd);
  }
}

#define ROOTDK_INSTANTIATE(T)                                                          \
  template struct BasicAttentionParameters<T>;                                         \
  template struct BasicAttentionSaved<T>;                                              \
  template class BasicMultiHeadAttention<T>;                                           \
  template BasicAttentionParameters<T> zeros_like(const BasicAttentionParameters<T>&); \
  template void initialise(BasicAttentionParameters<T>&, const Init&, const Seed&, QkvFans);
ROOTDK_INSTANTIATE(float)
ROOTDK_INSTANTIATE(double)
#undef ROOTDK_INSTANTIATE

}  // namespace rootdk::nn
