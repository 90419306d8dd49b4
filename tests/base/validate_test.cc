// Bad input through the public API: each wrong argument gets an Error that names it, says what came and what was
// wanted, and leaves every byte as it was. Then what looks odd and must be accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/element.h"
#include "rootdk/attention.h"
#include "support/buffer.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// A correct call of everything, in memory of its own: a table row spoils one thing in it.
/// batch 2, heads 4 on 2, len 5 × 7, dims 8 and 6, f32.
struct World {
  std::vector<float> memory = std::vector<float>(4096, -77.0f);  ///< every tensor lies in here
  std::vector<float> per_head = {0.5f, 1.0f, 0.25f, 2.0f};
  std::vector<std::int64_t> lengths = {7, 3}, q_starts = {0, 2, 5}, kv_starts = {0, 4, 7};
  std::vector<std::int32_t> table = {0, 3, 1, 2};  ///< 2 × 2 pages of 4 keys

  Problem problem;
  Inputs in;
  Outputs out;
  BackwardInputs back;
  Gradients grad;
  ConstTensor other_o, other_lse;  ///< for merge

  World() {
    in.q = take({2, 4, 5, 8});
    in.k = tensor(floats(4 * 2 * 4 * 8).data(), {2, 2, 7, 8});  // room for 4 pages
    in.v = tensor(floats(4 * 2 * 4 * 6).data(), {2, 2, 7, 6});
    out = {take({2, 4, 5, 6}), take({2, 4, 5, 1}), {take({2, 4, 5, 1}), take({2, 4, 5, 1}), take({2, 4, 5, 1})}};
    back = {in.q, in.k, in.v, out.o, out.lse, take({2, 4, 5, 6}), take({2, 4, 5, 1})};
    grad.d_q = take({2, 4, 5, 8}), grad.d_k = take({2, 2, 7, 8}), grad.d_v = take({2, 2, 7, 6});
    grad.d_scale = floats(4);
    other_o = take({2, 4, 5, 6}), other_lse = take({2, 4, 5, 1});
    bias_ = take({2, 4, 5, 7});
    Rng rng(1);
    for (const ConstTensor& t : {in.q, in.k, in.v, back.d_o, back.d_lse, other_o, other_lse, bias_})
      for (std::int64_t i = 0; i < t.count(); ++i)
        const_cast<float*>(static_cast<const float*>(t.data))[i] = static_cast<float>(rng.normal());
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::span<float> floats(std::size_t n) {
    used_ += n;
    return {memory.data() + used_ - n, n};
  }
  Tensor take(const Extents& shape) {
    return tensor(floats(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3])).data(), shape);
  }

  // Correct parts that a row switches on before it spoils them.
  Mask& with_bias() { return problem.mask.bias = bias_, problem.mask; }
  Mask& with_allowed() {
    problem.mask.allowed = {bias_.data, DType::kBool, Device::kCpu, {2, 4, 5, 7}, row_major({2, 4, 5, 7})};
    return problem.mask;
  }
  Mask& with_lengths() { return problem.mask.key_lengths = lengths, problem.mask; }
  Mask& with_documents() { return problem.mask.documents = Documents{q_starts, kv_starts}, problem.mask; }
  PagedKv& with_pages() {
    problem.paged = PagedKv{table, 2, 7};
    in.k = tensor(static_cast<const float*>(in.k.data), {4, 2, 4, 8});
    in.v = tensor(static_cast<const float*>(in.v.data), {4, 2, 4, 6});
    return *problem.paged;
  }
  void with_sink() { problem.sink = per_head; }

  Shape shape() const { return {2, 4, 2, 5, 7, 8, 6, in.q.dtype}; }
  void run_forward() { forward(problem, in, out); }
  void run_backward() {
    back.q = in.q, back.k = in.k, back.v = in.v;
    backward(problem, back, grad);
  }
  void run_merge() { merge(out.o, out.lse, other_o, other_lse); }

 private:
  std::size_t used_ = 512;  // room before the first, so that another can end in it
  ConstTensor bias_;
};

struct Wrong {
  const char* message;
  std::function<void(World&)> spoil;
};

std::string said_by(World& w, const std::function<void(World&)>& call) {
  try {
    call(w);
  } catch (const Error& error) {
    return (error.code() == ErrorCode::kInvalidArgument ? "" : "another code: ") + std::string(error.what());
  } catch (const std::exception& error) {
    return std::string("not an Error: ") + error.what();
  }
  return "accepted";
}

void expect_refused(const Wrong& wrong, const std::function<void(World&)>& call, const char* by) {
  World w;
  wrong.spoil(w);
  const std::vector<float> before = w.memory;
  EXPECT_EQ(said_by(w, call), wrong.message) << "by " << by;
  EXPECT_EQ(std::memcmp(before.data(), w.memory.data(), before.size() * sizeof(float)), 0)
      << by << " wrote something: " << wrong.message;
}

void expect_refused(const std::vector<Wrong>& table, const std::function<void(World&)>& call, const char* by) {
  for (const Wrong& wrong : table) expect_refused(wrong, call, by);
}

const std::function<void(World&)> kForward = &World::run_forward, kBackward = &World::run_backward,
                                  kMerge = &World::run_merge;
const std::function<void(World&)> kMakePlan = [](World& w) { make_plan(w.problem, w.shape()); };

TEST(Validate, WhatTheTablesSpoilIsCorrectWithout) {
  World w;
  w.with_sink(), w.with_bias(), w.with_allowed(), w.with_lengths(), w.with_documents(), w.with_pages();
  w.grad.d_bias = w.take({2, 4, 5, 7});
  w.grad.d_sink = w.floats(4);
  for (const auto& call : {kForward, kBackward, kMerge, kMakePlan}) EXPECT_EQ(said_by(w, call), "accepted");
  // And that something is written is not hidden from the comparison that the tables make.
  World fresh;
  const std::vector<float> before = fresh.memory;
  EXPECT_EQ(said_by(fresh, kForward), "accepted");
  EXPECT_NE(std::memcmp(before.data(), fresh.memory.data(), before.size() * sizeof(float)), 0);
}

TEST(Validate, ProblemsAreRefusedByPlanForwardAndBackward) {
  const std::vector<Wrong> table = {
      {"scale: nan is not a finite f32 number", [](World& w) { w.problem.scale = Scale::constant(kNan); }},
      {"scale: -inf is not a finite f32 number", [](World& w) { w.problem.scale = Scale::constant(-kInf); }},
      {"scale: 1e+39 is not a finite f32 number", [](World& w) { w.problem.scale = Scale::constant(1e39); }},
      {"scale: 3 values, but there are 4 query heads",
       [](World& w) {
         w.problem.scale = Scale::per_head({w.per_head.data(), 3});
       }},
      {"scale: value inf of head 2 is not finite",
       [](World& w) { w.per_head[2] = kInf, w.problem.scale = Scale::per_head(w.per_head); }},
      {"scale: nan is not a finite f32 number", [](World& w) { w.problem.scale = Scale::alpha_over_dk(kNan); }},
      {"scale.sigma_q: 0, but a finite positive number is wanted",
       [](World& w) { w.problem.scale = Scale::unit_variance(0, 1); }},
      {"scale.sigma_k: -1, but a finite positive number is wanted",
       [](World& w) { w.problem.scale = Scale::unit_variance(1, -1); }},
      {"scale: inf is not a finite f32 number",
       [](World& w) { w.problem.scale = Scale::unit_variance(1e-200, 1e-200); }},
      {"scale.yarn: 0.5, but the context is extended at least 1 time (1 means off)",
       [](World& w) { w.problem.scale = Scale::none().with_yarn(0.5); }},
      {"scale.yarn: nan, but the context is extended at least 1 time (1 means off)",
       [](World& w) { w.problem.scale = Scale::none().with_yarn(kNan); }},
      {"scale.log_n_gain: inf is not a finite f32 number",
       [](World& w) { w.problem.scale = Scale::none().with_ssmax(kInf); }},
      {"scale.log_n_offset: nan is not a finite f32 number",
       [](World& w) { w.problem.scale = Scale::none().with_ssmax(1, kNan); }},
      {"scale.head_gains: 3 values, but there are 4 query heads",
       [](World& w) { w.problem.scale = Scale::none().with_ssmax(std::span<const float>(w.per_head.data(), 3)); }},
      {"scale.head_offsets: value nan of head 1 is not finite",
       [](World& w) { w.per_head[1] = kNan, w.problem.scale = Scale::none().with_ssmax({}, w.per_head); }},
      {"scale: 3.891820298110627e+38 is not a finite f32 number",
       [](World& w) { w.problem.scale = Scale::constant(2e38).with_ssmax(1); }},
      {"scale: ssmax counts the keys a query sees, but a boolean mask may hide keys that it cannot count beforehand",
       [](World& w) { w.with_allowed(), w.problem.scale = Scale::none().with_ssmax(1); }},
      {"scale: ssmax counts the keys a query sees, but a bias may hide keys that it cannot count beforehand",
       [](World& w) { w.with_bias(), w.problem.scale = Scale::none().with_ssmax(1); }},
      {"scale: entropy_invariant counts the keys a query sees, but a boolean mask may hide keys that it cannot count "
       "beforehand",
       [](World& w) { w.with_allowed(), w.problem.scale = Scale::none().with_entropy_invariance(); }},
      {"stats.sample: 0, but at least 1 is wanted (1 looks at every query)",
       [](World& w) { w.problem.stats_options.sample = 0; }},
      {"stats.sample: 4, but only full statistics are sampled", [](World& w) { w.problem.stats_options.sample = 4; }},
      {"stats.sample_offset: 1, but 0 to sample - 1 (0) is wanted",
       [](World& w) { w.problem.stats_options.sample_offset = 1; }},
      {"stats.sample_offset: -1, but 0 to sample - 1 (7) is wanted",
       [](World& w) {
         w.problem.stats = StatsLevel::kFull, w.problem.stats_options = {.sample = 8, .sample_offset = -1};
       }},
      {"stats.first_query: -1, but 0 to 536870912 is wanted",
       [](World& w) { w.problem.stats_options.first_query = -1; }},
      {"stats.by_keys: wanted, but the problem asks for no statistics",
       [](World& w) { w.problem.stats = StatsLevel::kNone, w.problem.stats_options.by_keys = true; }},
      {"stats.gaps: wanted, but the problem asks for no statistics",
       [](World& w) { w.problem.stats = StatsLevel::kNone, w.problem.stats_options.gaps = true; }},
      {"stats.key_mass: wanted, but the problem asks for no statistics",
       [](World& w) { w.problem.stats = StatsLevel::kNone, w.problem.stats_options.key_mass = true; }},
      {"softcap: 0, but a finite positive number is wanted (leave it out for none)",
       [](World& w) { w.problem.soft_cap = 0.0f; }},
      {"softcap: -2, but a finite positive number is wanted (leave it out for none)",
       [](World& w) { w.problem.soft_cap = -2.0f; }},
      {"softcap: nan, but a finite positive number is wanted (leave it out for none)",
       [](World& w) { w.problem.soft_cap = kNan; }},
      {"softcap: inf, but a finite positive number is wanted (leave it out for none)",
       [](World& w) { w.problem.soft_cap = kInf; }},
      {"dropout: -0.5, but 0 <= p < 1 is wanted", [](World& w) { w.problem.dropout.p = -0.5f; }},
      {"dropout: 1, but 0 <= p < 1 is wanted", [](World& w) { w.problem.dropout.p = 1; }},
      {"dropout: nan, but 0 <= p < 1 is wanted", [](World& w) { w.problem.dropout.p = kNan; }},
      {"sink: 5 values, but there are 4 query heads", [](World& w) { w.per_head.push_back(0), w.with_sink(); }},
      {"sink: value nan of head 3 is not finite", [](World& w) { w.per_head[3] = kNan, w.with_sink(); }},
      {"transform: some of its functions are null, but all are wanted",
       [](World& w) { w.problem.transform.apply_f32 = [](const void*, float*, std::size_t) {}; }},
      {"window: left -1 and right 3, but neither can be negative",
       [](World& w) {
         w.problem.mask.window = Window{-1, 3};
       }},
      {"window: left 3 and right -2, but neither can be negative",
       [](World& w) {
         w.problem.mask.window = Window{3, -2};
       }},
      {"diagonal: offset 536870913 is beyond ±536870912",
       [](World& w) { w.problem.mask.diagonal = Diagonal::at((1 << 29) + 1); }},
      {"diagonal: offset -536870913 is beyond ±536870912",
       [](World& w) { w.problem.mask.diagonal = Diagonal::at(-(1 << 29) - 1); }},
      {"diagonal: offset -9223372036854775808 is beyond ±536870912",
       [](World& w) { w.problem.mask.diagonal = Diagonal::at(-kMost - 1); }},
      {"diagonal: last_key measures from key_lengths, so it needs them, and no documents",
       [](World& w) { w.problem.mask.diagonal = Diagonal::last_key(); }},
      {"diagonal: last_key measures from key_lengths, so it needs them, and no documents",
       [](World& w) { w.with_lengths(), w.with_documents(), w.problem.mask.diagonal = Diagonal::last_key(); }},
      {"key_lengths: 1 entries, but batch is 2", [](World& w) { w.lengths = {7}, w.with_lengths(); }},
      {"key_lengths: 3 entries, but batch is 2",
       [](World& w) {
         w.lengths = {7, 7, 7}, w.with_lengths();
       }},
      {"key_lengths: entry 1 is 8, but 0 to len_kv (7) is wanted",
       [](World& w) { w.lengths[1] = 8, w.with_lengths(); }},
      {"key_lengths: entry 0 is -1, but 0 to len_kv (7) is wanted",
       [](World& w) { w.lengths[0] = -1, w.with_lengths(); }},
      {"key_starts: 3 entries, but batch is 2",
       [](World& w) {
         w.lengths = {7, 7, 7}, w.problem.mask.key_starts = w.lengths;
       }},
      {"key_starts: entry 1 is 8, but 0 to len_kv (7) is wanted",
       [](World& w) { w.lengths[1] = 8, w.problem.mask.key_starts = w.lengths; }},
      {"query_lengths: entry 0 is 7, but 0 to len_q (5) is wanted",
       [](World& w) { w.problem.mask.query_lengths = w.lengths; }},
      {"documents of q: 3 entries, but a multiple of their 2 items is wanted",
       [](World& w) { w.with_documents().documents->items = 2; }},
      {"documents: of 3 items, but batch is 2", [](World& w) { w.with_documents().documents->items = 3; }},
      {"documents: of -1 items, but batch is 2", [](World& w) { w.with_documents().documents->items = -1; }},
      {"documents of k, item 1: ends at 8, but len_kv is 7",
       [](World& w) {
         w.q_starts = {0, 5, 0, 5}, w.kv_starts = {0, 7, 0, 8};
         w.with_documents().documents->items = 2;
       }},
      {"documents of q: empty, but it needs documents + 1 entries",
       [](World& w) { w.q_starts = {}, w.with_documents(); }},
      {"documents of q: begins with 1, but the first document starts at 0",
       [](World& w) { w.q_starts[0] = 1, w.with_documents(); }},
      {"documents of k: entry 2 is 3, below the one before it (4)",
       [](World& w) { w.kv_starts[2] = 3, w.with_documents(); }},
      {"documents of q: ends at 6, but len_q is 5", [](World& w) { w.q_starts[2] = 6, w.with_documents(); }},
      {"documents of k: ends at 8, but len_kv is 7", [](World& w) { w.kv_starts[2] = 8, w.with_documents(); }},
      {"documents: q has 3 entries and k 2", [](World& w) { w.kv_starts.pop_back(), w.with_documents(); }},
      {"mask: dtype is f32, but bool is wanted", [](World& w) { w.with_allowed().allowed.dtype = DType::kF32; }},
      {"mask: shape is [2, 4, 6, 7], but [2, 4, 5, 7] is wanted, or 1 to repeat an axis",
       [](World& w) { w.with_allowed().allowed.shape[2] = 6; }},
      {"mask: lies on a GPU, but the CPU is to compute it (rootdk/cuda.h is for GPUs)",
       [](World& w) { w.with_allowed().allowed.device = Device::kCuda; }},
      {"bias: dtype is f16, but f32 or f32 is wanted", [](World& w) { w.with_bias().bias.dtype = DType::kF16; }},
      {"bias: shape is [2, 2, 5, 7], but [2, 4, 5, 7] is wanted, or 1 to repeat an axis",
       [](World& w) { w.with_bias().bias.shape[1] = 2; }},
      {"bias: shape [2, 4, 5, 7] with strides [9223372036854775807, 35, 7, 1] reaches beyond any address",
       [](World& w) { w.with_bias().bias.strides[0] = kMost; }},
      {"bias: data is not aligned to its f32 elements",
       [](World& w) { w.with_bias().bias.data = static_cast<const std::byte*>(w.problem.mask.bias.data) + 2; }},
      {"alibi: 2 values, but there are 4 query heads",
       [](World& w) {
         w.problem.mask.alibi_slopes = {w.per_head.data(), 2};
       }},
      {"alibi: value nan of head 0 is not finite",
       [](World& w) { w.per_head[0] = kNan, w.problem.mask.alibi_slopes = w.per_head; }},
  };
  expect_refused(table, kMakePlan, "make_plan");
  expect_refused(table, kForward, "forward");
  expect_refused(table, kBackward, "backward");
}

TEST(Validate, InputTensorsAreRefusedByForwardAndBackward) {
  const std::vector<Wrong> table = {
      {"k: dim_qk is 7, but q has 8", [](World& w) { w.in.k.shape[3] = 7; }},
      {"k: batch is 3, but q has 2", [](World& w) { w.in.k.shape[0] = w.in.v.shape[0] = 3; }},
      {"v: batch is 1, but k has 2", [](World& w) { w.in.v.shape[0] = 1; }},
      {"v: heads_kv is 4, but k has 2", [](World& w) { w.in.v.shape[1] = 4; }},
      {"v: len_kv is 6, but k has 7", [](World& w) { w.in.v.shape[2] = 6; }},
      {"k: heads_kv is 3, which does not divide q's 4 heads", [](World& w) { w.in.k.shape[1] = w.in.v.shape[1] = 3; }},
      {"k: heads_kv is 0, which does not divide q's 4 heads", [](World& w) { w.in.k.shape[1] = w.in.v.shape[1] = 0; }},
      {"k: dtype is f16, but q has f32", [](World& w) { w.in.k.dtype = DType::kF16; }},
      {"v: dtype is f64, but q has f32", [](World& w) { w.in.v.dtype = DType::kF64; }},
      {"q: dtype is bool, but f32, f16, bf16 or f64 is wanted",
       [](World& w) { w.in.q.dtype = w.in.k.dtype = w.in.v.dtype = DType::kBool; }},
      {"q: data is null, but its shape is [2, 4, 5, 8]", [](World& w) { w.in.q.data = nullptr; }},
      {"v: data is null, but its shape is [2, 2, 7, 6]", [](World& w) { w.in.v.data = nullptr; }},
      {"k: lies on a GPU, but the CPU is to compute it (rootdk/cuda.h is for GPUs)",
       [](World& w) { w.in.k.device = Device::kCuda; }},
      {"k: data is not aligned to its f32 elements",
       [](World& w) { w.in.k.data = static_cast<const std::byte*>(w.in.k.data) + 1; }},
      {"q: shape is [2, -4, 5, 8], but sizes cannot be negative", [](World& w) { w.in.q.shape[1] = -4; }},
      {"v: shape is [2, 2, -7, 6], but sizes cannot be negative", [](World& w) { w.in.v.shape[2] = -7; }},
      {"dim_qk: 0, but 1 to 65536 is wanted", [](World& w) { w.in.q.shape[3] = w.in.k.shape[3] = 0; }},
      {"dim_v: 65537, but 1 to 65536 is wanted", [](World& w) { w.in.v.shape[3] = 65537; }},
      {"len_q: 536870913, but 0 to 536870912 is wanted", [](World& w) { w.in.q.shape[2] = (1 << 29) + 1; }},
      // Shapes and strides that overflow, or repeat one element more often than there are addresses.
      {"q: shape [2, 4, 5, 8] with strides [160, 40, 4611686018427387904, 1] reaches beyond any address",
       [](World& w) { w.in.q.strides[2] = std::int64_t{1} << 62; }},
      {"q: shape [2, 4, 5, 8] with strides [160, -9223372036854775808, 8, 1] reaches beyond any address",
       [](World& w) { w.in.q.strides[1] = -kMost - 1; }},
      {"k: shape [2, 2, 7, 8] with strides [2305843009213693952, 56, 8, 1] reaches beyond any address",
       [](World& w) { w.in.k.strides[0] = std::int64_t{1} << 61; }},
      {"q: shape [4294967296, 4, 4294967296, 8] with strides [0, 0, 0, 0] reaches beyond any address",
       [](World& w) { w.in.q.shape[0] = w.in.q.shape[2] = std::int64_t{1} << 32, w.in.q.strides = {}; }},
      {"batch × heads_q × length: 2 × 524288 × 536870912 rows are more than 1099511627776",
       [](World& w) { w.in.q.shape[1] = 1 << 19, w.in.q.shape[2] = 1 << 29, w.in.q.strides = {}; }},
  };
  expect_refused(table, kForward, "forward");
  expect_refused(table, kBackward, "backward");
}

TEST(Validate, PagesAreRefusedByForwardAndBackward) {
  const std::vector<Wrong> table = {
      {"paged.table: entry [1, 0] is 4, but k has 4 pages", [](World& w) { w.table[2] = 4, w.with_pages(); }},
      {"paged.table: entry [0, 1] is -1, but k has 4 pages", [](World& w) { w.table[1] = -1, w.with_pages(); }},
      {"paged.table: 3 entries, but batch 2 × pages_per_item 2 is wanted",
       [](World& w) { w.table.pop_back(), w.with_pages(); }},
      {"paged.table: 4 entries, but batch 2 × pages_per_item -2 is wanted",
       [](World& w) { w.with_pages().pages_per_item = -2; }},
      {"paged.pages_per_item: 2 pages of 4 keys cannot hold len_kv = 9", [](World& w) { w.with_pages().len_kv = 9; }},
      {"len_kv: -1, but 0 to 536870912 is wanted", [](World& w) { w.with_pages().len_kv = -1; }},
      {"k: page size is 0, but at least 1 is wanted",
       [](World& w) { w.with_pages(), w.in.k.shape[2] = w.in.v.shape[2] = 0; }},
      {"v: len_kv is 5, but k has 4", [](World& w) { w.with_pages(), w.in.v.shape[2] = 5; }},
      {"k: data is null, but its shape is [4, 2, 4, 8]", [](World& w) { w.with_pages(), w.in.k.data = nullptr; }},
  };
  expect_refused(table, kForward, "forward");
  expect_refused(table, kBackward, "backward");
  expect_refused({{"paged.len_kv: 8, but the plan's shape has 7", [](World& w) { w.with_pages().len_kv = 8; }}},
                 kMakePlan, "make_plan");
}

// One page that claims to hold every key there could ever be: a wrong table must not slip through an overflow.
TEST(Validate, HugePagesDoNotHideAWrongTable) {
  World w;
  w.table = {9, 9};
  w.problem.paged = PagedKv{w.table, 1, 7};
  w.in.q = tensor(static_cast<const float*>(w.in.q.data), {2, 4, 5, 1});
  w.in.k = w.in.v = {w.in.k.data, DType::kF32, Device::kCpu, {1, 1, kMost, 1}, {}};
  w.out.o = tensor(static_cast<float*>(w.out.o.data), {2, 4, 5, 1});
  const std::vector<float> before = w.memory;
  const std::string message = said_by(w, kForward);  // of the table or of the page size
  EXPECT_TRUE(message.starts_with("paged.table: ") || message.starts_with("k: ")) << message;
  EXPECT_EQ(before, w.memory);
}

TEST(Validate, OutputsAreRefusedByForward) {
  expect_refused(
      {
          {"o: shape is [2, 4, 5, 8], but [2, 4, 5, 6] is wanted", [](World& w) { w.out.o.shape[3] = 8; }},
          {"o: shape is [2, 2, 5, 6], but [2, 4, 5, 6] is wanted", [](World& w) { w.out.o.shape[1] = 2; }},
          {"o: dtype is bf16, but f32 is wanted", [](World& w) { w.out.o.dtype = DType::kBF16; }},
          {"o: data is null, but its shape is [2, 4, 5, 6]", [](World& w) { w.out.o.data = nullptr; }},
          {"o: data is not aligned to its f32 elements",
           [](World& w) { w.out.o.data = static_cast<std::byte*>(w.out.o.data) + 3; }},
          {"o: lies on a GPU, but the CPU is to compute it (rootdk/cuda.h is for GPUs)",
           [](World& w) { w.out.o.device = Device::kCuda; }},
          {"o: shape [2, 4, 5, 6] with strides [120, 9223372036854775807, 6, 1] reaches beyond any address",
           [](World& w) { w.out.o.strides[1] = kMost; }},
          {"lse: dtype is f16, but f32 is wanted", [](World& w) { w.out.lse.dtype = DType::kF16; }},
          {"lse: shape is [2, 4, 5, 2], but [2, 4, 5, 1] is wanted", [](World& w) { w.out.lse.shape[3] = 2; }},
          {"lse: dtype is f32, but f64 is wanted",
           [](World& w) { w.in.q.dtype = w.in.k.dtype = w.in.v.dtype = w.out.o.dtype = DType::kF64; }},
          {"lse: dtype is f64, but f32 is wanted",
           [](World& w) {
             w.in.q.dtype = w.in.k.dtype = w.in.v.dtype = w.out.o.dtype = DType::kF16, w.out.lse.dtype = DType::kF64;
           }},
          {"rows.raw_max: shape is [2, 4, 4, 1], but [2, 4, 5, 1] is wanted",
           [](World& w) { w.out.rows.raw_max.shape[2] = 4; }},
          {"rows.score_max: dtype is bf16, but f32 is wanted",
           [](World& w) { w.out.rows.score_max.dtype = DType::kBF16; }},
          {"rows.p_max: data is not aligned to its f32 elements",
           [](World& w) { w.out.rows.p_max.data = static_cast<std::byte*>(w.out.rows.p_max.data) + 2; }},
          // Overlaps: whole, by one element, by two bytes of one, with itself, with another output.
          {"o: overlaps the input q", [](World& w) { w.out.o.data = const_cast<void*>(w.in.q.data); }},
          {"o: overlaps the input v",
           [](World& w) { w.out.o.data = static_cast<float*>(const_cast<void*>(w.in.v.data)) + w.in.v.count() - 1; }},
          {"o: overlaps the input q",
           [](World& w) { w.out.o.data = static_cast<float*>(const_cast<void*>(w.in.q.data)) - w.out.o.count() + 1; }},
          {"o: overlaps the input bias", [](World& w) { w.out.o.data = const_cast<void*>(w.with_bias().bias.data); }},
          {"lse: overlaps the input mask",
           [](World& w) { w.out.lse.data = const_cast<void*>(w.with_allowed().allowed.data); }},
          {"lse: overlaps the input sink",
           [](World& w) {
             w.problem.sink = {static_cast<float*>(w.out.lse.data) + 36, 4};
           }},
          {"o: strides [120, 30, 0, 1] make it overlap itself", [](World& w) { w.out.o.strides[2] = 0; }},
          {"o: strides [120, 30, 5, 1] make it overlap itself", [](World& w) { w.out.o.strides[2] = 5; }},
          {"o: strides [120, 30, -5, 1] make it overlap itself", [](World& w) { w.out.o.strides[2] = -5; }},
          {"o: overlaps the output lse", [](World& w) { w.out.lse.data = static_cast<float*>(w.out.o.data) + 17; }},
          {"rows.entropy: wanted, but the problem's stats are not full",
           [](World& w) {
             w.out.rows.entropy = w.take({2, 4, 5, 1});
           }},
          {"rows.sum_p3: shape is [2, 4, 5, 2], but [2, 4, 5, 1] is wanted",
           [](World& w) {
             w.problem.stats = StatsLevel::kFull, w.out.rows.sum_p3 = w.take({2, 4, 5, 2});
           }},
          {"key_mass: a tensor is given, but stats.key_mass is off",
           [](World& w) {
             w.out.key_mass = w.take({2, 4, 7, 1});
           }},
          {"key_mass: shape is [2, 4, 5, 1], but [2, 4, 7, 1] is wanted",
           [](World& w) {
             w.problem.stats_options.key_mass = true, w.out.key_mass = w.take({2, 4, 5, 1});
           }},
          {"key_mass: overlaps the input q",
           [](World& w) {
             w.problem.stats_options.key_mass = true,
             w.out.key_mass = tensor(const_cast<float*>(static_cast<const float*>(w.in.q.data)), {2, 4, 7, 1});
           }},
          {"rows.raw_max: overlaps the output rows.p_max", [](World& w) { w.out.rows.p_max = w.out.rows.raw_max; }},
      },
      kForward, "forward");
}

// What kernels read while they write: integer arrays as much as tensors.
TEST(Validate, OutputsMayNotOverlapIndexArrays) {
  const auto with_o_at = [](World& w, const void* where) { w.out.o.data = const_cast<void*>(where); };
  for (const Wrong& wrong : std::vector<Wrong>{
           {"o: overlaps the input key_lengths",
            [&](World& w) { w.lengths.reserve(1000), w.with_lengths(), with_o_at(w, w.lengths.data()); }},
           {"o: overlaps the input documents of q",
            [&](World& w) { w.q_starts.reserve(1000), w.with_documents(), with_o_at(w, w.q_starts.data()); }},
           {"o: overlaps the input documents of k",
            [&](World& w) { w.kv_starts.reserve(1000), w.with_documents(), with_o_at(w, w.kv_starts.data()); }},
           {"o: overlaps the input paged.table",
            [&](World& w) { w.table.reserve(1000), w.with_pages(), with_o_at(w, w.table.data()); }}})
    expect_refused(wrong, kForward, "forward");
}

TEST(Validate, BackwardRefusesItsOwn) {
  expect_refused(
      {
          {"o: shape is [2, 4, 5, 5], but [2, 4, 5, 6] is wanted", [](World& w) { w.back.o.shape[3] = 5; }},
          {"lse: shape is [0, 0, 0, 0], but [2, 4, 5, 1] is wanted", [](World& w) { w.back.lse = {}; }},
          {"lse: dtype is f64, but f32 is wanted", [](World& w) { w.back.lse.dtype = DType::kF64; }},
          {"lse: data is null, but its shape is [2, 4, 5, 1]", [](World& w) { w.back.lse.data = nullptr; }},
          {"lse: dtype is f32, but f64 is wanted",
           [](World& w) {
             w.in.q.dtype = w.in.k.dtype = w.in.v.dtype = w.back.o.dtype = w.back.d_o.dtype = DType::kF64;
           }},
          {"d_o: dtype is f16, but f32 is wanted", [](World& w) { w.back.d_o.dtype = DType::kF16; }},
          {"d_o: shape is [1, 4, 5, 6], but [2, 4, 5, 6] is wanted", [](World& w) { w.back.d_o.shape[0] = 1; }},
          {"d_lse: shape is [2, 4, 1, 1], but [2, 4, 5, 1] is wanted", [](World& w) { w.back.d_lse.shape[2] = 1; }},
          {"d_q: shape is [2, 4, 5, 6], but [2, 4, 5, 8] is wanted", [](World& w) { w.grad.d_q.shape[3] = 6; }},
          {"d_k: shape is [2, 4, 7, 8], but [2, 2, 7, 8] is wanted", [](World& w) { w.grad.d_k.shape[1] = 4; }},
          {"d_k: shape is [4, 2, 4, 8], but [2, 2, 7, 8] is wanted",
           [](World& w) {
             w.with_pages(), w.grad.d_k.shape = {4, 2, 4, 8};
           }},
          {"d_v: dtype is f64, but f32 is wanted", [](World& w) { w.grad.d_v.dtype = DType::kF64; }},
          {"d_v: data is not aligned to its f32 elements",
           [](World& w) { w.grad.d_v.data = static_cast<std::byte*>(w.grad.d_v.data) + 1; }},
          {"d_scale: 3 values, but there are 4 query heads",
           [](World& w) { w.grad.d_scale = w.grad.d_scale.first(3); }},
          {"d_sink: wanted, but the problem has no sink", [](World& w) { w.grad.d_sink = w.floats(4); }},
          {"d_sink: 1 values, but there are 4 query heads",
           [](World& w) { w.with_sink(), w.grad.d_sink = w.floats(1); }},
          {"d_log_n_gain: wanted, but the scale has no log-n part (ssmax)",
           [](World& w) { w.grad.d_log_n_gain = w.floats(4); }},
          {"d_log_n_offset: wanted, but the scale has no log-n part (ssmax)",
           [](World& w) {
             w.problem.scale = Scale::none().with_entropy_invariance(), w.grad.d_log_n_offset = w.floats(4);
           }},
          {"d_log_n_offset: 2 values, but there are 4 query heads",
           [](World& w) { w.problem.scale = Scale::none().with_ssmax(1), w.grad.d_log_n_offset = w.floats(2); }},
          {"d_log_n_gain: overlaps the input scale.head_gains",
           [](World& w) { w.grad.d_log_n_gain = w.per_head, w.problem.scale = Scale::none().with_ssmax(w.per_head); }},
          {"d_bias: wanted, but the problem has no bias",
           [](World& w) {
             w.grad.d_bias = w.take({2, 4, 5, 7});
           }},
          {"d_bias: shape is [2, 4, 5, 7], but [2, 4, 1, 7] is wanted",
           [](World& w) {
             w.with_bias().bias.shape[2] = 1, w.grad.d_bias = w.take({2, 4, 5, 7});
           }},
          {"d_bias: dtype is f16, but f32 or f32 is wanted",
           [](World& w) {
             w.with_bias(), w.grad.d_bias = w.take({2, 4, 5, 7}), w.grad.d_bias.dtype = DType::kF16;
           }},
          {"d_q: overlaps the output d_k",
           [](World& w) { w.grad.d_k.data = static_cast<float*>(w.grad.d_q.data) + 319; }},
          {"d_v: overlaps the output d_scale",
           [](World& w) {
             w.grad.d_scale = {static_cast<float*>(w.grad.d_v.data) + 8, 4};
           }},
          {"d_q: overlaps the input d_o", [](World& w) { w.grad.d_q.data = const_cast<void*>(w.back.d_o.data); }},
          {"d_k: overlaps the input lse",
           [](World& w) { w.grad.d_k.data = static_cast<float*>(const_cast<void*>(w.back.lse.data)) + 39; }},
          {"d_v: overlaps the input v", [](World& w) { w.grad.d_v.data = const_cast<void*>(w.in.v.data); }},
          {"d_q: strides [160, 40, 8, 0] make it overlap itself", [](World& w) { w.grad.d_q.strides[3] = 0; }},
          {"d_k: strides [112, 0, 8, 1] make it overlap itself", [](World& w) { w.grad.d_k.strides[1] = 0; }},
      },
      kBackward, "backward");
}

TEST(Validate, MergeRefuses) {
  expect_refused(
      {
          {"o: dtype is bool, but f32, f16, bf16 or f64 is wanted", [](World& w) { w.out.o.dtype = DType::kBool; }},
          {"o: data is null, but its shape is [2, 4, 5, 6]", [](World& w) { w.out.o.data = nullptr; }},
          {"o: shape is [2, 4, -5, 6], but sizes cannot be negative", [](World& w) { w.out.o.shape[2] = -5; }},
          {"o: strides [120, 30, 0, 1] make it overlap itself", [](World& w) { w.out.o.strides[2] = 0; }},
          {"lse: shape is [2, 4, 5, 6], but [2, 4, 5, 1] is wanted", [](World& w) { w.out.lse = w.out.o; }},
          {"lse: dtype is f32, but f64 is wanted", [](World& w) { w.out.o.dtype = DType::kF64; }},
          {"lse: shape is [0, 0, 0, 0], but [2, 4, 5, 1] is wanted", [](World& w) { w.out.lse = {}; }},
          {"other_o: dtype is f16, but f32 is wanted", [](World& w) { w.other_o.dtype = DType::kF16; }},
          {"other_o: shape is [2, 4, 5, 5], but [2, 4, 5, 6] is wanted", [](World& w) { w.other_o.shape[3] = 5; }},
          {"other_lse: data is null, but its shape is [2, 4, 5, 1]", [](World& w) { w.other_lse.data = nullptr; }},
          {"other_lse: data is not aligned to its f32 elements",
           [](World& w) { w.other_lse.data = static_cast<const std::byte*>(w.other_lse.data) + 1; }},
          {"o: overlaps the input other_o", [](World& w) { w.other_o = w.out.o; }},
          {"o: overlaps the output lse", [](World& w) { w.out.lse.data = w.out.o.data; }},
          {"lse: overlaps the input other_lse", [](World& w) { w.other_lse = w.out.lse; }},
      },
      kMerge, "merge");
}

// A dtype from a foreign header is just a number; it must not become a division by its size, which is 0.
TEST(Validate, UnknownDTypesAreRefused) {
  const auto unknown = static_cast<DType>(99);
  expect_refused({{"q: dtype is unknown, but f32, f16, bf16 or f64 is wanted",
                   [&](World& w) {
                     w.in.q.dtype = w.in.k.dtype = w.in.v.dtype = w.out.o.dtype = w.back.o.dtype = w.back.d_o.dtype =
                         unknown;
                   }}},
                 kForward, "forward");
  expect_refused({{"o: dtype is unknown, but f32, f16, bf16 or f64 is wanted",
                   [&](World& w) { w.out.o.dtype = w.other_o.dtype = unknown; }}},
                 kMerge, "merge");
}

// A view of 2^40 rows costs its caller nothing, so finding out whether it overlaps may not cost a list of them.
TEST(Validate, HugeViewsAreCheckedWithoutMemory) {
  std::vector<float> gaps(2 * 65 * 2048);  // o takes every second element, k another
  expect_refused(
      {{"o: strides [1, 1, 1, 1] make it overlap itself",
        [](World& w) {
          w.in.q = {w.in.q.data, DType::kF32, Device::kCpu, {1 << 20, 1, 1 << 20, 1}, {}};
          w.in.k = w.in.v = {w.in.k.data, DType::kF32, Device::kCpu, {1 << 20, 1, 1, 1}, {}};
          w.out = {{w.out.o.data, DType::kF32, Device::kCpu, w.in.q.shape, {1, 1, 1, 1}}};
        }},
       {"lse: strides [0, 0, 0, 0] make it overlap itself",  // after k's 2^40 repetitions were found to be no obstacle
        [&](World& w) {
          w.in.q = {w.in.q.data, DType::kF32, Device::kCpu, {1, 2048, 65, 1}, {}};
          w.in.k = w.in.v = {gaps.data() + 1, DType::kF32, Device::kCpu, {1, 2048, 1 << 29, 1}, {}};
          w.out = {{gaps.data(), DType::kF32, Device::kCpu, {1, 2048, 65, 1}, {0, 2 * 65, 2, 1}}, w.out.lse};
          w.out.lse.shape = {1, 2048, 65, 1}, w.out.lse.strides = {};
        }}},
      kForward, "forward");
}

/// Plans run in a workspace: what the convenience calls cannot get wrong.
TEST(Validate, PlansAndWorkspacesAreChecked) {
  World w;
  Plan there = make_plan(w.problem, w.shape(), Pass::kForward),
       again = make_plan(w.problem, w.shape(), Pass::kBackward);
  alignas(64) static std::byte memory[1 << 20];
  ASSERT_LE(std::max(there.workspace_bytes, again.workspace_bytes) + 64, sizeof(memory));
  const std::span<std::byte> enough(memory);
  const auto bytes = [](std::size_t n) { return std::to_string(n); };
  const std::vector<float> before = w.memory;
  const auto says = [&](const std::string& message, const auto& call) {
    EXPECT_EQ(said_by(w, [&](World&) { call(); }), message);
    EXPECT_EQ(before, w.memory) << message;
  };
  says("plan: made for backward, but forward was called", [&] { forward(again, w.in, w.out, enough); });
  says("plan: made for forward, but backward was called", [&] { backward(there, w.back, w.grad, enough); });
  says("workspace: " + bytes(there.workspace_bytes - 1) + " bytes, but the plan needs " + bytes(there.workspace_bytes),
       [&] { forward(there, w.in, w.out, enough.first(there.workspace_bytes - 1)); });
  says("workspace: 0 bytes, but the plan needs " + bytes(again.workspace_bytes),
       [&] { backward(again, w.back, w.grad, {}); });
  says("workspace: not aligned to 64 bytes", [&] { forward(there, w.in, w.out, enough.subspan(32)); });
  says("workspace: not aligned to 64 bytes", [&] { backward(again, w.back, w.grad, enough.subspan(1)); });

  // Tensors that fit each other, but not the plan.
  Inputs shorter = w.in;
  shorter.k.shape[2] = shorter.v.shape[2] = 6;
  says("k: shape is [2, 2, 6, 8], but [2, 2, 7, 8] is wanted", [&] { forward(there, shorter, w.out, enough); });
  Inputs fewer = w.in;
  fewer.q.shape[0] = 1;
  says("q: shape is [1, 4, 5, 8], but [2, 4, 5, 8] is wanted", [&] { forward(there, fewer, w.out, enough); });
  Inputs half = w.in;
  half.q.dtype = half.k.dtype = half.v.dtype = DType::kF16;
  says("q: dtype is f16, but f32 is wanted", [&] { forward(there, half, w.out, enough); });

  // Arrays that a plan refers to may have changed since it was made.
  w.with_lengths();
  const Plan later = make_plan(w.problem, w.shape());
  w.lengths[0] = 1000;
  says("key_lengths: entry 0 is 1000, but 0 to len_kv (7) is wanted", [&] { forward(later, w.in, w.out, enough); });

  there.kernel = "magic", there.isa = "Z80";
  says("plan: no kernel here is called magic Z80", [&] { forward(there, w.in, w.out, enough); });
}

TEST(Validate, ShapesAreCheckedByMakePlan) {
  const auto says = [](const char* message, const auto& change) {
    World w;
    Shape s = w.shape();
    change(s);
    EXPECT_EQ(said_by(w, [&](World&) { make_plan({}, s); }), message);
  };
  says("batch: -1, but 0 to 536870912 is wanted", [](Shape& s) { s.batch = -1; });
  says("heads_q: -4, but 0 to 536870912 is wanted", [](Shape& s) { s.heads_q = -4; });
  says("heads_kv: 536870913, but 0 to 536870912 is wanted", [](Shape& s) { s.heads_kv = (1 << 29) + 1; });
  says("len_q: -9223372036854775808, but 0 to 536870912 is wanted", [](Shape& s) { s.len_q = -kMost - 1; });
  says("len_kv: 9223372036854775807, but 0 to 536870912 is wanted", [](Shape& s) { s.len_kv = kMost; });
  says("dim_qk: 0, but 1 to 65536 is wanted", [](Shape& s) { s.dim_qk = 0; });
  says("dim_v: -6, but 1 to 65536 is wanted", [](Shape& s) { s.dim_v = -6; });
  says("k: heads_kv is 3, which does not divide q's 4 heads", [](Shape& s) { s.heads_kv = 3; });
  says("q: dtype is bool, but f32, f16, bf16 or f64 is wanted", [](Shape& s) { s.dtype = DType::kBool; });
  says("batch × heads_q × length: 536870912 × 536870912 × 536870912 rows are more than 1099511627776",
       [](Shape& s) { s.batch = s.heads_q = s.len_kv = 1 << 29; });
}

// ---- What must be accepted.

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};

/// Results of a call as doubles; views that hold the same numbers must give the same ones, bit for bit.
struct Numbers {
  std::vector<double> o, lse, d_q, d_k, d_v;
  bool operator==(const Numbers&) const = default;
};

std::vector<double> values(const ConstTensor& t) {
  std::vector<double> out;
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t l = 0; l < t.shape[2]; ++l)
        for (std::int64_t d = 0; d < t.shape[3]; ++d) out.push_back(base::read(t, b, h, l, d));
  return out;
}

/// A row-major copy.
Buffer packed(const ConstTensor& t) {
  Buffer copy(t.dtype, t.shape);
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t l = 0; l < t.shape[2]; ++l)
        for (std::int64_t d = 0; d < t.shape[3]; ++d) copy.set(b, h, l, d, base::read(t, b, h, l, d));
  return copy;
}

DType row_type(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Numbers run(const Problem& problem, const Inputs& in, const ConstTensor& d_o, const Tensor& o, const Tensor& d_q,
            const Tensor& d_k, const Tensor& d_v) {
  Buffer lse(row_type(in.q.dtype), {in.q.shape[0], in.q.shape[1], in.q.shape[2], 1});
  forward(problem, in, {o, lse.tensor()});
  backward(problem, {in.q, in.k, in.v, o, lse.tensor(), d_o}, {d_q, d_k, d_v});
  return {values(o), lse.values(), values(d_q), values(d_k), values(d_v)};
}

/// The same on row-major copies.
Numbers run_packed(const Problem& problem, const Inputs& in, const ConstTensor& d_o) {
  const Buffer q = packed(in.q), k = packed(in.k), v = packed(in.v), g = packed(d_o);
  Buffer o(in.q.dtype, d_o.shape), d_q(in.q.dtype, in.q.shape), d_k(in.q.dtype, in.k.shape),
      d_v(in.q.dtype, in.v.shape);
  return run(problem, {q.tensor(), k.tensor(), v.tensor()}, g.tensor(), o.tensor(), d_q.tensor(), d_k.tensor(),
             d_v.tensor());
}

/// Part `part` of packed [B, T, 3, H, D] memory as [B, H, T, D].
Tensor part_of(Buffer& qkv, std::int64_t part, std::int64_t heads, std::int64_t dim) {
  Tensor t = qkv.tensor();  // [B, T, 3, H·D]
  const std::int64_t batch = t.shape[0], length = t.shape[1], token = 3 * heads * dim;
  t.data = static_cast<std::byte*>(t.data) + part * heads * dim * size_of(t.dtype);
  t.shape = {batch, heads, length, dim};
  t.strides = {length * token, dim, token, 1};
  return t;
}

TEST(Accept, PackedQkvInAndOut) {
  constexpr std::int64_t kBatch = 2, kHeads = 3, kLength = 37, kDim = 16;
  for (const DType dtype : kTypes) {
    Rng rng(2);
    Buffer qkv(dtype, {kBatch, kLength, 3, kHeads * kDim}), d_qkv(dtype, {kBatch, kLength, 3, kHeads * kDim});
    Buffer d_o(dtype, {kBatch, kHeads, kLength, kDim}, Layout::kTokensFirst),
        o(dtype, {kBatch, kHeads, kLength, kDim}, Layout::kTokensFirst);
    qkv.fill_normal(rng, 1);
    d_o.fill_normal(rng, 1);
    const auto in = [&](std::int64_t part) { return part_of(qkv, part, kHeads, kDim); };
    const auto out = [&](std::int64_t part) { return part_of(d_qkv, part, kHeads, kDim); };
    Problem problem;
    problem.mask = Mask::make_causal();
    const Inputs inputs{in(0), in(1), in(2)};
    const Numbers views = run(problem, inputs, d_o.tensor(), o.tensor(), out(0), out(1), out(2));
    EXPECT_EQ(views, run_packed(problem, inputs, d_o.tensor())) << name_of(dtype);
    EXPECT_TRUE(o.guards_intact() && d_qkv.guards_intact() && qkv.guards_intact()) << name_of(dtype);
  }
}

/// The tensor back to front along the axes in `axes` (bits).
template <class Void>
BasicTensor<Void> reversed(BasicTensor<Void> t, unsigned axes) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if ((axes >> axis & 1) == 0) continue;
    t.data = static_cast<Byte*>(t.data) + (t.shape[axis] - 1) * t.strides[axis] * size_of(t.dtype);
    t.strides[axis] = -t.strides[axis];
  }
  return t;
}

TEST(Accept, NegativeStridesOnEveryAxis) {
  const Extents kQ = {2, 4, 19, 12}, kK = {2, 2, 23, 12}, kV = {2, 2, 23, 9}, kO = {2, 4, 19, 9};
  for (const DType dtype : kTypes)
    for (unsigned axes = 1; axes < 16; ++axes) {
      Rng rng(axes);
      Buffer q(dtype, kQ), k(dtype, kK), v(dtype, kV), d_o(dtype, kO), o(dtype, kO), d_q(dtype, kQ), d_k(dtype, kK),
          d_v(dtype, kV);
      for (Buffer* b : {&q, &k, &v, &d_o}) b->fill_normal(rng, 1);
      const unsigned others = 15 - axes;  // some tensors one way, some the other
      const Inputs in{reversed(q.tensor(), axes), reversed(k.tensor(), others), reversed(v.tensor(), axes)};
      const ConstTensor g = reversed(d_o.tensor(), others);
      const Numbers views = run({}, in, g, reversed(o.tensor(), axes), reversed(d_q.tensor(), others),
                                reversed(d_k.tensor(), axes), reversed(d_v.tensor(), others));
      EXPECT_EQ(views, run_packed({}, in, g)) << name_of(dtype) << ", axes " << axes;
      for (const Buffer* b : {&o, &d_q, &d_k, &d_v}) EXPECT_TRUE(b->guards_intact());
    }
}

TEST(Accept, InputsThatRepeatAnAxis) {
  const Extents kQ = {2, 4, 19, 12}, kK = {2, 2, 23, 12}, kV = {2, 2, 23, 9}, kO = {2, 4, 19, 9};
  for (const DType dtype : kTypes)
    for (std::size_t axis = 0; axis < 4; ++axis) {
      Rng rng(axis);
      Buffer q(dtype, kQ), k(dtype, kK), v(dtype, kV), d_o(dtype, kO), o(dtype, kO), d_q(dtype, kQ), d_k(dtype, kK),
          d_v(dtype, kV);
      for (Buffer* b : {&q, &k, &v, &d_o}) b->fill_normal(rng, 1);
      Inputs in{q.tensor(), k.tensor(), v.tensor()};
      ConstTensor g = d_o.tensor();
      for (ConstTensor* t : {&in.q, &in.k, &in.v, &g}) t->strides[axis] = 0;
      EXPECT_EQ(run({}, in, g, o.tensor(), d_q.tensor(), d_k.tensor(), d_v.tensor()), run_packed({}, in, g))
          << name_of(dtype) << ", axis " << axis;
    }
}

// K may be V, and Q as well: only outputs must stand alone.
TEST(Accept, InputsThatAreTheSameMemory) {
  Rng rng(3);
  const Extents shape = {1, 2, 21, 8};
  Buffer x(DType::kF32, shape), d_o(DType::kF32, shape), o(DType::kF32, shape), d_q(DType::kF32, shape),
      d_k(DType::kF32, shape), d_v(DType::kF32, shape);
  x.fill_normal(rng, 1), d_o.fill_normal(rng, 1);
  const Inputs in{x.tensor(), x.tensor(), x.tensor()};
  EXPECT_EQ(run({}, in, d_o.tensor(), o.tensor(), d_q.tensor(), d_k.tensor(), d_v.tensor()),
            run_packed({}, in, d_o.tensor()));
}

// A stride that is never taken may be anything.
TEST(Accept, AnyStrideOnAnAxisOfSizeOne) {
  Rng rng(4);
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-7}, kMost, -kMost - 1}) {
    Buffer q(DType::kF32, {1, 1, 5, 8}), k(DType::kF32, {1, 1, 6, 8}), v(DType::kF32, {1, 1, 6, 8}),
        d_o(DType::kF32, {1, 1, 5, 8});
    Buffer o(DType::kF32, {1, 1, 5, 8}), d_q(DType::kF32, {1, 1, 5, 8}), d_k(DType::kF32, {1, 1, 6, 8}),
        d_v(DType::kF32, {1, 1, 6, 8});
    for (Buffer* b : {&q, &k, &v, &d_o}) b->fill_normal(rng, 1);
    const auto odd = [&](auto t) {
      t.strides[0] = t.strides[1] = stride;
      return t;
    };
    const Inputs in{odd(q.tensor()), odd(k.tensor()), odd(v.tensor())};
    EXPECT_EQ(run({}, in, odd(d_o.tensor()), odd(o.tensor()), odd(d_q.tensor()), odd(d_k.tensor()), odd(d_v.tensor())),
              run_packed({}, in, odd(d_o.tensor())))
        << stride;
  }
}

// Empty on any axis but the dims, data null where there is none. Rows that see nothing are 0, with lse −inf.
TEST(Accept, NothingOnAnyAxis) {
  struct Sizes {
    std::int64_t batch, heads_q, heads_kv, len_q, len_kv;
  };
  for (const DType dtype : kTypes)
    for (const Sizes& s : {Sizes{0, 4, 2, 5, 7}, Sizes{2, 0, 0, 5, 7}, Sizes{2, 0, 2, 5, 7}, Sizes{2, 4, 2, 0, 7},
                           Sizes{2, 4, 2, 5, 0}, Sizes{2, 4, 2, 0, 0}, Sizes{0, 0, 0, 0, 0}}) {
      const Extents sq = {s.batch, s.heads_q, s.len_q, 8}, sk = {s.batch, s.heads_kv, s.len_kv, 8};
      const Extents sv = {s.batch, s.heads_kv, s.len_kv, 6};
      const Extents so = {s.batch, s.heads_q, s.len_q, 6}, rows = {s.batch, s.heads_q, s.len_q, 1};
      Buffer q(dtype, sq), k(dtype, sk), v(dtype, sv), o(dtype, so), lse(row_type(dtype), rows), d_o(dtype, so);
      Buffer d_q(dtype, sq), d_k(dtype, sk), d_v(dtype, sv);
      for (Buffer* b : {&q, &k, &v, &o, &d_o, &lse, &d_q, &d_k, &d_v}) b->fill(5);
      const auto null_if_empty = [](Tensor t) {
        if (t.count() == 0) t.data = nullptr;
        return t;
      };
      const Inputs in{null_if_empty(q.tensor()), null_if_empty(k.tensor()), null_if_empty(v.tensor())};
      std::vector<float> d_scale(static_cast<std::size_t>(s.heads_q), 5.0f);
      const Stats stats = forward({}, in, {null_if_empty(o.tensor()), null_if_empty(lse.tensor())});
      backward({},
               {in.q, in.k, in.v, null_if_empty(o.tensor()), null_if_empty(lse.tensor()), null_if_empty(d_o.tensor())},
               {null_if_empty(d_q.tensor()), null_if_empty(d_k.tensor()), null_if_empty(d_v.tensor()), d_scale});
      EXPECT_EQ(stats.per_head.size(), static_cast<std::size_t>(s.batch * s.heads_q));
      for (const HeadStats& head : stats.per_head) {
        EXPECT_EQ(head.row_count, s.len_q);
        EXPECT_EQ(head.rows_masked, s.len_kv == 0 ? s.len_q : 0);
      }
      const auto all_are = [](const std::vector<double>& x, double value) {
        return std::all_of(x.begin(), x.end(), [&](double y) { return y == value; });
      };
      // Wherever there is an output at all here, its rows saw no key (or its keys were seen by no row).
      EXPECT_TRUE(all_are(o.values(), 0) && all_are(lse.values(), -static_cast<double>(kInf)));
      EXPECT_TRUE(all_are(d_q.values(), 0) && all_are(d_k.values(), 0) && all_are(d_v.values(), 0));
      EXPECT_TRUE(all_are({d_scale.begin(), d_scale.end()}, 0));
      for (const Buffer* b : {&o, &lse, &d_q, &d_k, &d_v}) EXPECT_TRUE(b->guards_intact());
    }
}

TEST(Accept, MergeOfNothing) {
  const Tensor empty{nullptr, DType::kF32, Device::kCpu, {2, 0, 5, 6}, {}},
      rows{nullptr, DType::kF32, Device::kCpu, {2, 0, 5, 1}, {}};
  EXPECT_NO_THROW(merge(empty, rows, empty, rows));
}

}  // namespace
}  // namespace rootdk::test
