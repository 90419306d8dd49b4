// The promises about what is not ordinary: rows that see nothing, lengths of zero, enormous scores, NaN and Inf,
// dropout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/dropout.h"
#include "base/element.h"
#include "base/visibility.h"
#include "support/case.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::unique_ptr<Case> simple_case(const Shape& shape, std::uint64_t seed = 1, double spread = 1) {
  Rng rng(seed);
  auto c = std::make_unique<Case>();
  c->shape = shape;
  const Shape& s = c->shape;
  c->q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk});
  c->k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk});
  c->v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v});
  c->d_o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v});
  c->q.fill_normal(rng, spread), c->k.fill_normal(rng, spread), c->v.fill_normal(rng, 1), c->d_o.fill_normal(rng, 1);
  c->link();
  return c;
}

bool row_sees(const Case& c, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const base::KeyRange range = base::visible_keys(c.problem.mask, c.shape, b, i);
  return j >= range.begin && j < range.end &&
         (c.allowed.empty() || base::read(c.problem.mask.allowed, b, h, i, j) != 0) &&
         (c.bias.empty() || base::read(c.problem.mask.bias, b, h, i, j) != -kInf);
}

bool all_finite(const std::vector<double>& x) {
  for (const double v : x)
    if (!std::isfinite(v)) return false;
  return true;
}

// Every kernel, the reference among them.
std::vector<engine::Kernel> all_kernels() { return engine::kernel_table(); }

TEST(Edges, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  for (const engine::Kernel& kernel : all_kernels()) {
    const auto c = simple_case({2, 4, 2, 70, 20, 24, 40});  // 50 queries stand before the first key
    c->problem.mask.causal = true;
    const Result r = run(*c, kernel);
    for (std::size_t row = 0; row < r.lse.size(); ++row) {
      const bool blind = row % 70 < 50;
      EXPECT_EQ(r.lse[row] == -kInf, blind) << kernel.label() << " row " << row;
      if (!blind) continue;
      for (std::size_t d = 0; d < 40; ++d) EXPECT_EQ(r.o[row * 40 + d], 0);
      for (std::size_t d = 0; d < 24; ++d) EXPECT_EQ(r.d_q[row * 24 + d], 0);
      EXPECT_EQ(r.p_max[row], 0);
    }
    for (const auto* gradient : {&r.d_q, &r.d_k, &r.d_v}) EXPECT_TRUE(all_finite(*gradient));
    for (const HeadStats& head : r.stats.per_head) {
      EXPECT_EQ(head.row_count, 70);
      EXPECT_EQ(head.rows_masked, 50);
      EXPECT_EQ(head.rows_short, 51);  // the first row that sees something sees one key
      EXPECT_EQ(head.rows_not_finite, 0);
    }
  }
}

TEST(Edges, ABiasOfMinusInfinityIsAMask) {
  for (const engine::Kernel& kernel : all_kernels()) {
    const auto c = simple_case({1, 1, 1, 33, 100, 16, 16});
    c->bias = Buffer(DType::kF32, {1, 1, 33, 1});
    c->bias.fill(0);
    c->bias.set(0, 0, 7, 0, -kInf);
    c->link();
    const Result r = run(*c, kernel);
    EXPECT_EQ(r.lse[7], -kInf) << kernel.label();
    EXPECT_EQ(r.o[7 * 16], 0);
    EXPECT_EQ(r.raw_max[7], -kInf);
    EXPECT_EQ(r.stats.at(0, 0).rows_masked, 1);
    for (const auto* x : {&r.o, &r.d_q, &r.d_k, &r.d_v, &r.d_bias}) EXPECT_TRUE(all_finite(*x));
  }
}

TEST(Edges, ARowThatSeesOnlyTheSinkHasItsScoreAsLse) {
  for (const engine::Kernel& kernel : all_kernels()) {
    const auto c = simple_case({1, 2, 1, 5, 0, 8, 8});
    c->sink = {0.5f, -2.0f};
    c->link();
    const Result r = run(*c, kernel);
    for (std::size_t row = 0; row < 10; ++row) EXPECT_EQ(r.lse[row], row < 5 ? 0.5 : -2.0) << kernel.label();
    for (const double x : r.o) EXPECT_EQ(x, 0);
    // dO·O = 0 and there is no gradient on lse, so nothing reaches the sink.
    for (const double x : r.d_sink) EXPECT_EQ(x, 0);
  }
}

TEST(Edges, EmptyLengths) {
  for (const engine::Kernel& kernel : all_kernels()) {
    const Result no_keys = run(*simple_case({2, 2, 1, 9, 0, 8, 4}), kernel);
    for (const double x : no_keys.o) EXPECT_EQ(x, 0);
    for (const double x : no_keys.lse) EXPECT_EQ(x, -kInf);
    for (const double x : no_keys.d_q) EXPECT_EQ(x, 0);
    const Result no_queries = run(*simple_case({2, 2, 1, 0, 9, 8, 4}), kernel);
    EXPECT_EQ(no_queries.d_k.size(), 2u * 9 * 8);
    for (const double x : no_queries.d_k) EXPECT_EQ(x, 0) << kernel.label();
    for (const double x : no_queries.d_v) EXPECT_EQ(x, 0);
    for (const double x : no_queries.d_scale) EXPECT_EQ(x, 0);
    EXPECT_TRUE(run(*simple_case({0, 2, 1, 3, 9, 8, 4}), kernel).o.empty());
    EXPECT_TRUE(run(*simple_case({1, 0, 0, 3, 9, 8, 4}), kernel).o.empty());
  }
}

// Few rows take keys by fours and queries by pairs at these dims; what is left over goes another way.
TEST(Edges, FewRowsAtCommonDims) {
  std::uint64_t seed = 10;
  for (const std::int64_t dim : {64, 128})
    for (const std::int64_t heads : {1, 3, 4, 6, 8})
      for (const std::int64_t keys : {1, 3, 4, 7, 31, 3075}) {
        if (keys > 1000 && heads != 4) continue;  // long enough to be split
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
          const auto c = simple_case({1, heads, 1, 1, keys, dim, dim, dtype}, ++seed);
          const Yardstick yardstick(*c);
          for (const engine::Kernel& kernel : fast_kernels()) {
            if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
            EXPECT_EQ(yardstick.judge(run(*c, kernel)), "") << kernel.label() << ", " << c->describe();
          }
        }
      }
}

TEST(Edges, ScoresOfTenThousandInF16) {
  const auto c = simple_case({1, 2, 2, 50, 300, 64, 64, DType::kF16}, 3, 40);  // unscaled scores spread as 8·1600
  c->problem.scale = Scale::none();
  const Yardstick yardstick(*c);
  const std::vector<double>& score_max = yardstick.exact().score_max;
  ASSERT_GT(*std::max_element(score_max.begin(), score_max.end()), 1e4);
  for (const engine::Kernel& kernel : fast_kernels()) {
    const Result r = run(*c, kernel);
    for (const auto* x : {&r.o, &r.lse, &r.d_q, &r.d_k, &r.d_v}) EXPECT_TRUE(all_finite(*x)) << kernel.label();
    EXPECT_EQ(yardstick.judge(r), "") << kernel.label();
  }
}

TEST(Edges, NoNanWhileScoresAreFiniteInF32) {
  for (const engine::Kernel& kernel : fast_kernels()) {
    for (const double magnitude : {1e4, 1e30, 3.3e38}) {
      const auto c = simple_case({1, 1, 1, 20, 150, 1, 8});
      c->problem.scale = Scale::none();
      c->q.fill(1);
      for (std::int64_t j = 0; j < 150; ++j) c->k.set(0, 0, j, 0, (j % 3 - 1) * magnitude);
      const Result r = run(*c, kernel);
      EXPECT_EQ(r.score_max[0], static_cast<double>(static_cast<float>(magnitude)));
      for (const auto* x : {&r.o, &r.lse, &r.p_max, &r.d_v}) EXPECT_TRUE(all_finite(*x)) << kernel.label() << magnitude;
      EXPECT_TRUE(magnitude > 1e38 || all_finite(r.d_q)) << kernel.label();  // at 3.3e38 dS·k itself passes f32
      EXPECT_NEAR(r.p_max[0], 1.0 / 50, 0x1p-20);                            // the fifty equal largest share everything
    }
  }
}

// Rows that cannot see a poisoned key must not change by a bit, and every row that is not finite is counted.
TEST(Edges, NonFiniteKeysAndValuesTouchOnlyRowsThatSeeThem) {
  int touched = 0, spared = 0;
  const int problems = problem_count(300);
  for (int seed = 0; seed < std::min(problems, 300); ++seed) {
    const auto c =
        random_case(static_cast<std::uint64_t>(seed) + 5000, {.work = 1 << 15, .longest = 300, .paged = false});
    const Shape& s = c->shape;
    if (s.len_kv == 0 || s.len_q == 0) continue;
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::int64_t b = rng.integer(0, s.batch - 1), kv = rng.integer(0, s.heads_kv - 1),
                       j = rng.integer(0, s.len_kv - 1);
    const double poison = std::vector<double>{kNan, kInf, -kInf}[static_cast<std::size_t>(rng.integer(0, 2))];
    Buffer Case::*where = rng.chance(0.5) ? &Case::k : &Case::v;
    for (const engine::Kernel& kernel : all_kernels()) {
      if (kernel.name == "reference" && s.dtype != DType::kF32) continue;
      const Result clean = run(*c, kernel);
      const Buffer before = c.get()->*where;
      (c.get()->*where).set(b, kv, j, rng.integer(0, before.tensor().shape[3] - 1), poison);
      c->link();
      const Result r = run(*c, kernel);
      std::vector<std::int64_t> broken(static_cast<std::size_t>(s.batch * s.heads_q));
      for (std::int64_t row = 0; row < s.batch * s.heads_q * s.len_q; ++row) {
        const std::int64_t rb = row / s.len_q / s.heads_q, h = row / s.len_q % s.heads_q, i = row % s.len_q;
        const auto part_equal = [&](const std::vector<double>& x, const std::vector<double>& y, std::int64_t dim) {
          return std::equal(x.begin() + row * dim, x.begin() + (row + 1) * dim, y.begin() + row * dim);
        };
        const bool finite =
            std::isfinite(r.lse[static_cast<std::size_t>(row)]) || r.lse[static_cast<std::size_t>(row)] == -kInf;
        bool o_finite = true;
        for (std::int64_t d = 0; d < s.dim_v; ++d)
          o_finite = o_finite && std::isfinite(r.o[static_cast<std::size_t>(row * s.dim_v + d)]);
        broken[static_cast<std::size_t>(row / s.len_q)] += !(finite && o_finite);
        if (rb == b && h / s.group() == kv && row_sees(*c, rb, h, i, j)) {
          touched += !(finite && o_finite);
          continue;
        }
        ++spared;
        ASSERT_TRUE(part_equal(r.o, clean.o, s.dim_v) && part_equal(r.lse, clean.lse, 1))
            << seed << kernel.label() << c->describe();
        ASSERT_TRUE(part_equal(r.d_q, clean.d_q, s.dim_qk)) << seed << " " << kernel.label() << "\n" << c->describe();
      }
      for (std::size_t head = 0; head < broken.size(); ++head)
        EXPECT_EQ(r.stats.per_head[head].rows_not_finite, broken[head]) << seed << " " << kernel.label();
      c.get()->*where = before;
      c->link();
    }
  }
  EXPECT_GT(touched, problems / 2);
  EXPECT_GT(spared, problems);
}

// A row whose scores are NaN is NaN as a whole, and so is all that it has a share in: whoever looks at gradients alone,
// as loss scaling does, must see it, too.
TEST(Edges, NothingThatSeesNaNStaysFinite) {
  int rows = 0, keys = 0;
  const int problems = problem_count(200);
  for (int seed = 0; seed < std::min(problems, 200); ++seed) {
    const auto c =
        random_case(static_cast<std::uint64_t>(seed) + 7000, {.work = 1 << 15, .longest = 300, .paged = false});
    const Shape& s = c->shape;
    if (s.len_kv == 0 || s.len_q == 0 || c->problem.transform.present())
      continue;  // a transform of one's own may hide it
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::int64_t b = rng.integer(0, s.batch - 1), h = rng.integer(0, s.heads_q - 1),
                       i = rng.integer(0, s.len_q - 1);
    const std::int64_t row = (b * s.heads_q + h) * s.len_q + i;
    bool sees = false;
    for (std::int64_t j = 0; j < s.len_kv; ++j) sees = sees || row_sees(*c, b, h, i, j);
    if (!sees) continue;
    c->q.set(b, h, i, rng.integer(0, s.dim_qk - 1), kNan);
    c->link();
    for (const engine::Kernel& kernel : all_kernels()) {
      if (kernel.name == "reference" && s.dtype != DType::kF32) continue;
      const Result r = run(*c, kernel);
      const auto none_finite = [](const std::vector<double>& x, std::int64_t at, std::int64_t dim) {
        return std::none_of(x.begin() + at * dim, x.begin() + (at + 1) * dim,
                            [](double v) { return std::isfinite(v); });
      };
      ASSERT_TRUE(std::isnan(r.lse[static_cast<std::size_t>(row)])) << seed << " " << kernel.label() << "\n"
                                                                    << c->describe();
      ASSERT_TRUE(none_finite(r.o, row, s.dim_v)) << seed << " " << kernel.label() << "\n" << c->describe();
      ASSERT_TRUE(none_finite(r.d_q, row, s.dim_qk)) << seed << " " << kernel.label() << "\n" << c->describe();
      ++rows;
      for (std::int64_t j = 0; j < s.len_kv; ++j) {
        if (!row_sees(*c, b, h, i, j)) continue;
        const std::int64_t n = (b * s.heads_kv + h / s.group()) * s.len_kv + j;
        ASSERT_TRUE(none_finite(r.d_k, n, s.dim_qk)) << seed << " " << kernel.label() << "\n" << c->describe();
        ASSERT_TRUE(none_finite(r.d_v, n, s.dim_v)) << seed << " " << kernel.label() << "\n" << c->describe();
        ++keys;
      }
    }
  }
  EXPECT_GT(rows, problems);
  EXPECT_GT(keys, problems);
}

// A poisoned query or output gradient reaches the gradients of the keys it sees, and no others.
TEST(Edges, NonFiniteQueriesTouchOnlyKeysTheySee) {
  int spared = 0;
  const int problems = problem_count(300);
  for (int seed = 0; seed < std::min(problems, 300); ++seed) {
    const auto c =
        random_case(static_cast<std::uint64_t>(seed) + 9000, {.work = 1 << 15, .longest = 300, .paged = false});
    const Shape& s = c->shape;
    if (s.len_kv == 0 || s.len_q == 0) continue;
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::int64_t b = rng.integer(0, s.batch - 1), h = rng.integer(0, s.heads_q - 1),
                       i = rng.integer(0, s.len_q - 1);
    const double poison = std::vector<double>{kNan, kInf, -kInf}[static_cast<std::size_t>(rng.integer(0, 2))];
    Buffer Case::*where = rng.chance(0.5) ? &Case::q : &Case::d_o;
    for (const engine::Kernel& kernel : fast_kernels()) {
      const Result clean = run(*c, kernel);
      const Buffer before = c.get()->*where;
      (c.get()->*where).set(b, h, i, rng.integer(0, before.tensor().shape[3] - 1), poison);
      c->link();
      const Result r = run(*c, kernel);
      for (std::int64_t n = 0; n < s.batch * s.heads_kv * s.len_kv; ++n) {
        const std::int64_t kb = n / s.len_kv / s.heads_kv, kv = n / s.len_kv % s.heads_kv, j = n % s.len_kv;
        if (kb == b && kv == h / s.group() && row_sees(*c, b, h, i, j)) continue;
        ++spared;
        const auto part_equal = [&](const std::vector<double>& x, const std::vector<double>& y, std::int64_t dim) {
          return std::equal(x.begin() + n * dim, x.begin() + (n + 1) * dim, y.begin() + n * dim);
        };
        ASSERT_TRUE(part_equal(r.d_k, clean.d_k, s.dim_qk) && part_equal(r.d_v, clean.d_v, s.dim_v))
            << seed << " " << kernel.label() << "\n"
            << c->describe();
      }
      c.get()->*where = before;
      c->link();
    }
  }
  EXPECT_GT(spared, problems);
}

// With V the identity the output shows the probabilities, so it shows which of them dropout kept.
TEST(Edges, DropoutKeepsWhatTheGeneratorSays) {
  for (const engine::Kernel& kernel : all_kernels()) {
    const std::int64_t keys = 130;
    const auto c = simple_case({2, 2, 1, 70, keys, 8, keys});
    c->v.fill(0);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t j = 0; j < keys; ++j) c->v.set(b, 0, j, j, 1);
    c->problem.dropout = {0.4f, 0x123456789abcdefull};
    const Result r = run(*c, kernel, {.threads = 2, .backward = false});
    for (std::int64_t n = 0; n < static_cast<std::int64_t>(r.o.size()); ++n) {
      const std::int64_t j = n % keys, i = n / keys % 70, h = n / keys / 70 % 2, b = n / keys / 140;
      ASSERT_EQ(r.o[static_cast<std::size_t>(n)] != 0, base::keeps(c->problem.dropout, b, h, i, j))
          << kernel.label() << n;
    }
  }
}

// The error rule must be able to fail: a scale that is wrong in its fifth digit is found in most problems.
TEST(ErrorRule, CatchesASlightlyWrongScale) {
  int caught = 0, tried = 0;
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    const auto c = random_case(seed, {.work = 1 << 16, .longest = 300});
    if (c->shape.dtype != DType::kF32 || c->shape.len_q == 0 || c->shape.len_kv < 2) continue;
    if (c->problem.scale.name() != "sqrt_dk") continue;
    const Yardstick yardstick(*c);
    ASSERT_EQ(yardstick.judge(run(*c, fast_kernels()[0])), "");
    c->problem.scale = Scale::constant((1 + 2e-5) / std::sqrt(static_cast<double>(c->shape.dim_qk)));
    const Result wrong = run(*c, fast_kernels()[0]);
    c->problem.scale = Scale::inv_sqrt_dk();
    ++tried;
    caught += !yardstick.judge(wrong).empty();
  }
  ASSERT_GT(tried, 5);
  EXPECT_GE(2 * caught, tried) << caught << " of " << tried;
}

}  // namespace
}  // namespace rootdk::test
