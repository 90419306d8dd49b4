// The error rule itself: a kernel that rounds as the fast ones do is within it, on every problem; one that is wrong is
// not, wherever what is wrong with it is more than twice what is allowed, and that is so in most problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include "support/case.h"
#include "support/run_case.h"
#include "support/simulated.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

/// Sizes at which the fast kernels of a GPU work: 400 x 400 in bf16 at dim 128 and the like.
std::unique_ptr<Case> tensor_core_case(std::uint64_t seed) {
  Rng rng(seed ^ 0x7E45);
  auto c = std::make_unique<Case>();
  Shape& s = c->shape;
  s.dtype = seed % 2 == 0 ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = std::int64_t{64} << rng.integer(0, 1);
  s.heads_kv = rng.integer(1, 2), s.heads_q = 2;
  s.len_q = rng.integer(65, 400), s.len_kv = rng.chance(0.5) ? s.len_q : rng.integer(65, 400);
  Problem& p = c->problem;
  p.mask.causal = rng.chance(0.5);
  if (rng.chance(0.3)) p.dropout = {static_cast<float>(0.5 * rng.uniform()), rng.next()};
  if (rng.chance(0.3)) {
    c->bias = Buffer(DType::kF32, {1, 1, s.len_q, s.len_kv});
    c->bias.fill_normal(rng, 1);
  }
  if (rng.chance(0.2)) c->sink = {0.5f, -1};
  c->q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}),
  c->d_o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v});
  c->k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}),
  c->v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v});
  for (Buffer* buffer : {&c->q, &c->k, &c->v, &c->d_o}) buffer->fill_normal(rng, 1);
  if (rng.chance(0.5)) {
    c->d_lse = Buffer(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    c->d_lse.fill_normal(rng, 1);
  }
  c->link();
  return c;
}

// Probabilities and dS in the storage dtype, sums in f32, o as it was stored: what the Hopper kernels do, on problems
// from the whole space.
TEST(ErrorRule, HoldsForAKernelThatRoundsAsTheFastOnesDo) {
  int failures = 0;
  double most = 0;
  const auto check = [&](std::uint64_t seed, const Case& c) {
    const Yardstick yardstick(c);
    const Result simulated = run_simulated(c, yardstick.exact());
    most = std::max(most, yardstick.share(simulated));
    const std::string wrong = yardstick.judge(simulated);
    if (wrong.empty()) return;
    ADD_FAILURE() << "seed " << seed << "\n" << wrong << c.describe();
    ++failures;
  };
  const int problems = problem_count(2000);
  for (int seed = 0; seed < problems / 2 && failures < 10; ++seed)
    check(static_cast<std::uint64_t>(seed), *random_case(static_cast<std::uint64_t>(seed) + 70000, {.work = 1 << 19}));
  for (int seed = 0; seed < problems / 200 && failures < 10; ++seed)
    check(static_cast<std::uint64_t>(seed), *tensor_core_case(static_cast<std::uint64_t>(seed) + 500));
  std::printf("the simulated kernel takes up at most %.0f %% of what is allowed\n", 100 * most);
}

struct Mutation {
  const char* name;
  std::function<bool(const Case&)> applies;
  Faults faults = {};
  std::function<void(const Case&, Result&)> change = {};  ///< or what becomes of a right result
};

void scale_by(std::vector<double>& x, double by) {
  for (double& value : x) value *= by;
}

/// The first two heads of each batch item, of rows of so many numbers.
void swap_heads(std::vector<double>& x, std::int64_t batch, std::int64_t heads, std::int64_t head_size) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto first = x.begin() + b * heads * head_size;
    std::swap_ranges(first, first + head_size, first + head_size);
  }
}

/// Whether anything but rounding in double is different.
bool differ(const Result& a, const Result& b) {
  for (const auto member : {&Result::o, &Result::lse, &Result::d_q, &Result::d_k, &Result::d_v}) {
    double size = 0, difference = 0;
    for (std::size_t i = 0; i < (a.*member).size(); ++i) {
      if (!std::isfinite((b.*member)[i])) continue;
      size = std::max(size, std::fabs((b.*member)[i])),
      difference = std::max(difference, std::fabs((a.*member)[i] - (b.*member)[i]));
    }
    if (difference > 1e-9 * size) return true;
  }
  return false;
}

bool always(const Case&) { return true; }

std::vector<Mutation> mutations() {
  std::vector<Mutation> all;
  const struct {
    const char *zero, *swapped, *off;
    std::vector<double> Result::*member;
    bool query;
    std::int64_t Shape::*dim;
  } tensors[] = {{"o is zero", "two heads of o swapped", "o off by 2 %", &Result::o, true, &Shape::dim_v},
                 {"dQ is zero", "two heads of dQ swapped", "dQ off by 2 %", &Result::d_q, true, &Shape::dim_qk},
                 {"dK is zero", "two heads of dK swapped", "dK off by 2 %", &Result::d_k, false, &Shape::dim_qk},
                 {"dV is zero", "two heads of dV swapped", "dV off by 2 %", &Result::d_v, false, &Shape::dim_v}};
  for (const auto& t : tensors) {
    const auto member = t.member;
    const bool query = t.query;
    const auto dim = t.dim;
    all.push_back({t.zero, always, {}, [=](const Case&, Result& r) { scale_by(r.*member, 0); }});
    all.push_back({t.swapped,
                   [=](const Case& c) { return (query ? c.shape.heads_q : c.shape.heads_kv) >= 2; },
                   {},
                   [=](const Case& c, Result& r) {
                     const Shape& s = c.shape;
                     swap_heads(r.*member, s.batch, query ? s.heads_q : s.heads_kv,
                                (query ? s.len_q : s.len_kv) * s.*dim);
                   }});
    all.push_back({t.off, always, {}, [=](const Case&, Result& r) { scale_by(r.*member, 1.02); }});
  }
  all.push_back({"scale off by 1 %", always, {.scale = 1.01}});
  all.push_back({"D left out", always, {.no_delta = true}});
  all.push_back({"dLSE left out", [](const Case& c) { return !c.d_lse.empty(); }, {.no_d_lse = true}});
  all.push_back({"a key of each tile dropped, forward", always, {.drop_forward = true}});
  all.push_back({"a key of each tile dropped, backward", always, {.drop_backward = true}});
  all.push_back({"the last key of causal rows dropped",
                 [](const Case& c) { return c.problem.mask.causal; },
                 {.drop_last = true}});
  all.push_back(
      {"dropout of the next row", [](const Case& c) { return c.problem.dropout.p > 0; }, {.next_dropout = true}});
  all.push_back({"bias of the next row, in every 64th",
                 [](const Case& c) { return !c.bias.empty() && c.bias.tensor().shape[2] > 1; },
                 {.next_bias = true}});
  return all;
}

TEST(ErrorRule, CatchesWhatIsWrong) {
  struct Count {
    int applies = 0, large = 0, caught = 0;
  };
  const std::vector<Mutation> all = mutations();
  std::vector<std::map<DType, Count>> counts(all.size());
  const int problems = problem_count(2000);
  const auto look = [&](const Case& c, std::uint64_t seed) {
    const Yardstick yardstick(c);
    const Result& exact = yardstick.exact();
    const Result simulated = run_simulated(c, exact), right = run_simulated_exactly(c, exact, {});
    for (std::size_t x = 0; x < all.size(); ++x) {
      const Mutation& mutation = all[x];
      if (!mutation.applies(c)) continue;
      // What is wrong exactly, and as it would come out of a kernel that also rounds.
      Result wrong = exact, rounded = simulated;
      wrong.rounded_weights = wrong.rounded_backward = true;
      if (mutation.change) {
        mutation.change(c, wrong), mutation.change(c, rounded);
      } else {
        wrong = run_simulated_exactly(c, exact, mutation.faults);
        // Tensors have to show it: not everyone wants the gradients that are sums over rows.
        for (const auto member :
             {&Result::d_scale, &Result::d_bias, &Result::d_sink, &Result::d_log_n_gain, &Result::d_log_n_offset})
          wrong.*member = exact.*member;
        rounded = wrong;
        for (const auto member : {&Result::o, &Result::lse, &Result::d_q, &Result::d_k, &Result::d_v})
          for (std::size_t i = 0; i < (rounded.*member).size(); ++i)
            if (std::isfinite((exact.*member)[i])) (rounded.*member)[i] += (simulated.*member)[i] - (exact.*member)[i];
      }
      if (!differ(wrong, mutation.change ? exact : right))
        continue;  // as with dQ of rows that see one key, which is 0 anyway
      const double share = yardstick.share(wrong);
      Count& count = counts[x][c.shape.dtype];
      const bool caught = !yardstick.judge(rounded).empty();
      ++count.applies, count.large += share > 2, count.caught += caught;
      EXPECT_TRUE(share <= 2 || caught) << mutation.name << ", seed " << seed << ", " << share
                                        << " times what is allowed\n"
                                        << c.describe();
    }
  };
  for (int seed = 0; seed < problems / 20; ++seed)
    look(*random_case(static_cast<std::uint64_t>(seed) + 80000, {.work = 1 << 18}), static_cast<std::uint64_t>(seed));
  for (int seed = 0; seed < problems / 125; ++seed)
    look(*tensor_core_case(static_cast<std::uint64_t>(seed)), static_cast<std::uint64_t>(seed));
  // Of the problems in which something is wrong: those where it is more than twice what is allowed, and those that were
  // caught.
  std::printf("%-38s %22s %22s %22s\n", "", "f32", "f16", "bf16");
  for (std::size_t x = 0; x < all.size(); ++x) {
    Count total;
    std::string line;
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Count& count = counts[x][dtype];
      total.applies += count.applies, total.large += count.large;
      char cell[40];
      std::snprintf(cell, sizeof cell, " %6d large %4d of %-4d", count.caught, count.large, count.applies);
      line += cell;
    }
    std::printf("%-38s %s\n", all[x].name, line.c_str());
    if (problems >= 1000) {
      EXPECT_GT(2 * total.large, total.applies) << all[x].name;
    }
  }
}

}  // namespace
}  // namespace rootdk::test
