// Plans: pure values that say what they are in words, need exactly the memory they ask for, and cut keys by lengths
// alone. And the statistics a plan's run returns, against the per-row tensors of the same run.
#include "rootdk/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/element.h"
#include "base/visibility.h"
#include "rootdk/attention.h"
#include "support/case.h"
#include "support/rng.h"
#include "support/run_case.h"

namespace rootdk::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

Machine machine_with(int threads, std::vector<std::string> isas = Machine::here().isas) {
  return {threads, std::move(isas)};
}

bool says(const Plan& plan, const std::string& words) { return plan.explain().find(words) != std::string::npos; }

/// The number before "% of the key blocks", 0 if the plan skips nothing.
double skipped_percent(const Plan& plan) {
  const std::string text = plan.explain();
  const std::size_t at = text.find("skipped: ");
  return at == std::string::npos ? 0 : std::stod(text.substr(at + std::strlen("skipped: ")));
}

TEST(Plan, IsAPureFunctionOfItsArguments) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto c = random_case(seed);
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      for (const int threads : {1, 2, 64}) {
        const Plan a = make_plan(c->problem, c->shape, pass, machine_with(threads));
        make_plan({}, {1, 1, 1, 100, 100, 64, 64}, pass);  // something else in between
        const Plan b = make_plan(c->problem, c->shape, pass, machine_with(threads));
        EXPECT_EQ(a.explain(), b.explain()) << "seed " << seed;
        const auto fields = [](const Plan& p) {
          return std::tuple(p.pass, p.kernel, p.isa, p.threads, p.rows_per_task, p.tile_rows, p.tile_keys, p.key_splits,
                            p.pack_group, p.two_sweeps, p.passed_over, p.workspace_bytes);
        };
        EXPECT_EQ(fields(a), fields(b)) << "seed " << seed;
        EXPECT_TRUE(1 <= a.threads && a.threads <= threads) << "seed " << seed;
        EXPECT_EQ(a.pass, pass);
      }
  }
}

TEST(Plan, ExplainNamesKernelTilesThreadsAndMemory) {
  const Machine here = Machine::here();
  ASSERT_FALSE(here.isas.empty());
  for (const std::string& isa : here.isas)
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Plan plan = make_plan({}, {2, 8, 2, 300, 400, 64, 48, DType::kBF16}, pass, machine_with(3, {isa}));
      EXPECT_EQ(plan.kernel, "fused");
      EXPECT_EQ(plan.isa, isa);
      EXPECT_TRUE(says(
          plan,
          (pass == Pass::kForward ? "forward" : "backward") +
              std::string(" in bf16: batch 2, 8 query heads on 2 key heads, 300 queries x 400 keys, dims 64 and 48\n")))
          << plan.explain();
      EXPECT_TRUE(says(plan, "kernel: fused, " + isa + "; tiles of " + std::to_string(plan.tile_rows) +
                                 " query rows x " + std::to_string(plan.tile_keys) + " keys; up to 3 threads\n"))
          << plan.explain();
      EXPECT_TRUE(says(plan, "workspace: " + std::to_string(plan.workspace_bytes) + " bytes\n")) << plan.explain();
      EXPECT_TRUE(says(plan, "scale 1/√d_k; no mask or transform\n")) << plan.explain();
      EXPECT_EQ(skipped_percent(plan), 0);
    }
}

TEST(Plan, ExplainNamesEveryPartOfTheProblem) {
  Case c;
  c.shape = {2, 2, 2, 5, 7, 8, 8};
  c.scale = {0.1f, 0.2f}, c.slopes = {0.5f, 0.25f}, c.sink = {1, 2};
  c.key_lengths = {7, 3}, c.q_starts = {0, 5}, c.kv_starts = {0, 7}, c.table = {0, 1};
  c.allowed = Buffer(DType::kBool, {1, 1, 5, 7}), c.bias = Buffer(DType::kF32, {1, 1, 1, 7});
  c.problem.scale.rule = Scale::Rule::kPerHead;
  c.problem.soft_cap = 12.5f;
  c.problem.transform = ScoreTransform::of(c.bend);
  c.problem.mask.causal = true;
  c.problem.mask.window = Window{3, 3};
  c.problem.mask.documents = Documents{};
  c.problem.dropout.p = 0.25f;
  c.problem.paged = PagedKv{{}, 1, 7};
  c.link();
  EXPECT_TRUE(says(make_plan(c.problem, c.shape), "scale one per head; soft-cap 12.5, a transform of your own, bias, "
                                                  "ALiBi, causal, window, key lengths, documents, "
                                                  "boolean mask, sink, dropout 0.25, paged K and V\n"));
}

// Of a causal square of n × n keys a share (n − 1)/2n is hidden. Blocks that the diagonal cuts must be visited: a tile
// of r rows and blocks of k keys cost at most r + k keys a row more than it sees.
TEST(Plan, ExplainSaysWhatShareIsSkipped) {
  for (const std::int64_t n : {1024, 4096}) {
    Problem causal, window, lengths;
    causal.mask = Mask::make_causal();
    window.mask.window = Window{99, 0};
    const std::vector<std::int64_t> half = {n / 2, 0};
    lengths.mask.key_lengths = half;
    const Shape shape{2, 1, 1, n, n, 64, 64};
    const auto percent = [](double share) { return 100 * share; };
    const Plan plan = make_plan(causal, shape);
    const double length = static_cast<double>(n), slack = static_cast<double>(plan.tile_rows + plan.tile_keys) / length;
    constexpr double kPrinted = 0.05;  // one decimal
    EXPECT_LE(skipped_percent(plan), percent((length - 1) / (2 * length)) + kPrinted);
    EXPECT_GE(skipped_percent(plan), percent((length - 1) / (2 * length) - slack) - kPrinted);
    EXPECT_LE(skipped_percent(make_plan(window, shape)),
              percent(1 - 100 / length + 100 * 100 / (length * length)) + kPrinted);
    EXPECT_GE(skipped_percent(make_plan(window, shape)), percent(1 - 100 / length - slack) - kPrinted);
    // The first item sees half its keys, rounded up to whole blocks, the second none.
    const auto blocks = [&](std::int64_t keys) {
      return static_cast<double>((keys + plan.tile_keys - 1) / plan.tile_keys);
    };
    EXPECT_NEAR(skipped_percent(make_plan(lengths, shape)), percent(1 - blocks(n / 2) / (2 * blocks(n))), kPrinted);
  }
}

TEST(Plan, ReferenceIsTakenForF64AndSaysWhy) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Plan plan = make_plan({}, {1, 1, 1, 512, 512, 64, 64, DType::kF64}, pass, machine_with(5));
    EXPECT_EQ(plan.kernel, "reference");
    EXPECT_TRUE(says(plan, "kernel: reference (double, a row at a time; slow), up to 5 threads\n"));
    EXPECT_EQ(plan.passed_over.size(), Machine::here().isas.size());
    for (const std::string& isa : Machine::here().isas)
      EXPECT_TRUE(says(plan, "passed over: fused (" + isa + "): takes f32, f16 and bf16, not f64\n")) << plan.explain();
  }
}

TEST(Plan, FewerInstructionSetsPassTheBetterOnesOver) {
  const std::vector<std::string> all = Machine::here().isas;
  for (std::size_t from = 0; from <= all.size(); ++from) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(from);
    const Plan plan =
        make_plan({}, {1, 1, 1, 8, 8, 32, 32, DType::kBF16}, Pass::kForward, machine_with(1, {first, all.end()}));
    EXPECT_EQ(plan.kernel, from < all.size() ? "fused" : "reference");
    EXPECT_EQ(plan.isa, from < all.size() ? *first : "");
    ASSERT_EQ(plan.passed_over.size(), from);
    for (std::size_t i = 0; i < from; ++i) {
      EXPECT_EQ(plan.passed_over[i], "fused (" + all[i] + "): its instruction set is not in the machine given");
      EXPECT_TRUE(says(plan, "passed over: " + plan.passed_over[i] + "\n"));
    }
  }
}

TEST(Plan, MachinesWithoutThreadsAreRefused) {
  for (const int threads : {0, -3}) {
    std::string message = "accepted";
    try {
      make_plan({}, {1, 1, 1, 8, 8, 4, 4}, Pass::kForward, machine_with(threads));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      message = error.what();
    }
    EXPECT_EQ(message, "machine.threads: " + std::to_string(threads) + ", but at least 1 is wanted");
  }
}

TEST(Plan, KeysAreCutByLengthsAlone) {
  bool cut = false, whole = false;
  for (const std::int64_t len_q : {1, 3, 64, 65, 300})
    for (const std::int64_t len_kv : {1, 100, 3071, 3072, 5000, 40000}) {
      std::int64_t splits = 0;
      for (const std::int64_t batch : {1, 7})
        for (const std::int64_t heads_kv : {1, 5})
          for (const std::int64_t group : {1, 8})
            for (const int threads : {1, 2, 96})
              for (const std::string& isa : Machine::here().isas) {
                const Shape shape{batch, heads_kv * group, heads_kv, len_q, len_kv, 64, 64};
                const Plan plan = make_plan({}, shape, Pass::kForward, machine_with(threads, {isa}));
                if (splits == 0) splits = plan.key_splits;
                EXPECT_EQ(plan.key_splits, splits)
                    << batch << ", " << heads_kv << ", " << group << ", " << threads << ", " << isa;
                EXPECT_GE(plan.key_splits, 1);
                EXPECT_EQ(says(plan, "keys in " + std::to_string(splits) + " parts, merged in order"), splits > 1);
              }
      (splits > 1 ? cut : whole) = true;
    }
  EXPECT_TRUE(cut && whole);
}

// ---- Memory.

/// Memory aligned to 64 with a canary behind it.
class Canary {
 public:
  Canary(std::size_t bytes, unsigned char filling) : bytes_(bytes), memory_(bytes + kBehind + 64, std::byte{kCanary}) {
    std::memset(data(), filling, bytes_);
  }
  std::span<std::byte> span() { return {data(), bytes_}; }
  bool intact() {
    return std::all_of(data() + bytes_, data() + bytes_ + kBehind, [](std::byte b) { return b == std::byte{kCanary}; });
  }

 private:
  static constexpr std::size_t kBehind = 8192;
  static constexpr unsigned char kCanary = 0xC3;
  std::byte* data() { return memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64; }
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

struct Results {
  Buffer o, lse, d_q, d_k, d_v, d_bias;
  std::vector<float> d_scale, d_sink;

  explicit Results(const Case& c) {
    const Shape& s = c.shape;
    o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v});
    lse = Buffer(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    d_q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk});
    d_k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk});
    d_v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v});
    if (!c.bias.empty()) d_bias = Buffer(c.bias.tensor().dtype, c.bias.tensor().shape);
    d_scale.resize(static_cast<std::size_t>(s.heads_q));
    d_sink.resize(c.sink.size());
  }
  Outputs outputs() { return {o.tensor(), lse.tensor()}; }
  BackwardInputs from(const Case& c) {
    return {c.q.tensor(), c.k.tensor(), c.v.tensor(), o.tensor(), lse.tensor(), c.d_o.tensor(), c.d_lse.tensor()};
  }
  Gradients gradients() { return {d_q.tensor(), d_k.tensor(), d_v.tensor(), d_scale, d_bias.tensor(), d_sink}; }
  std::vector<double> all() const {
    std::vector<double> out;
    for (const Buffer* b : {&o, &lse, &d_q, &d_k, &d_v, &d_bias}) {
      const std::vector<double> values = b->values();
      out.insert(out.end(), values.begin(), values.end());
    }
    out.insert(out.end(), d_scale.begin(), d_scale.end());
    out.insert(out.end(), d_sink.begin(), d_sink.end());
    return out;
  }
};

/// A problem whose few queries have so many keys that they are cut.
std::unique_ptr<Case> split_case(std::uint64_t seed) {
  auto c = std::make_unique<Case>();
  Rng rng(seed);
  c->shape = {1, 2, 1, rng.integer(1, 64), rng.integer(3072, 3400), 4, 6};
  const Shape& s = c->shape;
  c->q = Buffer(s.dtype, {1, 2, s.len_q, s.dim_qk}), c->k = Buffer(s.dtype, {1, 1, s.len_kv, s.dim_qk});
  c->v = Buffer(s.dtype, {1, 1, s.len_kv, s.dim_v}), c->d_o = Buffer(s.dtype, {1, 2, s.len_q, s.dim_v});
  for (Buffer* b : {&c->q, &c->k, &c->v, &c->d_o}) b->fill_normal(rng, 1);
  c->problem.mask.causal = rng.chance(0.5);
  c->link();
  return c;
}

// A workspace of exactly the size asked for is enough, nothing behind it is touched, and what lay in it before (zeros,
// or bytes that are NaN as floats and large as indices) changes no bit of any result.
void expect_exact_workspace(const Case& c, const Machine& machine, const std::string& what) {
  std::vector<std::vector<double>> results;
  for (const unsigned char filling : {0x00, 0xFF}) {
    const Plan there = make_plan(c.problem, c.shape, Pass::kForward, machine),
               back = make_plan(c.problem, c.shape, Pass::kBackward, machine);
    Results r(c);
    Canary forward_memory(there.workspace_bytes, filling), backward_memory(back.workspace_bytes, filling);
    forward(there, c.inputs(), r.outputs(), forward_memory.span());
    backward(back, r.from(c), r.gradients(), backward_memory.span());
    EXPECT_TRUE(forward_memory.intact() && backward_memory.intact()) << what;
    for (const Buffer* b : {&r.o, &r.lse, &r.d_q, &r.d_k, &r.d_v, &r.d_bias}) EXPECT_TRUE(b->guards_intact()) << what;
    results.push_back(r.all());
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i)
    ASSERT_TRUE(results[0][i] == results[1][i] || (std::isnan(results[0][i]) && std::isnan(results[1][i]))) << what;
}

TEST(Workspace, ExactlyWhatThePlanAsksForIsEnough) {
  CaseLimits limits;
  limits.work = 1 << 15, limits.longest = 512;
  const int problems = problem_count(300);
  for (int seed = 0; seed < problems; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 1000, limits);
    const std::vector<std::string> isas = Machine::here().isas;
    const std::string isa = isas[static_cast<std::size_t>(seed) % isas.size()];
    expect_exact_workspace(*c, machine_with(1 + seed % 3, {isa}),
                           "seed " + std::to_string(seed) + ", " + isa + "\n" + c->describe());
  }
}

TEST(Workspace, ExactlyWhatThePlanAsksForIsEnoughWhenKeysAreCut) {
  for (const std::string& isa : Machine::here().isas)
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const auto c = split_case(seed);
      ASSERT_GT(make_plan(c->problem, c->shape, Pass::kForward, machine_with(2, {isa})).key_splits, 1);
      expect_exact_workspace(*c, machine_with(2, {isa}), "seed " + std::to_string(seed) + ", " + isa);
    }
}

TEST(Workspace, TheReferenceAsksForRecordsOnly) {
  Problem silent;
  silent.stats = StatsLevel::kNone;
  const Shape shape{2, 3, 3, 10, 10, 4, 4, DType::kF64};
  EXPECT_EQ(make_plan(silent, shape).workspace_bytes, 0u);
  EXPECT_GT(make_plan({}, shape).workspace_bytes, 0u);
}

TEST(Plan, CanBeUsedAgainWithOtherTensors) {
  const Shape shape{2, 4, 2, 33, 65, 16, 24};
  Problem problem;
  problem.mask = Mask::make_causal();
  const Plan there = make_plan(problem, shape, Pass::kForward), back = make_plan(problem, shape, Pass::kBackward);
  Canary forward_memory(there.workspace_bytes, 0), backward_memory(back.workspace_bytes, 0);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    Case c;
    Rng rng(seed);
    c.shape = shape, c.problem = problem;
    c.q = Buffer(shape.dtype, {2, 4, 33, 16}), c.k = Buffer(shape.dtype, {2, 2, 65, 16});
    c.v = Buffer(shape.dtype, {2, 2, 65, 24}), c.d_o = Buffer(shape.dtype, {2, 4, 33, 24});
    for (Buffer* b : {&c.q, &c.k, &c.v, &c.d_o}) b->fill_normal(rng, 1);
    Results planned(c), direct(c);
    forward(there, c.inputs(), planned.outputs(), forward_memory.span());
    backward(back, planned.from(c), planned.gradients(), backward_memory.span());
    forward(problem, c.inputs(), direct.outputs());
    backward(problem, direct.from(c), direct.gradients());
    EXPECT_EQ(planned.all(), direct.all()) << "seed " << seed;
  }
}

// ---- Statistics.

/// The keys a row of a case may see, from every part of its mask.
std::int64_t visible_count(const Case& c, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Mask& mask = c.problem.mask;
  const base::KeyRange range = base::visible_keys(mask, c.shape, b, i);
  std::int64_t count = 0;
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    if (mask.allowed.present() && base::read(mask.allowed, b, h, i, j) == 0) continue;
    if (mask.bias.present() && base::read(mask.bias, b, h, i, j) == -kInf) continue;
    ++count;
  }
  return count;
}

/// What HeadStats should be, from the per-row results of the same run.
HeadStats summary(const Case& c, const Result& r, std::int64_t b, std::int64_t h) {
  HeadStats head;
  double raw_max = -kInf, score_max = -kInf, p_max = 0, lse = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < c.shape.len_q; ++i) {
    const auto row = static_cast<std::size_t>((b * c.shape.heads_q + h) * c.shape.len_q + i);
    const auto dim = static_cast<std::size_t>(c.shape.dim_v);
    const std::int64_t visible = visible_count(c, b, h, i);
    if (!base::is_query(c.problem.mask, c.shape, b, i)) continue;
    const bool finite = (std::isfinite(r.lse[row]) || r.lse[row] == -kInf) &&
                        std::all_of(r.o.begin() + static_cast<std::ptrdiff_t>(row * dim),
                                    r.o.begin() + static_cast<std::ptrdiff_t>((row + 1) * dim),
                                    [](double x) { return std::isfinite(x); });
    ++head.row_count;
    head.rows_masked += visible == 0;
    head.rows_short += visible < 2;
    head.rows_not_finite += !finite;
    if (!finite) continue;
    raw_max = std::max(raw_max, r.raw_max[row]);
    score_max = std::max(score_max, r.score_max[row]);
    if (visible < 2) continue;
    p_max += r.p_max[row];
    lse += r.lse[row];
    ++counted;
  }
  head.raw_max = static_cast<float>(raw_max);
  head.score_max = static_cast<float>(score_max);
  head.mean_p_max = counted > 0 ? p_max / static_cast<double>(counted) : kNan;
  head.mean_lse = counted > 0 ? lse / static_cast<double>(counted) : kNan;
  return head;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Records and row tensors hold the same numbers, summed in the same order: equal, not close.
void expect_stats(const Case& c, const engine::Kernel& kernel, const std::string& what) {
  RunOptions options;
  options.backward = false;
  const Result r = run(c, kernel, options);
  ASSERT_EQ(r.stats.level, StatsLevel::kBasic);
  ASSERT_EQ(r.stats.per_head.size(), static_cast<std::size_t>(c.shape.batch * c.shape.heads_q));
  for (std::int64_t b = 0; b < c.shape.batch; ++b)
    for (std::int64_t h = 0; h < c.shape.heads_q; ++h) {
      const HeadStats &got = r.stats.at(b, h), want = summary(c, r, b, h);
      EXPECT_EQ(got.row_count, want.row_count) << what;
      EXPECT_EQ(got.rows_masked, want.rows_masked) << what;
      EXPECT_EQ(got.rows_short, want.rows_short) << what;
      EXPECT_EQ(got.rows_not_finite, want.rows_not_finite) << what;
      EXPECT_EQ(got.raw_max, want.raw_max) << what;
      EXPECT_EQ(got.score_max, want.score_max) << what;
      EXPECT_TRUE(same(got.mean_p_max, want.mean_p_max)) << what << got.mean_p_max << " " << want.mean_p_max;
      EXPECT_TRUE(same(got.mean_lse, want.mean_lse)) << what << got.mean_lse << " " << want.mean_lse;
    }
}

TEST(Stats, HeadsSumUpTheirRows) {
  CaseLimits limits;
  limits.work = 1 << 15, limits.longest = 512;
  const int problems = problem_count(200);
  for (int seed = 0; seed < problems; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed) + 5000, limits);
    for (const engine::Kernel& kernel : fast_kernels())
      expect_stats(*c, kernel, "seed " + std::to_string(seed) + ", " + kernel.label() + "\n" + c->describe());
    const auto exact = c->exact();
    expect_stats(*exact, engine::kernel_table().back(), "seed " + std::to_string(seed) + ", reference\n");
  }
}

/// Queries of ones, keys (j + 1)·ones/dim, so that c·q·k_j = (j + 1) with c = 1: everything is known.
struct Counted : Case {
  explicit Counted(DType dtype, std::int64_t queries = 6, std::int64_t keys = 6) {
    shape = {1, 1, 1, queries, keys, 4, 4, dtype};
    q = Buffer(dtype, {1, 1, queries, 4}), k = Buffer(dtype, {1, 1, keys, 4}), v = Buffer(dtype, {1, 1, keys, 4});
    q.fill(1), v.fill(1);
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t d = 0; d < 4; ++d) k.set(0, 0, j, d, static_cast<double>(j + 1) / 4);
    problem.scale = Scale::none();
    link();
  }
};

/// Calls check(kernel, dtype) for every kernel in a dtype that it takes.
template <class Check>
void for_every_kernel(const Check& check) {
  for (const engine::Kernel& kernel : engine::kernel_table()) {
    SCOPED_TRACE(kernel.label());
    check(kernel, kernel.name == "reference" ? DType::kF64 : DType::kF32);
  }
}

HeadStats stats_of(const Case& c, const engine::Kernel& kernel) {
  RunOptions options;
  options.backward = false;
  return run(c, kernel, options).stats.at(0, 0);
}

TEST(Stats, CausalTopLeftHasOneShortRow) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    Counted c(dtype);
    c.problem.mask = Mask::make_causal(Diagonal::top_left());
    const HeadStats head = stats_of(c, kernel);
    EXPECT_EQ(head.row_count, 6);
    EXPECT_EQ(head.rows_masked, 0);
    EXPECT_EQ(head.rows_short, 1);
    EXPECT_EQ(head.rows_not_finite, 0);
    EXPECT_EQ(head.raw_max, 6);
    EXPECT_EQ(head.score_max, 6);
  });
}

TEST(Stats, RowsWithoutKeysAreCountedAndLeftOutOfMeans) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    Counted c(dtype);
    c.problem.mask = Mask::make_causal(Diagonal::at(-2));  // rows 0, 1 see nothing, row 2 one key
    const HeadStats head = stats_of(c, kernel);
    EXPECT_EQ(head.rows_masked, 2);
    EXPECT_EQ(head.rows_short, 3);
    EXPECT_EQ(head.rows_not_finite, 0);
    EXPECT_EQ(head.raw_max, 4);
    expect_stats(c, kernel, "");

    c.problem.mask = Mask::make_causal(Diagonal::at(-6));  // nobody sees anything
    const HeadStats none = stats_of(c, kernel);
    EXPECT_EQ(none.rows_masked, 6);
    EXPECT_EQ(none.rows_short, 6);
    EXPECT_EQ(none.raw_max, -kInf);
    EXPECT_EQ(none.score_max, -kInf);
    EXPECT_TRUE(std::isnan(none.mean_p_max) && std::isnan(none.mean_lse));
  });
}

TEST(Stats, RowsHiddenByDenseMasksCountToo) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    Counted c(dtype);
    c.allowed = Buffer(DType::kBool, {1, 1, 6, 6});
    c.allowed.fill(1);
    for (std::int64_t j = 0; j < 6; ++j) c.allowed.set(0, 0, 1, j, 0);               // row 1: none
    for (std::int64_t j = 0; j < 6; ++j) c.allowed.set(0, 0, 4, j, j == 3 ? 1 : 0);  // row 4: one
    c.bias = Buffer(dtype, {1, 1, 1, 6});
    c.bias.fill(0);
    c.bias.set(0, 0, 0, 5, -kInf);  // the largest score, for everyone
    c.link();
    const HeadStats head = stats_of(c, kernel);
    EXPECT_EQ(head.rows_masked, 1);
    EXPECT_EQ(head.rows_short, 2);
    EXPECT_EQ(head.raw_max, 5);
    EXPECT_EQ(head.score_max, 5);
    expect_stats(c, kernel, "");
  });
}

// raw is c·q·k; score is what softmax sees: a bias of 10 on a key moves one and not the other.
TEST(Stats, RawIsBeforeTheBiasAndScoreAfter) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    Counted c(dtype);
    c.bias = Buffer(dtype, {1, 1, 1, 6});
    c.bias.fill(0);
    c.bias.set(0, 0, 0, 2, 10);
    c.link();
    const HeadStats head = stats_of(c, kernel);
    EXPECT_EQ(head.raw_max, 6);
    EXPECT_EQ(head.score_max, 13);
  });
}

// NaN and Inf, in each input and at each key: exactly the rows that see it are counted, and no other number moves.
TEST(Stats, RowsThatSeeWhatIsNotFiniteAreCounted) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    for (const double bad : {kNan, kInf})
      for (std::int64_t key = 0; key < 6; ++key) {
        SCOPED_TRACE(testing::Message() << bad << " at key " << key);
        Counted in_v(dtype), in_k(dtype);
        in_v.problem.mask = in_k.problem.mask = Mask::make_causal(Diagonal::top_left());
        in_v.v.set(0, 0, key, 1, bad), in_k.k.set(0, 0, key, 1, bad);
        for (const Counted* c : {&in_v, &in_k}) {
          const HeadStats head = stats_of(*c, kernel);
          EXPECT_EQ(head.rows_not_finite, 6 - key) << (c == &in_v ? "v" : "k");  // rows key … 5 see it
          EXPECT_EQ(head.rows_masked, 0);
          EXPECT_EQ(head.rows_short, 1);
          EXPECT_EQ(head.raw_max, key == 0 ? -kInf : static_cast<double>(key)) << (c == &in_v ? "v" : "k");
          expect_stats(*c, kernel, c == &in_v ? "v" : "k");
        }
      }
    Counted in_q(dtype);
    in_q.q.set(0, 0, 4, 2, kNan);
    EXPECT_EQ(stats_of(in_q, kernel).rows_not_finite, 1);
  });
}

TEST(Stats, NoneIsNone) {
  for_every_kernel([](const engine::Kernel& kernel, DType dtype) {
    Counted c(dtype);
    c.problem.stats = StatsLevel::kNone;
    RunOptions options;
    options.backward = false;
    const Stats stats = run(c, kernel, options).stats;
    EXPECT_EQ(stats.level, StatsLevel::kNone);
    EXPECT_TRUE(stats.per_head.empty());
  });
}

}  // namespace
}  // namespace rootdk::test
