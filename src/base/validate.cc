// One function per kind of argument, called by check_forward and check_backward, which also look for overlaps.
#include "base/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/overlap.h"
#include "base/refuse.h"
#include "base/row_tensors.h"
#include "base/visibility.h"

namespace rootdk::base {

std::string show(const Extents& e) { return fmt::format("[{}, {}, {}, {}]", e[0], e[1], e[2], e[3]); }

namespace {

// Offsets in bytes must fit int64, or a view could reach round and look harmless.
void check_reach(std::string_view name, const ConstTensor& t) {
  if (size_of(t.dtype) == 0) refuse("{}: dtype is unknown, but f32, f16, bf16 or f64 is wanted", name);
  std::int64_t low = 0, high = 0, count = 1;
  for (const std::int64_t size : t.shape)
    if (size < 0) refuse("{}: shape is {}, but sizes cannot be negative", name, show(t.shape));
  for (const std::int64_t size : t.shape)
    if (size == 0) return;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    std::int64_t reach = 0, bytes = 0;
    const bool overflow =
        __builtin_mul_overflow(count, t.shape[axis], &count) ||
        __builtin_mul_overflow(t.shape[axis] - 1, t.strides[axis], &reach) ||
        __builtin_mul_overflow(reach, size_of(t.dtype), &bytes) ||
        (bytes < 0 ? __builtin_add_overflow(low, bytes, &low) : __builtin_add_overflow(high, bytes, &high));
    constexpr std::int64_t kAddressable = std::int64_t{1} << 62;
    if (overflow || high > kAddressable || low < -kAddressable)
      refuse("{}: shape {} with strides {} reaches beyond any address", name, show(t.shape), show(t.strides));
  }
}

void check_memory(std::string_view name, const ConstTensor& t, Device device = Device::kCpu) {
  check_reach(name, t);
  if (t.count() == 0) return;
  if (t.device != device && device == Device::kCpu)
    refuse("{}: lies on a GPU, but the CPU is to compute it (rootdk/cuda.h is for GPUs)", name);
  if (t.device != device) refuse("{}: lies on the CPU, but the plan is for a GPU", name);
  if (!t.present()) refuse("{}: data is null, but its shape is {}", name, show(t.shape));
  if (reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(size_of(t.dtype)) != 0)
    refuse("{}: data is not aligned to its {} elements", name, name_of(t.dtype));
}

void check_tensor(std::string_view name, const ConstTensor& t, DType dtype, const Extents& shape,
                  Device device = Device::kCpu) {
  if (t.dtype != dtype) refuse("{}: dtype is {}, but {} is wanted", name, name_of(t.dtype), name_of(dtype));
  if (t.shape != shape) refuse("{}: shape is {}, but {} is wanted", name, show(t.shape), show(shape));
  check_memory(name, t, device);
}

void check_optional(std::string_view name, const ConstTensor& t, DType dtype, const Extents& shape, Device device) {
  if (t.present()) check_tensor(name, t, dtype, shape, device);
}

// [batch|1, heads_q|1, len_q|1, len_kv|1]
void check_broadcast(std::string_view name, const ConstTensor& t, const Shape& s, Device device) {
  const Extents full = {s.batch, s.heads_q, s.len_q, s.len_kv};
  for (std::size_t axis = 0; axis < 4; ++axis)
    if (t.shape[axis] != full[axis] && t.shape[axis] != 1)
      refuse("{}: shape is {}, but {} is wanted, or 1 to repeat an axis", name, show(t.shape), show(full));
  check_memory(name, t, device);
}

void check_per_head(std::string_view name, std::span<const float> values, std::int64_t heads_q) {
  if (static_cast<std::int64_t>(values.size()) != heads_q)
    refuse("{}: {} values, but there are {} query heads", name, values.size(), heads_q);
  for (std::size_t h = 0; h < values.size(); ++h)
    if (!std::isfinite(values[h])) refuse("{}: value {} of head {} is not finite", name, values[h], h);
}

void check_starts(std::string_view name, std::span<const std::int64_t> starts, std::int64_t length, const char* axis) {
  if (starts.empty()) refuse("{}: empty, but it needs documents + 1 entries", name);
  if (starts[0] != 0) refuse("{}: begins with {}, but the first document starts at 0", name, starts[0]);
  for (std::size_t d = 1; d < starts.size(); ++d)
    if (starts[d] < starts[d - 1])
      refuse("{}: entry {} is {}, below the one before it ({})", name, d, starts[d], starts[d - 1]);
  if (starts.back() > length) refuse("{}: ends at {}, but {} is {}", name, starts.back(), axis, length);
}

/// Of the whole batch, or of each item.
void check_starts(std::string_view name, std::int64_t items, std::span<const std::int64_t> starts, std::int64_t length,
                  const char* axis) {
  if (items == 0) return check_starts(name, starts, length, axis);
  if (starts.size() % static_cast<std::size_t>(items) != 0)
    refuse("{}: {} entries, but a multiple of their {} items is wanted", name, starts.size(), items);
  const std::size_t count = starts.size() / static_cast<std::size_t>(items);
  for (std::int64_t b = 0; b < items; ++b)
    check_starts(fmt::format("{}, item {}", name, b), starts.subspan(static_cast<std::size_t>(b) * count, count),
                 length, axis);
}

void check_per_item(const PerItem& field, const Mask& mask, const Shape& s) {
  const std::span<const std::int64_t> values = field.of(mask);
  if (values.empty()) return;
  if (static_cast<std::int64_t>(values.size()) != s.batch)
    refuse("{}: {} entries, but batch is {}", field.name, values.size(), s.batch);
  const bool of_queries = field.axis == PerItem::Axis::q;
  const std::int64_t most = of_queries ? s.len_q : s.len_kv;
  for (std::size_t b = 0; b < values.size(); ++b)
    if (values[b] < 0 || values[b] > most)
      refuse("{}: entry {} is {}, but 0 to {} ({}) is wanted", field.name, b, values[b],
             of_queries ? "len_q" : "len_kv", most);
}

void check_size(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) refuse("{}: {}, but {} to {} is wanted", name, value, least, most);
}

void check_shape(const Shape& s) {
  check_size("batch", s.batch, 0, kMaxLength);
  check_size("heads_q", s.heads_q, 0, kMaxLength);
  check_size("heads_kv", s.heads_kv, 0, kMaxLength);
  check_size("len_q", s.len_q, 0, kMaxLength);
  check_size("len_kv", s.len_kv, 0, kMaxLength);
  check_size("dim_qk", s.dim_qk, 1, kMaxDim);
  check_size("dim_v", s.dim_v, 1, kMaxDim);
  if (s.heads_kv == 0 ? s.heads_q != 0 : s.heads_q % s.heads_kv != 0)
    refuse("k: heads_kv is {}, which does not divide q's {} heads", s.heads_kv, s.heads_q);
  std::int64_t rows = 0;
  const std::int64_t length = std::max({s.len_q, s.len_kv, std::int64_t{1}});
  if (__builtin_mul_overflow(s.batch * s.heads_q, length, &rows) || rows > kMaxRows)
    refuse("batch × heads_q × length: {} × {} × {} rows are more than {}", s.batch, s.heads_q, length, kMaxRows);
  if (s.dtype == DType::kBool) refuse("q: dtype is bool, but f32, f16, bf16 or f64 is wanted");
}

constexpr double kLargestF32 = 3.4028234663852886e38;

void check_number(const char* name, double value) {
  if (!(std::fabs(value) <= kLargestF32)) refuse("{}: {} is not a finite f32 number", name, value);
}

void check_positive(const char* name, double value) {
  if (!(value > 0 && std::isfinite(value))) refuse("{}: {}, but a finite positive number is wanted", name, value);
}

// What a length rule counts must be known before the scores are: causal masks, windows, key lengths and documents leave
// a run of keys, anything else would have to be read key by key first.
void check_key_counts(const Scale& scale, const Mask& mask) {
  if (!scale.counts_keys()) return;
  const char* rule = scale.length == Scale::Length::kLogN ? "ssmax" : "entropy_invariant";
  for (const auto& [name, hides] :
       {std::pair{"a boolean mask", mask.allowed.present()}, {"a bias", mask.bias.present()}})
    if (hides)
      refuse("scale: {} counts the keys a query sees, but {} may hide keys that it cannot count beforehand", rule,
             name);
}

void check_scale(const Scale& scale, const Shape& s) {
  using Rule = Scale::Rule;
  if (scale.rule == Rule::kPerHead) check_per_head("scale", scale.head_values, s.heads_q);
  if (scale.rule == Rule::kConstant || scale.rule == Rule::kAlphaOverDk) check_number("scale", scale.value);
  if (scale.rule == Rule::kUnitVariance) {
    check_positive("scale.sigma_q", scale.sigma_q);
    check_positive("scale.sigma_k", scale.sigma_k);
  }
  if (!(scale.yarn >= 1 && std::isfinite(scale.yarn)))
    refuse("scale.yarn: {}, but the context is extended at least 1 time (1 means off)", scale.yarn);
  if (scale.length == Scale::Length::kLogN) {
    check_number("scale.log_n_gain", scale.log_n_gain);
    check_number("scale.log_n_offset", scale.log_n_offset);
    if (!scale.head_gains.empty()) check_per_head("scale.head_gains", scale.head_gains, s.heads_q);
    if (!scale.head_offsets.empty()) check_per_head("scale.head_offsets", scale.head_offsets, s.heads_q);
  }
  // Linear in ln n, so largest at one of its ends; and as far along as positions go.
  for (std::int64_t h = 0; h < s.heads_q && (scale.by_row() || scale.yarn != 1 || scale.rule == Rule::kUnitVariance);
       ++h)
    for (const std::int64_t keys : {std::int64_t{1}, s.len_kv})
      check_number("scale", scale.factor(h, s.dim_qk, {keys, kMaxLength + kMaxOffset}));
}

void check_mask(const Mask& mask, const Shape& s, Device device) {
  if (mask.window && (mask.window->left < 0 || mask.window->right < 0))
    refuse("window: left {} and right {}, but neither can be negative", mask.window->left, mask.window->right);
  if (mask.diagonal.offset > kMaxOffset || mask.diagonal.offset < -kMaxOffset)
    refuse("diagonal: offset {} is beyond ±{}", mask.diagonal.offset, kMaxOffset);
  for (const PerItem& field : kPerItem) check_per_item(field, mask, s);
  if (mask.diagonal.kind == Diagonal::Kind::kLastKey && s.batch > 0 && (mask.key_lengths.empty() || mask.documents))
    refuse("diagonal: last_key measures from key_lengths, so it needs them, and no documents");
  if (mask.documents) {
    const std::int64_t items = mask.documents->items;
    if (items != 0 && items != s.batch) refuse("documents: of {} items, but batch is {}", items, s.batch);
    check_starts("documents of q", items, mask.documents->q_starts, s.len_q, "len_q");
    check_starts("documents of k", items, mask.documents->kv_starts, s.len_kv, "len_kv");
    if (mask.documents->q_starts.size() != mask.documents->kv_starts.size())
      refuse("documents: q has {} entries and k {}", mask.documents->q_starts.size(), mask.documents->kv_starts.size());
  }
  if (mask.allowed.present()) {
    if (mask.allowed.dtype != DType::kBool)
      refuse("mask: dtype is {}, but bool is wanted", name_of(mask.allowed.dtype));
    check_broadcast("mask", mask.allowed, s, device);
  }
  if (mask.bias.present()) {
    if (mask.bias.dtype != DType::kF32 && mask.bias.dtype != s.dtype)
      refuse("bias: dtype is {}, but f32 or {} is wanted", name_of(mask.bias.dtype), name_of(s.dtype));
    check_broadcast("bias", mask.bias, s, device);
  }
  if (!mask.alibi_slopes.empty()) check_per_head("alibi", mask.alibi_slopes, s.heads_q);
}

}  // namespace

void check_stats_options(const StatsOptions& options) {
  if (options.sample < 1) refuse("stats.sample: {}, but at least 1 is wanted (1 looks at every query)", options.sample);
  if (options.sample_offset < 0 || options.sample_offset >= options.sample)
    refuse("stats.sample_offset: {}, but 0 to sample - 1 ({}) is wanted", options.sample_offset, options.sample - 1);
  if (options.first_query < 0 || options.first_query > kMaxOffset)
    refuse("stats.first_query: {}, but 0 to {} is wanted", options.first_query, kMaxOffset);
}

namespace {

void check_stats(const Problem& problem) {
  const StatsOptions& options = problem.stats_options;
  check_stats_options(options);
  if (options.sample > 1 && problem.stats != StatsLevel::kFull)
    refuse("stats.sample: {}, but only full statistics are sampled", options.sample);
  for (const auto& [name, wanted] :
       {std::pair{"by_keys", options.by_keys}, {"gaps", options.gaps}, {"key_mass", options.key_mass}})
    if (wanted && problem.stats == StatsLevel::kNone)
      refuse("stats.{}: wanted, but the problem asks for no statistics", name);
}

void check_pages(const PagedKv& paged, const Shape& s, const ConstTensor& k) {
  const std::int64_t page_size = k.shape[2], pages = k.shape[0];
  if (page_size < 1) refuse("k: page size is {}, but at least 1 is wanted", page_size);
  if (paged.pages_per_item < 0 || paged.pages_per_item > kMaxLength ||
      static_cast<std::int64_t>(paged.table.size()) != s.batch * paged.pages_per_item)
    refuse("paged.table: {} entries, but batch {} × pages_per_item {} is wanted", paged.table.size(), s.batch,
           paged.pages_per_item);
  const std::int64_t used = s.len_kv / page_size + (s.len_kv % page_size != 0);
  if (paged.pages_per_item < used)
    refuse("paged.pages_per_item: {} pages of {} keys cannot hold len_kv = {}", paged.pages_per_item, page_size,
           s.len_kv);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t p = 0; p < used; ++p) {
      const std::int32_t page = paged.table[static_cast<std::size_t>(b * paged.pages_per_item + p)];
      if (page < 0 || page >= pages) refuse("paged.table: entry [{}, {}] is {}, but k has {} pages", b, p, page, pages);
    }
}

void check_inputs(const Problem& problem, const Shape& s, const ConstTensor& q, const ConstTensor& k,
                  const ConstTensor& v, Device device) {
  check_tensor("q", q, s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, device);
  if (problem.paged) {
    check_tensor("k", k, s.dtype, {k.shape[0], s.heads_kv, k.shape[2], s.dim_qk}, device);
    check_tensor("v", v, s.dtype, {k.shape[0], s.heads_kv, k.shape[2], s.dim_v}, device);
    check_pages(*problem.paged, s, k);
  } else {
    check_tensor("k", k, s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, device);
    check_tensor("v", v, s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, device);
  }
}

/// Arrays that are there, by name. Most of what could be is absent, and a small call should not pay for it.
class Arrays {
 public:
  struct Named {
    const char* name;
    ConstTensor tensor;
  };

  void add(const char* name, const ConstTensor& tensor) {
    if (tensor.present() && tensor.count() != 0) named_[count_++] = {name, tensor};
  }
  /// An array of numbers as the bytes it lies on.
  template <class T>
  void add(const char* name, std::span<T> values) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    add(name, tensor(bytes, {1, 1, 1, static_cast<std::int64_t>(values.size_bytes())}));
  }
  void add(const Problem& problem) {
    const Mask& mask = problem.mask;
    add("mask", mask.allowed);
    add("bias", mask.bias);
    add("alibi", mask.alibi_slopes);
    for (const PerItem& field : kPerItem) add(field.name, field.of(mask));
    if (mask.documents) add("documents of q", mask.documents->q_starts);
    if (mask.documents) add("documents of k", mask.documents->kv_starts);
    add("scale", problem.scale.head_values);
    add("scale.head_gains", problem.scale.head_gains);
    add("scale.head_offsets", problem.scale.head_offsets);
    add("sink", problem.sink);
    if (problem.paged) add("paged.table", problem.paged->table);
  }
  void add(const RowTensors& rows) {
    for (const BasicRowTensor& row : kBasicRowTensors) add(row.name, rows.*row.tensor);
    for (const FullRowTensor& row : kFullRowTensors) add(row.name, rows.*row.tensor);
  }

  const Named* begin() const { return named_.data(); }
  const Named* end() const { return named_.data() + count_; }

 private:
  static constexpr std::size_t kMost = 32;  // of forward: o, lse, key mass and the statistics of a row
  static_assert(3 + std::size(kBasicRowTensors) + std::size(kFullRowTensors) <= kMost);
  std::array<Named, kMost> named_;
  std::size_t count_ = 0;
};

void check_overlap(const Arrays& inputs, const Arrays& outputs) {
  for (const auto& out : outputs) {
    if (overlaps_itself(out.tensor))
      refuse("{}: strides {} make it overlap itself", out.name, show(out.tensor.strides));
    for (const auto& in : inputs)
      if (overlaps(out.tensor, in.tensor)) refuse("{}: overlaps the input {}", out.name, in.name);
    for (const auto* other = &out + 1; other != outputs.end(); ++other)
      if (overlaps(out.tensor, other->tensor)) refuse("{}: overlaps the output {}", out.name, other->name);
  }
}

DType row_dtype(const Shape& s) { return s.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

}  // namespace

void check_numbers(std::string_view name, const ConstTensor& t) {
  if (t.dtype == DType::kBool) refuse("{}: dtype is bool, but f32, f16, bf16 or f64 is wanted", name);
  check_memory(name, t);
}

void check_numbers(std::string_view name, const ConstTensor& t, const Extents& shape) {
  if (t.shape != shape) refuse("{}: shape is {}, but {} is wanted", name, show(t.shape), show(shape));
  check_numbers(name, t);
}

void check_output(std::string_view name, const Tensor& out, std::string_view input_name, const ConstTensor& input) {
  if (overlaps_itself(out)) refuse("{}: strides {} make it overlap itself", name, show(out.strides));
  const bool same =
      out.data == input.data && out.dtype == input.dtype && out.strides == input.strides && out.shape == input.shape;
  if (!same && overlaps(out, input)) refuse("{}: overlaps {} without being the same", name, input_name);
}

void check_problem(const Problem& problem, const Shape& s, Device device) {
  check_shape(s);
  check_scale(problem.scale, s);
  check_mask(problem.mask, s, device);
  check_key_counts(problem.scale, problem.mask);
  if (problem.soft_cap && !(*problem.soft_cap > 0 && std::isfinite(*problem.soft_cap)))
    refuse("softcap: {}, but a finite positive number is wanted (leave it out for none)", *problem.soft_cap);
  if (!problem.sink.empty()) check_per_head("sink", problem.sink, s.heads_q);
  if (!(problem.dropout.p >= 0 && problem.dropout.p < 1))
    refuse("dropout: {}, but 0 <= p < 1 is wanted", problem.dropout.p);
  if (problem.dropout.device_seed && device != Device::kCuda)
    refuse("dropout.device_seed: memory of a GPU, but the CPU was called; put the seed into dropout.seed");
  const ScoreTransform& f = problem.transform;
  if ((f.apply_f32 || f.apply_f64 || f.chain_f32 || f.chain_f64) &&
      !(f.apply_f32 && f.apply_f64 && f.chain_f32 && f.chain_f64))
    refuse("transform: some of its functions are null, but all are wanted");
  check_stats(problem);
  if (problem.paged && problem.paged->len_kv != s.len_kv)
    refuse("paged.len_kv: {}, but the plan's shape has {}", problem.paged->len_kv, s.len_kv);
}

void check_keys(const Problem& problem, const Shape& s, const ConstTensor& q, const ConstTensor& k) {
  check_inputs(problem, s, q, k, k, Device::kCpu);
}

void check_forward(const Problem& problem, const Shape& s, const Inputs& in, const Outputs& out, Device device) {
  check_inputs(problem, s, in.q, in.k, in.v, device);
  const Extents rows = {s.batch, s.heads_q, s.len_q, 1};
  check_tensor("o", out.o, s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, device);
  check_optional("lse", out.lse, row_dtype(s), rows, device);
  const RowTensors& r = out.rows;
  for (const BasicRowTensor& row : kBasicRowTensors)
    check_optional(row.name, r.*row.tensor, row_dtype(s), rows, device);
  for (const FullRowTensor& row : kFullRowTensors) {
    if ((r.*row.tensor).present() && problem.stats != StatsLevel::kFull)
      refuse("{}: wanted, but the problem's stats are not full", row.name);
    check_optional(row.name, r.*row.tensor, row_dtype(s), rows, device);
  }
  const bool key_mass = problem.stats_options.key_mass;
  if (key_mass) check_tensor("key_mass", out.key_mass, row_dtype(s), {s.batch, s.heads_q, s.len_kv, 1}, device);
  else if (out.key_mass.present()) refuse("key_mass: a tensor is given, but stats.key_mass is off");
  Arrays inputs, outputs;
  inputs.add(problem);
  inputs.add("q", in.q);
  inputs.add("k", in.k);
  inputs.add("v", in.v);
  outputs.add("o", out.o);
  outputs.add("lse", out.lse);
  outputs.add("key_mass", out.key_mass);
  outputs.add(r);
  check_overlap(inputs, outputs);
}

void check_backward(const Problem& problem, const Shape& s, const BackwardInputs& in, const Gradients& grad,
                    Device device) {
  check_inputs(problem, s, in.q, in.k, in.v, device);
  const Extents rows = {s.batch, s.heads_q, s.len_q, 1};
  const Extents output = {s.batch, s.heads_q, s.len_q, s.dim_v};
  check_tensor("o", in.o, s.dtype, output, device);
  check_tensor("lse", in.lse, row_dtype(s), rows, device);
  check_tensor("d_o", in.d_o, s.dtype, output, device);
  check_optional("d_lse", in.d_lse, row_dtype(s), rows, device);
  check_optional("d_q", grad.d_q, s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, device);
  check_optional("d_k", grad.d_k, s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, device);
  check_optional("d_v", grad.d_v, s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, device);
  for (const auto& [name, values] : {std::pair{"d_scale", grad.d_scale},
                                     {"d_sink", grad.d_sink},
                                     {"d_log_n_gain", grad.d_log_n_gain},
                                     {"d_log_n_offset", grad.d_log_n_offset}})
    if (!values.empty() && static_cast<std::int64_t>(values.size()) != s.heads_q)
      refuse("{}: {} values, but there are {} query heads", name, values.size(), s.heads_q);
  if (!grad.d_sink.empty() && problem.sink.empty()) refuse("d_sink: wanted, but the problem has no sink");
  if (problem.scale.length != Scale::Length::kLogN)
    for (const auto& [name, values] :
         {std::pair{"d_log_n_gain", grad.d_log_n_gain}, {"d_log_n_offset", grad.d_log_n_offset}})
      if (!values.empty()) refuse("{}: wanted, but the scale has no log-n part (ssmax)", name);
  if (grad.d_bias.present()) {
    const ConstTensor& bias = problem.mask.bias;
    if (!bias.present()) refuse("d_bias: wanted, but the problem has no bias");
    if (grad.d_bias.dtype != DType::kF32 && grad.d_bias.dtype != bias.dtype)
      refuse("d_bias: dtype is {}, but f32 or {} is wanted", name_of(grad.d_bias.dtype), name_of(bias.dtype));
    check_tensor("d_bias", grad.d_bias, grad.d_bias.dtype, bias.shape, device);
  }
  Arrays inputs, outputs;
  inputs.add(problem);
  for (const auto& [name, t] : {std::pair{"q", in.q},
                                {"k", in.k},
                                {"v", in.v},
                                {"o", in.o},
                                {"lse", in.lse},
                                {"d_o", in.d_o},
                                {"d_lse", in.d_lse}})
    inputs.add(name, t);
  for (const auto& [name, t] :
       {std::pair{"d_q", grad.d_q}, {"d_k", grad.d_k}, {"d_v", grad.d_v}, {"d_bias", grad.d_bias}})
    outputs.add(name, t);
  outputs.add("d_scale", grad.d_scale);
  outputs.add("d_sink", grad.d_sink);
  outputs.add("d_log_n_gain", grad.d_log_n_gain);
  outputs.add("d_log_n_offset", grad.d_log_n_offset);
  check_overlap(inputs, outputs);
}

void check_merge(const Tensor& o, const Tensor& lse, const ConstTensor& other_o, const ConstTensor& other_lse) {
  if (o.dtype == DType::kBool) refuse("o: dtype is bool, but f32, f16, bf16 or f64 is wanted");
  const DType rows_dtype = o.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Extents rows = {o.shape[0], o.shape[1], o.shape[2], 1};
  check_memory("o", o);
  check_tensor("lse", lse, rows_dtype, rows);
  check_tensor("other_o", other_o, o.dtype, o.shape);
  check_tensor("other_lse", other_lse, rows_dtype, rows);
  Arrays inputs, outputs;
  inputs.add("other_o", other_o);
  inputs.add("other_lse", other_lse);
  outputs.add("o", o);
  outputs.add("lse", lse);
  check_overlap(inputs, outputs);
}

void check_rows(const RowTensors& rows, const ConstTensor& lse, std::string_view whose) {
  check_numbers(fmt::format("{}lse", whose), lse, {lse.shape[0], lse.shape[1], lse.shape[2], 1});
  const auto check = [&](const char* name, const Tensor& t) {
    if (!t.present()) refuse("{}{}: absent, but all row tensors are wanted", whose, name);
    check_tensor(fmt::format("{}{}", whose, name), t, lse.dtype, lse.shape);
  };
  for (const BasicRowTensor& row : kBasicRowTensors) check(row.name, rows.*row.tensor);
  for (const FullRowTensor& row : kFullRowTensors)
    if (row.recorded || (rows.*row.tensor).present()) check(row.name, rows.*row.tensor);
}

void check_merge_rows(const Outputs& into, const Outputs& other) {
  check_rows(into.rows, into.lse, "");
  check_rows(other.rows, other.lse, "other.");
  Arrays inputs, outputs;
  inputs.add(other.rows);
  outputs.add(into.rows);
  check_overlap(inputs, outputs);
}

}  // namespace rootdk::base

namespace rootdk {

Shape shape_of(const Inputs& in, const Problem& problem) {
  using base::refuse;
  for (const auto& [name, t] : {std::pair{"q", in.q}, {"k", in.k}, {"v", in.v}}) base::check_reach(name, t);
  for (const auto& [name, t] : {std::pair{"k", in.k}, {"v", in.v}})
    if (t.dtype != in.q.dtype) refuse("{}: dtype is {}, but q has {}", name, name_of(t.dtype), name_of(in.q.dtype));
  if (in.k.shape[3] != in.q.shape[3]) refuse("k: dim_qk is {}, but q has {}", in.k.shape[3], in.q.shape[3]);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    static constexpr const char* kAxis[] = {"batch", "heads_kv", "len_kv"};
    if (in.v.shape[axis] != in.k.shape[axis])
      refuse("v: {} is {}, but k has {}", kAxis[axis], in.v.shape[axis], in.k.shape[axis]);
  }
  if (!problem.paged && in.k.shape[0] != in.q.shape[0])
    refuse("k: batch is {}, but q has {}", in.k.shape[0], in.q.shape[0]);
  Shape shape;
  shape.batch = in.q.shape[0];
  shape.heads_q = in.q.shape[1];
  shape.heads_kv = in.k.shape[1];
  shape.len_q = in.q.shape[2];
  shape.len_kv = problem.paged ? problem.paged->len_kv : in.k.shape[2];
  shape.dim_qk = in.q.shape[3];
  shape.dim_v = in.v.shape[3];
  shape.dtype = in.q.dtype;
  return shape;
}

}  // namespace rootdk
