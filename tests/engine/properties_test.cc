// What must be true of attention whatever the numbers: RapidCheck draws the problems.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/case.h"
#include "support/run_case.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

constexpr CaseLimits kSmall{.work = 1 << 18, .longest = 4096};

// RapidCheck grows its cases from small to large; ours carry their own sizes, so every seed is as good as another.
std::uint64_t any_seed() { return *rc::gen::resize(100, rc::gen::inRange<std::uint64_t>(0, 1u << 30)); }

engine::Kernel any_kernel() {
  const auto kernels = fast_kernels();
  return kernels[*rc::gen::inRange<std::size_t>(0, kernels.size())];
}

// Two results of the same mathematics may differ by the rounding of both.
void expect_close(const Case& c, const std::vector<double>& a, const std::vector<double>& b, double floor,
                  const char* what) {
  RC_ASSERT(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (!(std::fabs(a[i] - b[i]) <= 2 * floor)) RC_FAIL(std::string(what) + " differs\n" + c.describe());
  }
}

TEST(Properties, SameBitsAtAnyThreadCount) {
  EXPECT_TRUE(rc::check("identical bits at 1, 2 and 5 threads", [] {
    const auto c = random_case(any_seed(), kSmall);
    const engine::Kernel kernel = any_kernel();
    const Result one = run(*c, kernel, {.threads = 1});
    RC_ASSERT(run(*c, kernel, {.threads = 2}).same_as(one));
    RC_ASSERT(run(*c, kernel, {.threads = 5}).same_as(one));
  }));
}

TEST(Properties, AloneAsInABatch) {
  EXPECT_TRUE(rc::check("a batch item alone has the bits it has in a batch", [] {
    auto c = random_case(any_seed(), kSmall);
    c->problem.dropout.p = 0;  // the pattern depends on the batch index, by design
    const engine::Kernel kernel = any_kernel();
    const Result all = run(*c, kernel);
    for (std::int64_t b = 0; b < c->shape.batch; ++b) {
      const Result alone = run(*c->item(b), kernel);
      const auto equals_part = [&](const std::vector<double>& whole, const std::vector<double>& part) {
        const auto from = whole.begin() + static_cast<std::ptrdiff_t>(part.size()) * b;
        RC_ASSERT(std::equal(part.begin(), part.end(), from));
      };
      equals_part(all.o, alone.o);
      equals_part(all.lse, alone.lse);
      equals_part(all.d_q, alone.d_q);
      equals_part(all.d_k, alone.d_k);
      equals_part(all.d_v, alone.d_v);
    }
  }));
}

TEST(Properties, SplittingKeysAndMergingChangesOnlyRounding) {
  EXPECT_TRUE(rc::check("attention over two parts of the keys, merged, is attention over all", [] {
    auto c = random_case(any_seed(), {.work = 1 << 18, .longest = 4096, .paged = false});
    c->problem.dropout.p = 0;
    c->problem.sink = {};
    c->sink.clear();
    c->forget_key_counts();
    const Shape& s = c->shape;
    const engine::Kernel kernel = any_kernel();
    const Result whole = run(*c, kernel, {.threads = 2, .backward = false});
    // Hide one part, then the other, with a boolean mask on top of what the case has.
    const std::int64_t cut = *rc::gen::inRange<std::int64_t>(0, s.len_kv + 1);
    const Buffer before = c->allowed;
    std::vector<Buffer> outputs, lses;
    for (const bool first : {true, false}) {
      Buffer allowed(DType::kBool, {s.batch, s.heads_q, s.len_q, s.len_kv});
      for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.heads_q; ++h)
          for (std::int64_t i = 0; i < s.len_q; ++i)
            for (std::int64_t j = 0; j < s.len_kv; ++j)
              allowed.set(b, h, i, j, (j < cut) == first && (before.empty() || before.get(b, h, i, j) != 0));
      c->allowed = allowed;
      c->link();
      const Result part = run(*c, kernel, {.threads = 2, .backward = false});
      Buffer o(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}), lse(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
      for (std::int64_t n = 0, b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.heads_q; ++h)
          for (std::int64_t i = 0; i < s.len_q; ++i, ++n) {
            lse.set(b, h, i, 0, part.lse[static_cast<std::size_t>(n)]);
            for (std::int64_t d = 0; d < s.dim_v; ++d)
              o.set(b, h, i, d, part.o[static_cast<std::size_t>(n * s.dim_v + d)]);
          }
      outputs.push_back(o);
      lses.push_back(lse);
    }
    c->allowed = before;
    c->link();
    merge(outputs[0].tensor(), lses[0].tensor(), std::as_const(outputs[1]).tensor(), std::as_const(lses[1]).tensor());
    const Floors f = floors(*c, whole);
    expect_close(*c, outputs[0].values(), whole.o, 2 * f.o, "o");
    expect_close(*c, lses[0].values(), whole.lse, f.lse, "lse");
  }));
}

TEST(Properties, PermutingKeysPermutesNothingInTheOutput) {
  EXPECT_TRUE(rc::check("keys in another order give the same output", [] {
    auto c = random_case(any_seed(), {.work = 1 << 18, .longest = 4096, .paged = false});
    c->problem.dropout.p = 0;
    c->problem.mask = {};  // positions mean nothing now; `allowed` is permuted along
    c->bias = Buffer(), c->slopes.clear(), c->key_starts.clear(), c->key_lengths.clear(), c->query_lengths.clear();
    c->forget_key_counts();
    const Shape& s = c->shape;
    Rng rng(any_seed());
    c->allowed = Buffer(DType::kBool, {1, 1, 1, s.len_kv});
    for (std::int64_t j = 0; j < s.len_kv; ++j) c->allowed.set(0, 0, 0, j, rng.chance(0.8));
    c->link();
    const engine::Kernel kernel = any_kernel();
    const Result before = run(*c, kernel, {.threads = 2, .backward = false});
    std::vector<std::int64_t> order(static_cast<std::size_t>(s.len_kv));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(i) - 1))]);
    const Buffer k = c->k, v = c->v, allowed = c->allowed;
    for (std::int64_t j = 0; j < s.len_kv; ++j) {
      const std::int64_t from = order[static_cast<std::size_t>(j)];
      c->allowed.set(0, 0, 0, j, allowed.get(0, 0, 0, from));
      for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.heads_kv; ++h) {
          for (std::int64_t d = 0; d < s.dim_qk; ++d) c->k.set(b, h, j, d, k.get(b, h, from, d));
          for (std::int64_t d = 0; d < s.dim_v; ++d) c->v.set(b, h, j, d, v.get(b, h, from, d));
        }
    }
    const Result after = run(*c, kernel, {.threads = 2, .backward = false});
    const Floors f = floors(*c, before);
    expect_close(*c, after.o, before.o, f.o, "o");
    expect_close(*c, after.lse, before.lse, f.lse, "lse");
    RC_ASSERT(after.score_max == before.score_max);
  }));
}

TEST(Properties, AddingAConstantToAllScoresChangesNothing) {
  EXPECT_TRUE(rc::check("a constant bias moves lse by itself and o not at all", [] {
    auto c = random_case(any_seed(), kSmall);
    c->problem.sink = {};
    c->sink.clear();
    c->bias = Buffer();
    c->forget_key_counts();
    c->link();
    const engine::Kernel kernel = any_kernel();
    const Result before = run(*c, kernel, {.threads = 2, .backward = false});
    const auto shift = static_cast<float>(*rc::gen::inRange(-40, 41));
    c->bias = Buffer(DType::kF32, {1, 1, 1, 1});
    c->bias.fill(static_cast<double>(shift));
    c->link();
    const Result after = run(*c, kernel, {.threads = 2, .backward = false});
    const Floors f = floors(*c, after);  // knows the larger scores
    expect_close(*c, after.o, before.o, f.o, "o");
    std::vector<double> moved = before.lse;
    for (double& x : moved) x += static_cast<double>(shift);
    expect_close(*c, after.lse, moved, f.lse, "lse");
  }));
}

TEST(Properties, ProbabilitiesSumToOne) {
  EXPECT_TRUE(rc::check("with V = 1 every row that sees a key gives 1, the others 0", [] {
    auto c = random_case(any_seed(), kSmall);
    c->problem.dropout.p = 0;
    c->problem.sink = {};
    c->sink.clear();
    c->v.fill(1);
    c->link();
    const Result r = run(*c, any_kernel(), {.threads = 2, .backward = false});
    const auto dim = static_cast<std::size_t>(c->shape.dim_v);
    for (std::size_t i = 0; i < r.o.size(); ++i) {
      const double lse = r.lse[i / dim];
      const double expected = lse == -std::numeric_limits<double>::infinity() ? 0 : 1;
      // Σp and Σp·1 are the same numbers summed in different orders: u·√n for n terms of a random walk, 8 of them for
      // certain, and 1 is exact in every dtype.
      RC_ASSERT(std::fabs(r.o[i] - expected) <= 8 * 0x1p-24 * std::sqrt(4096.0));
    }
  }));
}

TEST(Properties, DoublingTheScaleIsDoublingTheQueries) {
  EXPECT_TRUE(rc::check("c → 2c and q → 2q are the same, to the bit", [] {
    auto c = random_case(any_seed(), kSmall);
    RC_PRE(c->shape.dtype != DType::kF16);  // twice a subnormal f16 may round differently
    const double factor = 0.3;
    c->problem.scale = Scale::constant(2 * factor);
    const engine::Kernel kernel = any_kernel();
    const Result scaled = run(*c, kernel, {.threads = 2, .backward = false});
    c->problem.scale = Scale::constant(factor);
    const Buffer q = c->q;
    const Extents e = q.tensor().shape;
    for (std::int64_t b = 0; b < e[0]; ++b)
      for (std::int64_t h = 0; h < e[1]; ++h)
        for (std::int64_t i = 0; i < e[2]; ++i)
          for (std::int64_t d = 0; d < e[3]; ++d) c->q.set(b, h, i, d, 2 * q.get(b, h, i, d));
    RC_ASSERT(run(*c, kernel, {.threads = 2, .backward = false}).same_as(scaled));
  }));
}

}  // namespace
}  // namespace rootdk::test
