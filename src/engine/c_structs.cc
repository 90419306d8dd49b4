// Each struct converted field by field, with static_asserts that both sides count their enumerations alike.
#include "engine/c_structs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "base/arena.h"
#include "base/head_columns.h"
#include "rootdk/version.h"

namespace rootdk::c {

namespace {

using base::refuse;

constexpr bool same(int c, auto cpp) { return c == static_cast<int>(cpp); }
static_assert(same(ROOTDK_INVALID_ARGUMENT, ErrorCode::kInvalidArgument) &&
              same(ROOTDK_OUT_OF_MEMORY, ErrorCode::kOutOfMemory) && same(ROOTDK_INTERNAL, ErrorCode::kInternal));
static_assert(same(ROOTDK_F32, DType::kF32) && same(ROOTDK_F16, DType::kF16) && same(ROOTDK_BF16, DType::kBF16) &&
              same(ROOTDK_F64, DType::kF64) && same(ROOTDK_BOOL, DType::kBool));
static_assert(same(ROOTDK_CPU, Device::kCpu) && same(ROOTDK_CUDA, Device::kCuda));
static_assert(same(ROOTDK_SCALE_NONE, Scale::Rule::kNone) && same(ROOTDK_SCALE_INV_SQRT_DK, Scale::Rule::kInvSqrtDk) &&
              same(ROOTDK_SCALE_INV_DK, Scale::Rule::kInvDk) && same(ROOTDK_SCALE_CONSTANT, Scale::Rule::kConstant) &&
              same(ROOTDK_SCALE_PER_HEAD, Scale::Rule::kPerHead));
static_assert(same(ROOTDK_BOTTOM_RIGHT, Diagonal::Kind::kBottomRight) &&
              same(ROOTDK_TOP_LEFT, Diagonal::Kind::kTopLeft) && same(ROOTDK_LAST_KEY, Diagonal::Kind::kLastKey) &&
              same(ROOTDK_AT, Diagonal::Kind::kAt));
static_assert(same(ROOTDK_STATS_NONE, StatsLevel::kNone) && same(ROOTDK_STATS_BASIC, StatsLevel::kBasic) &&
              same(ROOTDK_STATS_FULL, StatsLevel::kFull));
static_assert(same(ROOTDK_FORWARD, Pass::kForward) && same(ROOTDK_BACKWARD, Pass::kBackward));
static_assert(ROOTDK_UNBOUNDED == Window::kUnbounded);

thread_local std::array<char, 1024> last_error = {};

template <class Enum>
Enum to_enum(std::string_view name, std::string_view field, std::int32_t value, Enum last) {
  if (value < 0 || value > static_cast<std::int32_t>(last))
    refuse("{}: {} is {}, but 0 to {} is wanted", name, field, value, static_cast<std::int32_t>(last));
  return static_cast<Enum>(value);
}

template <std::size_t kSize>
void check_reserved(std::string_view name, const std::uint64_t (&reserved)[kSize]) {
  if (std::any_of(reserved, reserved + kSize, [](std::uint64_t word) { return word != 0; }))
    refuse("{}: reserved is not zero: not initialised, or made for a later version than {}", name, ROOTDK_VERSION);
}

}  // namespace

void remember(std::string_view message) {
  const std::size_t n = std::min(message.size(), last_error.size() - 1);
  std::copy_n(message.data(), n, last_error.data());
  last_error[n] = '\0';
}

int code_of_exception() {
  try {
    throw;
  } catch (const Error& error) {
    remember(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    remember("out of memory");
    return ROOTDK_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    remember(error.what());
    return ROOTDK_INTERNAL;
  } catch (...) {
    remember("an exception of unknown type");
    return ROOTDK_INTERNAL;
  }
}

Tensor to_tensor(std::string_view name, const rootdk_tensor& t) {
  Tensor tensor;
  tensor.data = t.data;
  tensor.dtype = to_enum(name, "dtype", t.dtype, DType::kBool);
  tensor.device = to_enum(name, "device", t.device, Device::kCuda);
  std::copy_n(t.shape, 4, tensor.shape.begin());
  std::copy_n(t.strides, 4, tensor.strides.begin());
  return tensor;
}

namespace {

template <class Array>
auto to_span(std::string_view name, const Array& array) {
  if (array.count < 0) refuse("{}: count is {}, but it cannot be negative", name, array.count);
  if (array.data == nullptr && array.count != 0) refuse("{}: null, but its count is {}", name, array.count);
  return std::span(array.data, static_cast<std::size_t>(array.count));
}

ScoreTransform to_transform(const rootdk_transform& f) {
  const int present =
      (f.apply_f32 != nullptr) + (f.apply_f64 != nullptr) + (f.chain_f32 != nullptr) + (f.chain_f64 != nullptr);
  if (present != 0 && present != 4)
    refuse("transform: {} of its 4 functions are null, but all or none are wanted", 4 - present);
  ScoreTransform transform;
  transform.context = f.context;
  transform.apply_f32 = f.apply_f32;
  transform.apply_f64 = f.apply_f64;
  transform.chain_f32 = f.chain_f32;
  transform.chain_f64 = f.chain_f64;
  return transform;
}

Mask to_mask(const rootdk_problem& p) {
  Mask mask;
  mask.causal = p.causal != 0;
  mask.diagonal = {to_enum("problem", "diagonal", p.diagonal, Diagonal::Kind::kAt), p.diagonal_offset};
  if (p.window_left != ROOTDK_UNBOUNDED || p.window_right != ROOTDK_UNBOUNDED)
    mask.window = Window{p.window_left, p.window_right};
#define ROOTDK_PER_ITEM(name, axis, words, doc) mask.name = to_span(#name, p.name);
#include "rootdk/masks.def"
  const auto q_starts = to_span("document_q_starts", p.document_q_starts);
  const auto kv_starts = to_span("document_kv_starts", p.document_kv_starts);
  if (q_starts.data() != nullptr || kv_starts.data() != nullptr)
    mask.documents = Documents{q_starts, kv_starts, p.document_items};
  mask.allowed = to_tensor("allowed", p.allowed);
  mask.bias = to_tensor("bias", p.bias);
  mask.alibi_slopes = to_span("alibi_slopes", p.alibi_slopes);
  return mask;
}

Scale to_scale(const rootdk_problem& p) {
  Scale scale;
  if (p.scale != nullptr) {
    scale = Scale::parse(p.scale);
  } else {
    scale.rule = to_enum("problem", "scale_rule", p.scale_rule, Scale::Rule::kPerHead);
    scale.value = p.scale_value;
    scale.head_values = to_span("scale_per_head", p.scale_per_head);
  }
  const auto gains = to_span("ssmax_gains", p.ssmax_gains), offsets = to_span("ssmax_offsets", p.ssmax_offsets);
  return gains.empty() && offsets.empty() ? scale : scale.with_ssmax(gains, offsets);
}

static_assert(ROOTDK_GAP_BINS == GapHistogram::kBins);

StatsOptions to_stats_options(const rootdk_problem& p) {
  constexpr std::int32_t kAll =
      ROOTDK_STATS_NO_CAUSES | ROOTDK_STATS_GAPS | ROOTDK_STATS_KEY_MASS | ROOTDK_STATS_BY_KEYS;
  if ((p.stats_flags & ~kAll) != 0)
    refuse("problem: stats_flags is {}, but only bits of {} are known", p.stats_flags, kAll);
  StatsOptions options;
  options.sample = p.stats_sample == 0 ? 1 : p.stats_sample;
  options.sample_offset = p.stats_sample_offset;
  options.first_query = p.stats_first_query;
  options.causes = (p.stats_flags & ROOTDK_STATS_NO_CAUSES) == 0;
  options.gaps = (p.stats_flags & ROOTDK_STATS_GAPS) != 0;
  options.key_mass = (p.stats_flags & ROOTDK_STATS_KEY_MASS) != 0;
  options.by_keys = (p.stats_flags & ROOTDK_STATS_BY_KEYS) != 0;
  return options;
}

}  // namespace

Problem to_problem(const rootdk_problem* given_problem) {
  if (given_problem == nullptr) return {};
  const rootdk_problem& p = *given_problem;
  if (p.version != kProblemVersion)
    refuse("problem: version is {}, but {} is wanted; call rootdk_problem_init first", p.version, kProblemVersion);
  check_reserved("problem", p.reserved);
  Problem problem;
  problem.scale = to_scale(p);
  if (p.has_soft_cap != 0) problem.soft_cap = p.soft_cap;
  problem.transform = to_transform(p.transform);
  problem.mask = to_mask(p);
  problem.sink = to_span("sink", p.sink);
  problem.dropout = {p.dropout_p, p.dropout_seed, p.dropout_device_seed};
  const auto table = to_span("page_table", p.page_table);
  if (table.data() != nullptr) problem.paged = PagedKv{table, p.pages_per_item, p.paged_len_kv};
  problem.stats = to_enum("problem", "stats", p.stats, StatsLevel::kFull);
  problem.stats_options = to_stats_options(p);
  return problem;
}

Pass to_pass(rootdk_pass pass) { return to_enum("pass", "value", pass, Pass::kBackward); }

Inputs to_inputs(const rootdk_inputs* inputs) {
  const rootdk_inputs& in = given("inputs", inputs);
  check_reserved("inputs", in.reserved);
  return {to_tensor("q", in.q), to_tensor("k", in.k), to_tensor("v", in.v)};
}

namespace {

void add_full_rows(const rootdk_row_tensors& in, RowTensors& rows) {
  check_reserved("rows", in.reserved);
#define ROOTDK_FULL_ROW(merges, name, value, doc) rows.name = to_tensor("rows." #name, in.name);
#include "rootdk/statistics.def"
}

}  // namespace

Outputs to_outputs(const rootdk_outputs& out) {
  check_reserved("outputs", out.reserved);
  Outputs outputs;
  outputs.o = to_tensor("o", out.o);
  outputs.lse = to_tensor("lse", out.lse);
#define ROOTDK_BASIC_ROW(name, doc) outputs.rows.name = to_tensor("row_" #name, out.row_##name);
#include "rootdk/statistics.def"
  outputs.key_mass = to_tensor("key_mass", out.key_mass);
  if (out.rows != nullptr) add_full_rows(*out.rows, outputs.rows);
  return outputs;
}

BackwardInputs to_backward_inputs(const rootdk_backward_inputs* inputs) {
  const rootdk_backward_inputs& in = given("inputs", inputs);
  check_reserved("inputs", in.reserved);
  BackwardInputs result;
  result.q = to_tensor("q", in.q);
  result.k = to_tensor("k", in.k);
  result.v = to_tensor("v", in.v);
  result.o = to_tensor("o", in.o);
  result.lse = to_tensor("lse", in.lse);
  result.d_o = to_tensor("d_o", in.d_o);
  result.d_lse = to_tensor("d_lse", in.d_lse);
  return result;
}

Gradients to_gradients(const rootdk_gradients* gradients) {
  const rootdk_gradients& g = given("gradients", gradients);
  check_reserved("gradients", g.reserved);
  Gradients result;
  result.d_q = to_tensor("d_q", g.d_q);
  result.d_k = to_tensor("d_k", g.d_k);
  result.d_v = to_tensor("d_v", g.d_v);
  result.d_bias = to_tensor("d_bias", g.d_bias);
  result.d_scale = to_span("d_scale", g.d_scale);
  result.d_sink = to_span("d_sink", g.d_sink);
  result.d_log_n_gain = to_span("d_ssmax_gains", g.d_ssmax_gains);
  result.d_log_n_offset = to_span("d_ssmax_offsets", g.d_ssmax_offsets);
  return result;
}

void check_stats_array(std::string_view name, const void* data, std::int64_t count, std::int64_t wanted, bool has,
                       std::string_view need) {
  if (data == nullptr && count != 0) refuse("{}: null, but its count is {}", name, count);
  if (data == nullptr) return;
  if (!has) refuse("{}: wanted, but the problem's stats lack {}", name, need);
  if (count != wanted) refuse("{}: count is {}, but {} is wanted", name, count, wanted);
}

namespace {

void copy_head(const HeadStats& head, StatsLevel level, rootdk_head_stats& out) {
  out = {};
#define ROOTDK_STATISTIC(from, type, name, value, merges, doc) \
  if (level >= base::words::from) out.name = static_cast<decltype(out.name)>(base::head_values::name(head));
#include "rootdk/statistics.def"
}

}  // namespace

void copy_stats(const Stats& stats, rootdk_head_stats* heads, std::int64_t* gaps) {
  for (const HeadStats& head : stats.per_head) {
    if (heads != nullptr) copy_head(head, stats.level, *heads++);
    if (gaps != nullptr) gaps = std::copy(head.gaps.counts.begin(), head.gaps.counts.end(), gaps);
  }
}

void copy_gradient_stats(const GradientStats& stats, rootdk_head_gradients* heads) {
  if (heads == nullptr) return;
  for (const HeadGradients& head : stats.per_head) {
    *heads = {};
#define ROOTDK_GRADIENT(sign, name, doc) heads->name = head.name;
#include "rootdk/statistics.def"
    ++heads;
  }
}

rootdk_stats* new_stats(Stats stats) { return reinterpret_cast<rootdk_stats*>(new Stats(std::move(stats))); }

std::size_t padded(std::size_t workspace_bytes) {
  return workspace_bytes == 0 ? 0 : workspace_bytes + base::kAlignment - 1;
}

std::span<std::byte> align(void* workspace, std::size_t size, const Plan& plan) {
  if (workspace == nullptr) refuse("workspace: null, but workspace_size is {}", size);
  if (size < padded(plan.workspace_bytes))
    refuse("workspace: {} bytes, but {} are wanted", size, padded(plan.workspace_bytes));
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  const std::size_t skip = plan.workspace_bytes == 0 ? 0 : -address % base::kAlignment;
  return {static_cast<std::byte*>(workspace) + skip, plan.workspace_bytes};
}

void copy_words(const std::string& words, char* buffer, std::size_t capacity, std::size_t* needed) {
  if (buffer == nullptr && capacity != 0) refuse("buffer: null, but capacity is {}", capacity);
  if (needed != nullptr) *needed = words.size() + 1;
  if (capacity == 0) return;
  const std::size_t n = std::min(words.size(), capacity - 1);
  std::memcpy(buffer, words.data(), n);
  buffer[n] = '\0';
}

}  // namespace rootdk::c

extern "C" const char* rootdk_last_error(void) { return rootdk::c::last_error.data(); }
