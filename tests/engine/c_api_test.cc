// The C ABI says what the C++ API says: the same bits for every field of a problem, and a code and a message for bad
// input.
#include "rootdk/c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rootdk/rootdk.h"
#include "rootdk/version.h"

namespace rootdk {
namespace {

constexpr std::int64_t kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kLenQ = 5, kLenKv = 9, kDimQk = 8, kDimV = 6;
constexpr Extents kQ = {kBatch, kHeadsQ, kLenQ, kDimQk}, kK = {kBatch, kHeadsKv, kLenKv, kDimQk},
                  kV = {kBatch, kHeadsKv, kLenKv, kDimV}, kO = {kBatch, kHeadsQ, kLenQ, kDimV},
                  kRows = {kBatch, kHeadsQ, kLenQ, 1}, kScores = {kBatch, kHeadsQ, kLenQ, kLenKv};
constexpr float kUntouched = -123;

std::size_t count(const Extents& e) { return static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]); }

std::vector<float> random_floats(const Extents& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x(count(shape));
  for (float& value : x) value = std::normal_distribution<float>()(random);
  return x;
}

rootdk_tensor c_view(const std::vector<float>& x, const Extents& s) {
  return rootdk_row_major(x.data(), ROOTDK_F32, s[0], s[1], s[2], s[3]);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool untouched(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return value == kUntouched; });
}

/// Everything forward and backward write.
struct Results {
  std::vector<float> o = blank(kO), lse = blank(kRows), raw_max = blank(kRows), score_max = blank(kRows),
                     p_max = blank(kRows);
  std::vector<float> d_q = blank(kQ), d_k = blank(kK), d_v = blank(kV), d_bias = blank(kScores);
  std::vector<float> d_scale = blank({1, 1, 1, kHeadsQ}), d_sink = blank({1, 1, 1, kHeadsQ});
  std::vector<rootdk_head_stats> heads = std::vector<rootdk_head_stats>(kBatch * kHeadsQ, blank_head());

  static rootdk_head_stats blank_head() {
    rootdk_head_stats head = {};
    head.row_count = head.reserved[0] = 77;
    return head;
  }
  static std::vector<float> blank(const Extents& shape) { return std::vector<float>(count(shape), kUntouched); }
  std::vector<const std::vector<float>*> all() const {
    return {&o, &lse, &raw_max, &score_max, &p_max, &d_q, &d_k, &d_v, &d_bias, &d_scale, &d_sink};
  }
};

/// One set of tensors, described in both languages.
class CApi : public ::testing::Test {
 protected:
  CApi() {
    rootdk_problem_init(&problem);
    c_inputs.q = c_view(q, kQ);
    c_inputs.k = c_view(k, kK);
    c_inputs.v = c_view(v, kV);
    c_outputs.o = c_view(c.o, kO);
    c_outputs.lse = c_view(c.lse, kRows);
    c_outputs.row_raw_max = c_view(c.raw_max, kRows);
    c_outputs.row_score_max = c_view(c.score_max, kRows);
    c_outputs.row_p_max = c_view(c.p_max, kRows);
    c_outputs.head_stats = c.heads.data();
    c_outputs.head_stats_count = kBatch * kHeadsQ;
    c_backward.q = c_inputs.q;
    c_backward.k = c_inputs.k;
    c_backward.v = c_inputs.v;
    c_backward.o = c_outputs.o;
    c_backward.lse = c_outputs.lse;
    c_backward.d_o = c_view(d_o, kO);
    c_backward.d_lse = c_view(d_lse, kRows);
    c_gradients.d_q = c_view(c.d_q, kQ);
    c_gradients.d_k = c_view(c.d_k, kK);
    c_gradients.d_v = c_view(c.d_v, kV);
    c_gradients.d_scale = {c.d_scale.data(), kHeadsQ};
  }

  Inputs inputs() const { return {tensor(q.data(), kQ), tensor(k.data(), kK), tensor(v.data(), kV)}; }

  Stats run_cpp(const Problem& p) {
    const Stats stats = forward(
        p, inputs(),
        {tensor(cpp.o.data(), kO),
         tensor(cpp.lse.data(), kRows),
         {tensor(cpp.raw_max.data(), kRows), tensor(cpp.score_max.data(), kRows), tensor(cpp.p_max.data(), kRows)}});
    Gradients gradients = {
        tensor(cpp.d_q.data(), kQ), tensor(cpp.d_k.data(), kK), tensor(cpp.d_v.data(), kV), cpp.d_scale, {}, {}};
    if (p.mask.bias.present()) gradients.d_bias = tensor(cpp.d_bias.data(), kScores);
    if (!p.sink.empty()) gradients.d_sink = cpp.d_sink;
    const Inputs in = inputs();
    backward(p,
             {in.q, in.k, in.v, tensor(cpp.o.data(), kO), tensor(cpp.lse.data(), kRows), tensor(d_o.data(), kO),
              tensor(d_lse.data(), kRows)},
             gradients);
    return stats;
  }

  void run_c(void* workspace = nullptr, std::size_t size = 0) {
    ASSERT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, workspace, size), ROOTDK_OK) << rootdk_last_error();
    if (problem.bias.data != nullptr) c_gradients.d_bias = c_view(c.d_bias, kScores);
    if (problem.sink.data != nullptr) c_gradients.d_sink = {c.d_sink.data(), kHeadsQ};
    ASSERT_EQ(rootdk_backward(&problem, &c_backward, &c_gradients, workspace, size), ROOTDK_OK) << rootdk_last_error();
    EXPECT_STREQ(rootdk_last_error(), "");
  }

  void expect_same(const Stats& stats) {
    const auto from_c = c.all(), from_cpp = cpp.all();
    for (std::size_t i = 0; i < from_c.size(); ++i) EXPECT_TRUE(same_bits(*from_c[i], *from_cpp[i])) << "tensor " << i;
    ASSERT_EQ(stats.per_head.size(), c.heads.size());
    for (std::size_t h = 0; h < c.heads.size(); ++h) {
      const HeadStats& a = stats.per_head[h];
      const rootdk_head_stats& b = c.heads[h];
      EXPECT_EQ(b.reserved[0], 0u);
      EXPECT_EQ(a.row_count, b.row_count);
      EXPECT_EQ(a.rows_masked, b.rows_masked);
      EXPECT_EQ(a.rows_short, b.rows_short);
      EXPECT_EQ(a.rows_not_finite, b.rows_not_finite);
      EXPECT_EQ(static_cast<double>(a.raw_max), b.raw_max);
      EXPECT_EQ(static_cast<double>(a.score_max), b.score_max);
      EXPECT_EQ(a.rows_counted, b.rows_counted);
      EXPECT_EQ(b.rows_sampled, 0);  // of a higher level
      EXPECT_EQ(b.entropy, 0);
      EXPECT_EQ(std::memcmp(&a.mean_p_max, &b.mean_p_max, sizeof a.mean_p_max), 0);
      EXPECT_EQ(std::memcmp(&a.mean_lse, &b.mean_lse, sizeof a.mean_lse), 0);
    }
  }

  /// Both passes refuse, the message begins with the argument's name, and nothing is written.
  void expect_refused(const std::string& argument) {
    for (const auto& call : std::vector<std::function<int()>>{
             [&] { return rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0); },
             [&] { return rootdk_backward(&problem, &c_backward, &c_gradients, nullptr, 0); }}) {
      EXPECT_EQ(call(), ROOTDK_INVALID_ARGUMENT);
      EXPECT_NE(std::string(rootdk_last_error()).find(argument), std::string::npos) << rootdk_last_error();
    }
    for (const auto* x : c.all()) EXPECT_TRUE(untouched(*x));
    for (const auto& head : c.heads) EXPECT_EQ(head.row_count, 77);
  }

  std::vector<float> q = random_floats(kQ, 1), k = random_floats(kK, 2), v = random_floats(kV, 3);
  std::vector<float> d_o = random_floats(kO, 4), d_lse = random_floats(kRows, 5);
  std::vector<float> per_head = {0.5f, 1, 0.25f, 2};
  Results c, cpp;
  rootdk_problem problem;
  rootdk_inputs c_inputs = {};
  rootdk_outputs c_outputs = {};
  rootdk_backward_inputs c_backward = {};
  rootdk_gradients c_gradients = {};
};

TEST_F(CApi, Defaults) {
  run_c();
  expect_same(run_cpp({}));
}

TEST_F(CApi, NullProblemIsTheDefault) {
  ASSERT_EQ(rootdk_forward(nullptr, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_OK);
  run_cpp({});
  EXPECT_TRUE(same_bits(c.o, cpp.o));
}

TEST_F(CApi, EveryScaleRule) {
  for (const Scale& scale :
       {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk(), Scale::constant(0.3), Scale::per_head(per_head)}) {
    SCOPED_TRACE(scale.describe());
    problem.scale_rule = static_cast<rootdk_scale_rule>(scale.rule);
    problem.scale_value = scale.value;
    problem.scale_per_head = {scale.head_values.data(), static_cast<std::int64_t>(scale.head_values.size())};
    run_c();
    Problem p;
    p.scale = scale;
    expect_same(run_cpp(p));
  }
}

TEST_F(CApi, ScalesByNameAndSsmaxPerHead) {
  std::vector<float> offsets = {0.5f, -1, 0, 2}, gains(kHeadsQ), d_offsets(kHeadsQ);
  for (const char* name : {"none", "dk(8)", "unit_variance(0.5, 2)*yarn(4)", "sqrt_dk*ssmax(0.43)",
                           "constant(0.3)*entropy_invariant", "llama4"}) {
    SCOPED_TRACE(name);
    problem.scale = name;
    run_c();
    Problem p;
    p.scale = Scale::parse(name);
    expect_same(run_cpp(p));
  }
  problem.scale = "dk";
  problem.ssmax_gains = {per_head.data(), kHeadsQ};
  problem.ssmax_offsets = {offsets.data(), kHeadsQ};
  c_gradients.d_ssmax_gains = {gains.data(), kHeadsQ};
  c_gradients.d_ssmax_offsets = {d_offsets.data(), kHeadsQ};
  run_c();
  Problem p;
  p.scale = Scale::inv_dk().with_ssmax(per_head, offsets);
  expect_same(run_cpp(p));
  Gradients gradients;
  std::vector<float> cpp_gains(kHeadsQ), cpp_offsets(kHeadsQ);
  gradients.d_log_n_gain = cpp_gains, gradients.d_log_n_offset = cpp_offsets;
  const Inputs in = inputs();
  backward(p,
           {in.q, in.k, in.v, tensor(cpp.o.data(), kO), tensor(cpp.lse.data(), kRows), tensor(d_o.data(), kO),
            tensor(d_lse.data(), kRows)},
           gradients);
  EXPECT_EQ(gains, cpp_gains);
  EXPECT_EQ(d_offsets, cpp_offsets);
}

TEST_F(CApi, WrongScaleNamesAreRefused) {
  problem.scale = "squirt_dk";
  expect_refused("scale: \"squirt_dk\" is not known");
  problem.scale = "llama4";
  problem.ssmax_gains = {per_head.data(), kHeadsQ};
  expect_refused("has a length rule already");
  problem.scale = nullptr;
  problem.ssmax_gains = {per_head.data(), 3};
  expect_refused("scale.head_gains: 3 values");
}

struct HalfNegative {
  template <class T>
  T operator()(T s) const {
    return s < 0 ? T(0.5) * s : s;
  }
  template <class T>
  T derivative(T s) const {
    return s < 0 ? T(0.5) : T(1);
  }
};

TEST_F(CApi, CapTransformBiasAlibiSinkDropout) {
  const HalfNegative f;
  std::vector<float> bias = random_floats(kScores, 6);
  Problem p;
  p.soft_cap = 1.5f;
  p.transform = ScoreTransform::of(f);
  p.mask.bias = tensor(bias.data(), kScores);
  p.mask.alibi_slopes = per_head;
  p.sink = per_head;
  p.dropout = {0.25f, 0x1234567890abcdefu};

  problem.has_soft_cap = 1;
  problem.soft_cap = 1.5f;
  problem.transform = {p.transform.context, p.transform.apply_f32, p.transform.apply_f64, p.transform.chain_f32,
                       p.transform.chain_f64};
  problem.bias = c_view(bias, kScores);
  problem.alibi_slopes = {per_head.data(), kHeadsQ};
  problem.sink = {per_head.data(), kHeadsQ};
  problem.dropout_p = 0.25f;
  problem.dropout_seed = 0x1234567890abcdefu;
  run_c();
  expect_same(run_cpp(p));
}

TEST_F(CApi, ASeedOnAGpuIsRefusedOnTheCpu) {
  const std::uint64_t seed = 7;
  problem.dropout_p = 0.25f;
  problem.dropout_device_seed = &seed;
  expect_refused("dropout.device_seed: memory of a GPU, but the CPU was called");
}

TEST_F(CApi, EveryPartOfTheMask) {
  const std::vector<std::int64_t> lengths = {7, 9};
  std::vector<std::uint8_t> allowed(count(kScores));
  for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] = i % 3 != 0;
  Problem p;
  p.mask = Mask::make_causal(Diagonal::at(2));
  p.mask.window = Window{3, Window::kUnbounded};
  p.mask.key_lengths = lengths;
  p.mask.allowed = tensor(allowed.data(), kScores);

  problem.causal = 1;
  problem.diagonal = ROOTDK_AT;
  problem.diagonal_offset = 2;
  problem.window_left = 3;
  problem.key_lengths = {lengths.data(), kBatch};
  problem.allowed = rootdk_row_major(allowed.data(), ROOTDK_BOOL, kBatch, kHeadsQ, kLenQ, kLenKv);
  run_c();
  expect_same(run_cpp(p));

  problem.diagonal = ROOTDK_LAST_KEY;
  problem.diagonal_offset = 0;
  p.mask.diagonal = Diagonal::last_key();
  run_c();
  expect_same(run_cpp(p));
}

TEST_F(CApi, Documents) {
  const std::vector<std::int64_t> q_starts = {0, 2, 5}, kv_starts = {0, 3, 8};
  Problem p;
  p.mask = Mask::make_causal();
  p.mask.documents = Documents{q_starts, kv_starts};
  problem.causal = 1;
  problem.document_q_starts = {q_starts.data(), 3};
  problem.document_kv_starts = {kv_starts.data(), 3};
  run_c();
  expect_same(run_cpp(p));
}

TEST_F(CApi, Padding) {
  const std::vector<std::int64_t> starts = {2, 0}, lengths = {9, 6}, queries = {5, 3};
  Problem p;
  p.mask = Mask::make_causal(Diagonal::last_key());
  p.mask.key_starts = starts, p.mask.key_lengths = lengths, p.mask.query_lengths = queries;
  problem.causal = 1;
  problem.diagonal = ROOTDK_LAST_KEY;
  problem.key_starts = {starts.data(), kBatch};
  problem.key_lengths = {lengths.data(), kBatch};
  problem.query_lengths = {queries.data(), kBatch};
  run_c();
  expect_same(run_cpp(p));
}

TEST_F(CApi, DocumentsPerItem) {
  const std::vector<std::int64_t> q_starts = {0, 2, 5, 0, 4, 4}, kv_starts = {0, 3, 8, 0, 9, 9};
  Problem p;
  p.mask = Mask::make_causal();
  p.mask.documents = Documents{q_starts, kv_starts, kBatch};
  problem.causal = 1;
  problem.document_q_starts = {q_starts.data(), 6};
  problem.document_kv_starts = {kv_starts.data(), 6};
  problem.document_items = kBatch;
  run_c();
  expect_same(run_cpp(p));
}

TEST_F(CApi, PagedKeysAndValues) {
  // The keys of [batch, heads_kv, 9, dim] as pages of 3, handed out backwards.
  const std::vector<std::int32_t> table = {5, 4, 3, 2, 1, 0};
  const auto paged = [](const std::vector<float>& x, std::size_t dim) {
    std::vector<float> pages(x.size());
    for (std::size_t b = 0; b < kBatch; ++b)
      for (std::size_t h = 0; h < kHeadsKv; ++h)
        for (std::size_t j = 0; j < kLenKv; ++j)
          for (std::size_t d = 0; d < dim; ++d)
            pages[(((5 - (b * 3 + j / 3)) * kHeadsKv + h) * 3 + j % 3) * dim + d] =
                x[((b * kHeadsKv + h) * kLenKv + j) * dim + d];
    return pages;
  };
  run_c();
  const std::vector<float> plain = c.o;
  const std::vector<float> k_pages = paged(k, kDimQk), v_pages = paged(v, kDimV);
  c_inputs.k = c_view(k_pages, {6, kHeadsKv, 3, kDimQk});
  c_inputs.v = c_view(v_pages, {6, kHeadsKv, 3, kDimV});
  problem.page_table = {table.data(), 6};
  problem.pages_per_item = 3;
  problem.paged_len_kv = kLenKv;
  ASSERT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(c.o[i], plain[i], 1e-5);
}

TEST_F(CApi, StatsCanBeOff) {
  problem.stats = ROOTDK_STATS_NONE;
  c_outputs.head_stats = nullptr;
  c_outputs.head_stats_count = 0;
  run_c();
  run_cpp({});
  EXPECT_TRUE(same_bits(c.o, cpp.o));
}

TEST_F(CApi, AWorkspaceOfAnyAlignment) {
  std::size_t forward_size = 0, backward_size = 0;
  ASSERT_EQ(rootdk_workspace_size(&problem, &c_inputs, ROOTDK_FORWARD, &forward_size), ROOTDK_OK);
  ASSERT_EQ(rootdk_workspace_size(&problem, &c_inputs, ROOTDK_BACKWARD, &backward_size), ROOTDK_OK);
  const std::size_t size = std::max(forward_size, backward_size);
  const auto memory = std::make_unique<std::byte[]>(size + 64);
  const Stats stats = run_cpp({});
  for (std::size_t skew : {0u, 1u, 40u, 63u}) {
    run_c(memory.get() + skew, size + 1);
    expect_same(stats);
  }
}

TEST_F(CApi, AWorkspaceTooSmallIsRefused) {
  std::size_t size = 0;
  ASSERT_EQ(rootdk_workspace_size(&problem, &c_inputs, ROOTDK_BACKWARD, &size), ROOTDK_OK);
  ASSERT_GT(size, 0u);
  const auto memory = std::make_unique<std::byte[]>(size);
  EXPECT_EQ(rootdk_backward(&problem, &c_backward, &c_gradients, memory.get(), size - 1), ROOTDK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rootdk_last_error()).find("workspace"), std::string::npos);
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 5), ROOTDK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rootdk_last_error()).find("workspace: null"), std::string::npos);
}

TEST_F(CApi, ExplainSaysWhatThePlanSays) {
  const std::string words = make_plan({}, shape_of(inputs())).explain();
  std::size_t needed = 0;
  ASSERT_EQ(rootdk_explain(&problem, &c_inputs, ROOTDK_FORWARD, nullptr, 0, &needed), ROOTDK_OK);
  EXPECT_EQ(needed, words.size() + 1);
  std::string buffer(needed, 'x');
  ASSERT_EQ(rootdk_explain(&problem, &c_inputs, ROOTDK_FORWARD, buffer.data(), needed, nullptr), ROOTDK_OK);
  EXPECT_EQ(buffer, words + '\0');
  buffer.assign(needed, 'x');
  ASSERT_EQ(rootdk_explain(&problem, &c_inputs, ROOTDK_FORWARD, buffer.data(), 5, nullptr), ROOTDK_OK);
  EXPECT_EQ(buffer, words.substr(0, 4) + '\0' + std::string(needed - 5, 'x'));
}

TEST_F(CApi, MergeJoinsTwoHalves) {
  std::vector<float> o = cpp.o, lse = cpp.lse, other_o = cpp.o, other_lse = cpp.lse;
  const auto half = [&](std::int64_t first, std::int64_t n, std::vector<float>& out, std::vector<float>& out_lse) {
    forward({},
            {tensor(q.data(), kQ), tensor(k.data() + first * kDimQk, {kBatch, kHeadsKv, n, kDimQk}, row_major(kK)),
             tensor(v.data() + first * kDimV, {kBatch, kHeadsKv, n, kDimV}, row_major(kV))},
            {tensor(out.data(), kO), tensor(out_lse.data(), kRows)});
  };
  half(0, 4, o, lse);
  half(4, kLenKv - 4, other_o, other_lse);
  c.o = o;
  c.lse = lse;
  merge(tensor(o.data(), kO), tensor(lse.data(), kRows), tensor(other_o.data(), kO), tensor(other_lse.data(), kRows));
  const rootdk_tensor into = c_view(c.o, kO), into_lse = c_view(c.lse, kRows), from = c_view(other_o, kO),
                      from_lse = c_view(other_lse, kRows);
  ASSERT_EQ(rootdk_merge(&into, &into_lse, &from, &from_lse), ROOTDK_OK) << rootdk_last_error();
  EXPECT_TRUE(same_bits(c.o, o));
  EXPECT_TRUE(same_bits(c.lse, lse));
  EXPECT_EQ(rootdk_merge(&into, nullptr, &from, &from_lse), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "lse: null");
}

TEST_F(CApi, BadTensorsAreRefused) {
  c_inputs.k.shape[3] = c_backward.k.shape[3] = 7;
  expect_refused("k: dim_qk is 7");
}
TEST_F(CApi, UnknownEnumeratorsAreRefused) {
  c_inputs.q.dtype = c_backward.q.dtype = 42;
  expect_refused("q: dtype is 42");
  c_inputs.q.dtype = c_backward.q.dtype = ROOTDK_F32;
  c_inputs.v.device = c_backward.v.device = -1;
  expect_refused("v: device is -1");
  c_inputs.v.device = c_backward.v.device = ROOTDK_CPU;
  problem.scale_rule = 5;
  expect_refused("scale_rule is 5");
  problem.scale_rule = ROOTDK_SCALE_NONE;
  problem.diagonal = 4;
  expect_refused("diagonal is 4");
  problem.diagonal = ROOTDK_TOP_LEFT;
  problem.stats = -7;
  expect_refused("stats is -7");
}
TEST_F(CApi, BadArraysAreRefused) {
  problem.sink = {nullptr, 4};
  expect_refused("sink: null");
  problem.sink = {per_head.data(), -1};
  expect_refused("sink: count is -1");
  problem.sink = {per_head.data(), 3};
  expect_refused("sink: 3 values");
}
TEST_F(CApi, ProblemsNotInitialisedAreRefused) {
  std::memset(&problem, 0, sizeof problem);
  expect_refused("rootdk_problem_init");
  rootdk_problem_init(&problem);
  problem.reserved[std::size(problem.reserved) - 1] = 1;
  expect_refused("problem: reserved");
}
TEST_F(CApi, HalfATransformIsRefused) {
  const HalfNegative f;
  problem.transform.apply_f32 = ScoreTransform::of(f).apply_f32;
  expect_refused("transform: 3 of its 4 functions are null");
}
TEST_F(CApi, FullStatisticsAreThoseOfCpp) {
  problem.stats = ROOTDK_STATS_FULL;
  problem.stats_flags = ROOTDK_STATS_GAPS | ROOTDK_STATS_KEY_MASS;
  const Extents masses = {kBatch, kHeadsQ, kLenKv, 1};
  std::vector<float> c_mass = Results::blank(masses), cpp_mass = c_mass;
  std::vector<std::int64_t> gaps(kBatch * kHeadsQ * ROOTDK_GAP_BINS, -1);
  std::vector<rootdk_head_gradients> gradients(kBatch * kHeadsQ);
  c_outputs.key_mass = c_view(c_mass, masses);
  c_outputs.gaps = gaps.data(), c_outputs.gaps_count = static_cast<std::int64_t>(gaps.size());
  c_gradients.head_stats = gradients.data(), c_gradients.head_stats_count = kBatch * kHeadsQ;
  ASSERT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  ASSERT_EQ(rootdk_backward(&problem, &c_backward, &c_gradients, nullptr, 0), ROOTDK_OK) << rootdk_last_error();

  Problem p;
  p.stats = StatsLevel::kFull;
  p.stats_options.gaps = p.stats_options.key_mass = true;
  Outputs out{tensor(cpp.o.data(), kO), tensor(cpp.lse.data(), kRows)};
  out.key_mass = tensor(cpp_mass.data(), masses);
  const Stats stats = forward(p, inputs(), out);
  const Inputs in = inputs();
  const GradientStats back =
      backward(p, {in.q, in.k, in.v, out.o, out.lse, tensor(d_o.data(), kO), tensor(d_lse.data(), kRows)},
               {tensor(cpp.d_q.data(), kQ), tensor(cpp.d_k.data(), kK), tensor(cpp.d_v.data(), kV)});
  EXPECT_TRUE(same_bits(c_mass, cpp_mass));
  for (std::size_t h = 0; h < stats.per_head.size(); ++h) {
    const HeadStats& head = stats.per_head[h];
    const rootdk_head_stats& x = c.heads[h];
    EXPECT_TRUE(std::equal(head.gaps.counts.begin(), head.gaps.counts.end(),
                           gaps.begin() + static_cast<std::ptrdiff_t>(h) * ROOTDK_GAP_BINS));
    EXPECT_EQ(x.rows_sampled, head.rows_sampled);
    EXPECT_EQ(x.raw_within_row_variance, head.raw.within_row_variance());
    EXPECT_EQ(x.score_max_query, head.score.max_query);
    EXPECT_EQ(x.score_max_key, head.score.max_key);
    EXPECT_EQ(x.entropy, head.softmax.entropy);
    EXPECT_EQ(x.log_keys, head.softmax.log_keys);
    EXPECT_EQ(x.rows_p_max_over_50pct, head.softmax.rows_p_max_over_50pct);
    EXPECT_EQ(x.rows_trace_j_under_1pct, head.softmax.rows_trace_j_under_1pct);
    EXPECT_EQ(x.median_p_max, head.softmax.p_max_quantile(0.5));
    EXPECT_EQ(x.trace_j_q95, head.softmax.trace_j_quantile(0.95));
    EXPECT_EQ(x.sigma_q, head.causes.sigma_q());
    EXPECT_EQ(x.alignment, head.alignment());
    EXPECT_EQ(x.entropy_error, 0);
    EXPECT_EQ(x.reserved[0], 0u);
    EXPECT_EQ(gradients[h].d_scores, back.per_head[h].d_scores);
    EXPECT_EQ(gradients[h].d_log_scale, back.per_head[h].d_log_scale);
    EXPECT_EQ(gradients[h].d_v, back.per_head[h].d_v);
  }
}
TEST_F(CApi, StatisticsOptionsAreChecked) {
  problem.stats_flags = 16;
  expect_refused("stats_flags is 16");
  problem.stats_flags = 0;
  problem.stats_sample = 4;
  expect_refused("stats.sample: 4, but only full statistics are sampled");
  problem.stats_sample = 0;
  std::int64_t gap = 0;
  c_outputs.gaps = &gap, c_outputs.gaps_count = 1;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "gaps: wanted, but the problem's stats lack ROOTDK_STATS_GAPS");
  EXPECT_TRUE(untouched(c.o));
}
TEST_F(CApi, HeadStatsMustFit) {
  c_outputs.head_stats_count = 3;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "head_stats: count is 3, but 8 is wanted");
  c_outputs.head_stats_count = kBatch * kHeadsQ;
  problem.stats = ROOTDK_STATS_NONE;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_TRUE(untouched(c.o));
}
TEST_F(CApi, NullPointersAreRefused) {
  EXPECT_EQ(rootdk_forward(&problem, nullptr, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "inputs: null");
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, nullptr, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "outputs: null");
  EXPECT_EQ(rootdk_backward(&problem, &c_backward, nullptr, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "gradients: null");
  EXPECT_EQ(rootdk_workspace_size(&problem, &c_inputs, ROOTDK_FORWARD, nullptr), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "size: null");
  EXPECT_EQ(rootdk_explain(&problem, &c_inputs, 2, nullptr, 0, nullptr), ROOTDK_INVALID_ARGUMENT);
  rootdk_problem_init(nullptr);
}

TEST_F(CApi, StatisticsComeWholeAndMerge) {
  problem.stats = ROOTDK_STATS_FULL;
  problem.stats_flags = ROOTDK_STATS_GAPS;
  rootdk_stats *whole = nullptr, *one = nullptr, *twice = nullptr;
  c_outputs.stats = &whole;
  ASSERT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  ASSERT_NE(whole, nullptr);
  std::int64_t batch = 0, heads = 0;
  ASSERT_EQ(rootdk_stats_shape(whole, &batch, &heads), ROOTDK_OK);
  EXPECT_EQ(batch, kBatch);
  EXPECT_EQ(heads, kHeadsQ);

  std::vector<rootdk_head_stats> read(kBatch * kHeadsQ);
  std::vector<std::int64_t> gaps(read.size() * ROOTDK_GAP_BINS);
  const auto count = static_cast<std::int64_t>(read.size()), bins = static_cast<std::int64_t>(gaps.size());
  ASSERT_EQ(rootdk_stats_read(whole, read.data(), count, gaps.data(), bins), ROOTDK_OK) << rootdk_last_error();
  EXPECT_EQ(std::memcmp(read.data(), c.heads.data(), read.size() * sizeof read[0]), 0);
  EXPECT_EQ(rootdk_stats_read(whole, read.data(), count - 1, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "heads: count is 7, but 8 is wanted");
  EXPECT_EQ(rootdk_stats_read(nullptr, read.data(), count, nullptr, 0), ROOTDK_INVALID_ARGUMENT);

  Problem p;
  p.stats = StatsLevel::kFull;
  p.stats_options.gaps = true;
  const Stats stats = forward(p, inputs(), {tensor(cpp.o.data(), kO)});
  ASSERT_EQ(rootdk_stats_over_batch(whole, &one), ROOTDK_OK);
  ASSERT_EQ(rootdk_stats_merge(whole, whole, &twice), ROOTDK_OK);
  const Stats item = over_batch(stats), both = merge(stats, stats);
  for (std::int64_t h = 0; h < kHeadsQ; ++h) {
    std::vector<rootdk_head_stats> few(kHeadsQ);
    ASSERT_EQ(rootdk_stats_read(one, few.data(), kHeadsQ, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
    ASSERT_EQ(rootdk_stats_read(twice, read.data(), count, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
    EXPECT_EQ(few[static_cast<std::size_t>(h)].entropy, item.at(0, h).softmax.entropy);
    EXPECT_EQ(few[static_cast<std::size_t>(h)].row_count, item.at(0, h).row_count);
    EXPECT_EQ(read[static_cast<std::size_t>(h)].score_pairs, both.at(0, h).score.pairs);
  }
  EXPECT_EQ(rootdk_stats_merge(whole, one, &twice), ROOTDK_INVALID_ARGUMENT);  // other batches: nothing is written
  for (rootdk_stats* stats_of_c : {whole, one, twice, static_cast<rootdk_stats*>(nullptr)})
    rootdk_stats_free(stats_of_c);
}
TEST_F(CApi, StatisticsOfRows) {
  problem.stats = ROOTDK_STATS_FULL;
  std::vector<std::vector<float>> rows(13, Results::blank(kRows));
  rootdk_row_tensors c_rows = {};
  rootdk_tensor* const fields[] = {
#define ROOTDK_FULL_ROW(merges, name, value, doc) &c_rows.name,
#include "rootdk/statistics.def"
  };
  for (std::size_t i = 0; i < rows.size(); ++i) *fields[i] = c_view(rows[i], kRows);
  c_outputs.rows = &c_rows;
  ASSERT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_OK) << rootdk_last_error();
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_FALSE(untouched(rows[i])) << i;
  EXPECT_EQ(rows[0][0], static_cast<float>(kLenKv));

  rootdk_outputs of_rows = {};
  of_rows.lse = c_outputs.lse, of_rows.rows = &c_rows;
  of_rows.row_raw_max = c_outputs.row_raw_max, of_rows.row_score_max = c_outputs.row_score_max,
  of_rows.row_p_max = c_outputs.row_p_max;
  rootdk_stats* stats = nullptr;
  ASSERT_EQ(rootdk_stats_of_rows(&of_rows, &stats), ROOTDK_OK) << rootdk_last_error();
  std::vector<rootdk_head_stats> read(kBatch * kHeadsQ);
  ASSERT_EQ(rootdk_stats_read(stats, read.data(), kBatch * kHeadsQ, nullptr, 0), ROOTDK_OK);
  rootdk_stats_free(stats);
  // The rows went through f32 on the way, some ten of whose units a mean may be off by.
  for (std::size_t h = 0; h < read.size(); ++h)
    EXPECT_NEAR(read[h].entropy, c.heads[h].entropy, 1e-6 * c.heads[h].entropy);
  of_rows.rows = nullptr;
  stats = nullptr;
  EXPECT_EQ(rootdk_stats_of_rows(&of_rows, &stats), ROOTDK_INVALID_ARGUMENT);
  EXPECT_EQ(stats, nullptr);

  problem.stats = ROOTDK_STATS_BASIC;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rootdk_last_error()).find("rows."), std::string::npos) << rootdk_last_error();
  c_rows.reserved[7] = 1;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rootdk_last_error()).find("rows: reserved"), std::string::npos);
}
TEST_F(CApi, StatisticsNobodyMeasuredAreRefused) {
  rootdk_stats* stats = nullptr;
  problem.stats = ROOTDK_STATS_NONE;
  c_outputs.head_stats = nullptr, c_outputs.head_stats_count = 0;
  c_outputs.stats = &stats;
  EXPECT_EQ(rootdk_forward(&problem, &c_inputs, &c_outputs, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  EXPECT_STREQ(rootdk_last_error(), "stats: wanted, but the problem's stats lack a level above ROOTDK_STATS_NONE");
  EXPECT_EQ(stats, nullptr);
  EXPECT_TRUE(untouched(c.o));
}

TEST(CApiErrors, BelongToTheirThread) {
  EXPECT_EQ(rootdk_forward(nullptr, nullptr, nullptr, nullptr, 0), ROOTDK_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(rootdk_last_error(), ""); }).join();
  EXPECT_STREQ(rootdk_last_error(), "inputs: null");
}

TEST(CApiVersion, IsThatOfTheHeaders) { EXPECT_STREQ(rootdk_version(), ROOTDK_VERSION); }

TEST(CApiTensor, RowMajorIsThatOfCpp) {
  const rootdk_tensor t = rootdk_row_major(nullptr, ROOTDK_BF16, 2, 3, 5, 7);
  const Extents strides = row_major({2, 3, 5, 7});
  EXPECT_TRUE(std::equal(strides.begin(), strides.end(), t.strides));
  EXPECT_EQ(t.dtype, ROOTDK_BF16);
}

}  // namespace
}  // namespace rootdk
