// The engine tests' random sweep on a GPU, against the double reference with the same error rule: outputs, every
// gradient, statistics. Std and CUDA only, so that it builds where nothing but the toolkit is installed.
//
//   sweep [PROBLEMS [FIRST-SEED [PART]]]      one part only, for tools under which the rest would take too long: first,
//   statistics, backward, decode, sequences, hidden, numbers, few, long, many, tiles, same_bits or statistics_long
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "cuda/api/backend.h"
#include "cuda/long_statistics.h"
#include "cuda/run_on_device.h"
#include "support/bits.h"
#include "support/close_stats.h"
#include "support/hidden.h"
#include "support/rng.h"
#include "support/tolerance.h"

namespace rootdk::test {
namespace {

std::mutex gpu, report;
int failures = 0, problems = 0, on_hopper = 0, back_on_hopper = 0, heads_compared = 0, hidden_compared = 0;

void fail(std::uint64_t seed, const std::string& what, const Case& c) {
  const std::lock_guard lock(report);
  if (++failures > 20) return;
  const Shape& s = c.shape;
  std::printf("FAILED seed %llu (%s, batch %lld, heads %lld/%lld, %lld x %lld, dims %lld %lld, %s): %s\n",
              static_cast<unsigned long long>(seed), name_of(s.dtype), static_cast<long long>(s.batch),
              static_cast<long long>(s.heads_q), static_cast<long long>(s.heads_kv), static_cast<long long>(s.len_q),
              static_cast<long long>(s.len_kv), static_cast<long long>(s.dim_qk), static_cast<long long>(s.dim_v),
              chosen_kernel(c).c_str(), what.c_str());
}

Result on_device(const Case& c, const DeviceOptions& options = {}) {
  const std::lock_guard lock(gpu);
  return run_on_device(c, options);
}

/// A host function cannot run on a GPU; everything else can.
std::unique_ptr<Case> device_case(std::uint64_t seed, const CaseLimits& limits = {}) {
  auto c = random_case(seed, limits);
  c->problem.transform = {};
  return c;
}

/// Zeros where nothing sees, and a copy of the case that holds poison there: a run of one has the bits of a run of the
/// other.
class Hidden {
 public:
  Hidden(Case& c, std::uint64_t seed) : case_(c), sight_(c), poisoned_(c.copy()) {
    if (fill_hidden(c, sight_, Filling::kZeros)) fill_hidden(*poisoned_, sight_, Filling::kPoison, seed);
    else poisoned_.reset();
  }

  /// `zeros`: what a run of the case itself gave. Where nothing is hidden there is nothing to find.
  std::string leaks(const Result& zeros, const DeviceOptions& options = {}) const {
    if (!poisoned_) return {};
    {
      const std::lock_guard lock(report);
      ++hidden_compared;
    }
    const Result poisoned = on_device(*poisoned_, options);
    const std::string wrong = other_bits(zeros, poisoned) + hidden_gradients(case_, sight_, poisoned);
    return wrong.empty() ? wrong : "poison where nothing sees it shows: " + wrong;
  }

  const Sight& sight() const { return sight_; }

 private:
  const Case& case_;
  Sight sight_;
  std::unique_ptr<Case> poisoned_;
};

/// A problem without masks or anything else.
void clear(Case& c) {
  c.problem = {};
  c.scale.clear(), c.gains.clear(), c.offsets.clear(), c.slopes.clear(), c.sink.clear(), c.key_starts.clear(),
      c.key_lengths.clear(), c.query_lengths.clear(), c.q_starts.clear(), c.kv_starts.clear();
  c.table.clear(), c.allowed = {}, c.bias = {}, c.d_lse = {};
}

/// Tensors of the case's shape.
void fill(Case& c, Rng& rng) {
  const Shape& s = c.shape;
  c.q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, Layout::kRowMajor),
  c.d_o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, Layout::kRowMajor);
  c.k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, Layout::kRowMajor),
  c.v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, Layout::kRowMajor);
  for (Buffer* buffer : {&c.q, &c.k, &c.v, &c.d_o}) buffer->fill_normal(rng, 1);
  c.link();
}

/// Sizes and layouts that the fast kernels take, with the rest as drawn: else random sizes would hardly ever reach
/// them. Of the backward ones only what the fast backward takes, too, which of what is drawn otherwise would be less
/// than half; of the decoding ones few queries and more keys.
enum class Fast { kAny, kBackward, kDecode };

void make_fast(Case& c, std::uint64_t seed, Fast kind = Fast::kAny) {
  const bool backward = kind == Fast::kBackward;
  Rng rng(seed ^ 0xFA57);
  const auto chance = [&](double p) { return rng.chance(p) && !backward; };  // of what the fast backward does not take
  Shape& s = c.shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = std::int64_t{64} << rng.integer(0, 2);
  if (rng.chance(0.3))
    s.dim_qk = 8 * rng.integer(1, 32), s.dim_v = rng.chance(0.5) ? s.dim_qk : 8 * rng.integer(1, 32);  // padded
  if (backward && rng.chance(0.3))
    s.dim_qk = 8 * rng.integer(17, 32), s.dim_v = rng.chance(0.5) ? s.dim_qk : 8 * rng.integer(1, 32);
  s.batch = rng.integer(1, 2);
  s.heads_kv = rng.integer(1, 2);
  s.heads_q = s.heads_kv * (rng.chance(0.5) ? 1 : rng.integer(2, 5));
  s.len_kv = rng.log_integer(1, 900);
  s.len_q = rng.chance(0.3) ? rng.integer(1, 8) : rng.chance(0.4) ? s.len_kv : rng.log_integer(1, 500);
  if (rng.chance(0.1)) s.len_q = rng.integer(1, 3), s.len_kv = rng.integer(1000, 6000);
  if (kind == Fast::kDecode) {
    s.batch = rng.integer(1, 3);
    s.heads_q = s.heads_kv * (rng.chance(0.5) ? 4 : rng.log_integer(1, 40));
    s.len_q = rng.chance(0.5) ? 1 : rng.log_integer(1, 64 / s.group() + 1);
    s.len_kv = rng.chance(0.2) ? std::max<std::int64_t>(1, 512 * rng.integer(1, 4) + rng.integer(-17, 17))
                               : rng.log_integer(1, 3000);
    if (rng.chance(0.1)) s.len_q = 1, s.heads_q = s.heads_kv * rng.integer(1, 4), s.len_kv = rng.integer(8000, 40000);
  }
  const auto layout = [&] { return rng.chance(0.5) ? Layout::kRowMajor : Layout::kTokensFirst; };
  Problem& p = c.problem;
  clear(c);
  if (rng.chance(0.3)) p.scale = Scale::constant(rng.uniform());
  if (chance(0.1)) p.scale = Scale::constant(rng.chance(0.3) ? 0 : -rng.uniform());
  if (rng.chance(0.2)) {
    p.scale.rule = Scale::Rule::kPerHead;
    for (std::int64_t h = 0; h < s.heads_q; ++h) c.scale.push_back(static_cast<float>(0.01 + 0.5 * rng.uniform()));
  }
  if (rng.chance(0.4)) p.mask.causal = true;
  if (rng.chance(0.2))
    p.mask.window = Window{rng.log_integer(1, s.len_kv + 2) - 1,
                           rng.chance(0.5) ? Window::kUnbounded : rng.log_integer(1, s.len_kv + 2) - 1};
  if (rng.chance(0.2))
    for (std::int64_t b = 0; b < s.batch; ++b) c.key_lengths.push_back(rng.integer(0, s.len_kv));
  if (rng.chance(0.15)) {
    p.mask.documents = Documents{};
    c.q_starts = {0, rng.integer(0, s.len_q), s.len_q}, c.kv_starts = {0, rng.integer(0, s.len_kv), s.len_kv};
  }
  if (rng.chance(0.2)) p.mask.diagonal = Diagonal::top_left();
  if (rng.chance(0.1)) p.mask.diagonal = Diagonal::at(rng.integer(-s.len_q, s.len_kv));
  if (rng.chance(0.2))
    for (std::int64_t h = 0; h < s.heads_q; ++h) c.sink.push_back(static_cast<float>(rng.normal()));
  if (chance(0.15)) p.soft_cap = static_cast<float>(1 + 30 * rng.uniform());
  if (chance(0.1))
    for (std::int64_t h = 0; h < s.heads_q; ++h) c.slopes.push_back(static_cast<float>(0.3 * rng.uniform()));
  const Extents pairs = {rng.chance(0.5) ? 1 : s.batch, rng.chance(0.5) ? 1 : s.heads_q, rng.chance(0.2) ? 1 : s.len_q,
                         rng.chance(0.2) ? 1 : s.len_kv};
  if (chance(0.1)) {
    c.allowed = Buffer(DType::kBool, pairs, layout());
    for (std::int64_t b = 0; b < pairs[0]; ++b)
      for (std::int64_t h = 0; h < pairs[1]; ++h)
        for (std::int64_t i = 0; i < pairs[2]; ++i)
          for (std::int64_t j = 0; j < pairs[3]; ++j) c.allowed.set(b, h, i, j, rng.chance(0.7) ? 1 : 0);
  }
  if (chance(0.1)) {
    c.bias = Buffer(rng.chance(0.5) ? DType::kF32 : s.dtype, pairs, layout());
    c.bias.fill_normal(rng, 1);
  }
  if (chance(0.1) && c.allowed.empty())
    p.scale = rng.chance(0.5) ? p.scale.with_entropy_invariance() : p.scale.with_ssmax(rng.normal() / 2, rng.normal());
  if (chance(0.1)) p.dropout = {static_cast<float>(0.9 * rng.uniform()), rng.next()};
  c.q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, layout());
  c.k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, layout());
  c.v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, layout());
  c.d_o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, layout());
  c.d_lse = {};
  if (rng.chance(0.2)) {
    c.d_lse = Buffer(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    c.d_lse.fill_normal(rng, 1);
  }
  c.q.fill_normal(rng, rng.chance(0.8) ? 1 : 3);
  for (Buffer* buffer : {&c.k, &c.v, &c.d_o}) buffer->fill_normal(rng, 1);
  c.out_layout = layout();
  c.link();
}

/// What the sanitizers go through, of which they can do little: every dim of the fast backward, causal and not. Six of
/// several tiles; six with more tiles of keys than a card has multiprocessors, so that a block has more than one; six
/// of one row and many keys, where blocks that wait for each other have loaded all they need before others have
/// started.
void make_few(Case& c, std::uint64_t seed) {
  Rng rng(seed);
  const bool many = seed / 6 % 3 == 1, one_row = seed / 6 % 3 == 2;
  Shape& s = c.shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = std::int64_t{64} << seed % 3;
  s.batch = 1, s.heads_kv = many ? 70 : 1, s.heads_q = s.heads_kv * (many ? 1 : 2);
  s.len_q = s.len_kv = many ? rng.integer(129, 140) : rng.integer(300, 400);
  if (one_row) s.batch = s.heads_kv = 2, s.heads_q = 4, s.len_q = 1, s.len_kv = rng.integer(5000, 6000);
  clear(c);
  c.problem.mask.causal = seed / 3 % 2 == 1;
  fill(c, rng);
}

std::vector<std::int64_t> starts(Rng& rng, std::int64_t length, std::int64_t documents) {
  std::vector<std::int64_t> out = {0};
  for (std::int64_t d = 0; d < documents; ++d) out.push_back(rng.integer(0, length));
  std::sort(out.begin(), out.end());
  if (rng.chance(0.5)) out.back() = length;  // else the last rows belong to no document
  return out;
}

/// Problems of the fast kernels' sizes that are all about masks: of every kind, alone and together, and never none.
void make_masked(Case& c, std::uint64_t seed, Fast kind) {
  Rng rng(seed ^ 0x41D);
  Shape& s = c.shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = std::int64_t{64} << rng.integer(0, 2);
  s.batch = rng.integer(1, 2), s.heads_kv = rng.integer(1, 2),
  s.heads_q = s.heads_kv * (rng.chance(0.5) ? 1 : rng.integer(2, 4));
  s.len_kv = rng.chance(0.5) ? rng.integer(1, 600) : rng.log_integer(1, 900);
  s.len_q = rng.chance(0.2)   ? rng.integer(1, 8)
            : rng.chance(0.3) ? std::min<std::int64_t>(s.len_kv, 512)
                              : rng.integer(1, 512);
  if (kind == Fast::kDecode)
    s.len_q = rng.integer(1, 4), s.len_kv = rng.chance(0.7) ? rng.integer(1, 3000) : rng.integer(3000, 12000);
  if (rootdk_cuda_backend()->current_card().major < 9)
    s.len_q = (s.len_q + 7) / 8, s.len_kv = (s.len_kv + 7) / 8,
    s.dim_qk = s.dim_v = s.dim_qk / 2;  // nothing is fast there
  clear(c);
  Problem& p = c.problem;
  Mask& mask = p.mask;
  const bool dense = kind != Fast::kBackward;  // which the fast backward does not take
  while (!mask.causal && !mask.window && c.key_lengths.empty() && !mask.documents && c.allowed.empty() &&
         c.bias.empty()) {
    mask.causal = rng.chance(0.4);
    if (rng.chance(0.2))
      mask.window = Window{rng.log_integer(1, s.len_kv + 2) - 1,
                           rng.chance(0.5) ? Window::kUnbounded : rng.log_integer(1, s.len_kv + 2) - 1};
    if (rng.chance(0.35))
      for (std::int64_t b = 0; b < s.batch; ++b)
        c.key_lengths.push_back(rng.chance(0.5) ? std::max<std::int64_t>(0, s.len_kv - rng.integer(0, 70))
                                                : rng.integer(0, s.len_kv));
    if (rng.chance(0.25)) {
      const std::int64_t documents = rng.integer(1, 4);
      mask.documents = Documents{}, c.q_starts = starts(rng, s.len_q, documents),
      c.kv_starts = starts(rng, s.len_kv, documents);
    }
    switch (rng.integer(0, 5)) {
      case 0:
      case 1: mask.diagonal = Diagonal::top_left(); break;
      case 2: mask.diagonal = Diagonal::at(rng.integer(-s.len_q, s.len_kv)); break;
      case 3:
        if (!c.key_lengths.empty() && !mask.documents) mask.diagonal = Diagonal::last_key();
        break;
      default: break;
    }
    // A boolean mask, or biases of −∞: of pairs, of whole keys and of whole queries.
    for (const bool boolean : {true, false}) {
      if (!dense || !rng.chance(0.2)) continue;
      const Extents shape = {rng.chance(0.5) ? 1 : s.batch, rng.chance(0.5) ? 1 : s.heads_q,
                             rng.chance(0.3) ? 1 : s.len_q, rng.chance(0.1) ? 1 : s.len_kv};
      Buffer& t = boolean ? c.allowed : c.bias;
      t = Buffer(boolean ? DType::kBool : rng.chance(0.5) ? DType::kF32 : s.dtype, shape);
      if (!boolean) t.fill_normal(rng, 1);
      std::vector<bool> queries, keys;
      for (std::int64_t i = 0; i < shape[2]; ++i) queries.push_back(rng.chance(0.1));
      for (std::int64_t j = 0; j < shape[3]; ++j) keys.push_back(rng.chance(0.2));
      for (std::int64_t b = 0; b < shape[0]; ++b)
        for (std::int64_t h = 0; h < shape[1]; ++h)
          for (std::int64_t i = 0; i < shape[2]; ++i)
            for (std::int64_t j = 0; j < shape[3]; ++j) {
              const bool hides =
                  queries[static_cast<std::size_t>(i)] || keys[static_cast<std::size_t>(j)] || rng.chance(0.2);
              if (boolean) t.set(b, h, i, j, hides ? 0 : 1);
              else if (hides) t.set(b, h, i, j, -std::numeric_limits<double>::infinity());
            }
    }
  }
  Rng padded(seed ^ 0xFADED);
  if (dense && padded.chance(0.4)) draw_padding(padded, c, 0.5);  // likewise
  if (rng.chance(0.2))
    for (std::int64_t h = 0; h < s.heads_q; ++h) c.sink.push_back(static_cast<float>(rng.normal()));
  if (rng.chance(0.2)) {
    p.scale.rule = Scale::Rule::kPerHead;
    for (std::int64_t h = 0; h < s.heads_q; ++h) c.scale.push_back(static_cast<float>(0.01 + 0.5 * rng.uniform()));
  }
  if (dense && rng.chance(0.1)) p.soft_cap = static_cast<float>(1 + 30 * rng.uniform());
  if (dense && rng.chance(0.1)) p.dropout = {static_cast<float>(0.9 * rng.uniform()), rng.next()};
  if (rng.chance(0.3)) {
    c.d_lse = Buffer(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    c.d_lse.fill_normal(rng, 1);
  }
  c.out_layout = Layout::kRowMajor;
  fill(c, rng);
  p.stats = static_cast<StatsLevel>(rng.integer(0, 2));
  if (p.stats != StatsLevel::kFull) return;
  if (rng.chance(0.3)) p.stats_options.sample = rng.integer(2, 4), p.stats_options.sample_offset = rng.integer(0, 1);
  p.stats_options.gaps = rng.chance(0.5), p.stats_options.key_mass = rng.chance(0.5),
  p.stats_options.by_keys = rng.chance(0.3);
}

/// What is hidden stays hidden: from all, and from those that do not see it.
void hidden(std::uint64_t seed) {
  const auto c = device_case(seed);
  const Fast kind = static_cast<Fast>(seed % 3);
  make_masked(*c, seed, kind);
  const DeviceOptions options{.backward = kind != Fast::kDecode, .rows = seed / 3 % 2 == 0};
  const Hidden hidden(*c, seed);
  const Result zeros = on_device(*c, options);
  std::string wrong = hidden.leaks(zeros, options);
  if (seed % 2 == 0)
    wrong += Yardstick(*c, run_plainly(*c, options.backward), run_exactly(*c, options.backward)).judge(zeros);
  const Stain stain(*c, hidden.sight(), seed);
  if (stain.found()) {
    const auto poisoned = c->copy();
    stain.fill(*c, Filling::kZeros), stain.fill(*poisoned, Filling::kPoison, seed);
    const std::string spread = stain.spread(on_device(*c, options), on_device(*poisoned, options));
    if (!spread.empty()) wrong += "a poisoned row of " + stain.where() + " shows where it is not seen: " + spread;
  }
  if (!wrong.empty()) fail(seed, wrong, *c);
}

enum class Sizes { kAny, kFast, kFastBackward, kFew };

void sweep(std::uint64_t seed, Sizes sizes) {
  const auto c = device_case(seed);
  if (sizes == Sizes::kFew) make_few(*c, seed);
  else if (sizes != Sizes::kAny) make_fast(*c, seed, sizes == Sizes::kFastBackward ? Fast::kBackward : Fast::kAny);
  const Hidden hidden(*c, seed);
  const Yardstick yardstick(*c, run_plainly(*c), run_exactly(*c));
  const Result result = on_device(*c);
  const std::string wrong = yardstick.judge(result) + hidden.leaks(result);
  if (!wrong.empty()) fail(seed, wrong, *c);
  if (c->problem.dropout.p > 0 && !result.same_as(on_device(*c, {.seed_there = true})))
    fail(seed, "other bits where the seed lies on the device", *c);
  if (sizes == Sizes::kFastBackward || sizes == Sizes::kFew) {
    if (!result.rounded_backward) fail(seed, "not the fast backward", *c);
    const Result alone = on_device(*c, {.sums = false});
    if (alone.d_q != result.d_q || alone.d_k != result.d_k || alone.d_v != result.d_v)
      fail(seed, "gradients have other bits without the sums over rows", *c);
  }
  const std::lock_guard lock(report);
  ++problems;
  if (chosen_kernel(*c) == "hopper") ++on_hopper;
  if (result.rounded_backward) ++back_on_hopper;
}

/// Forward with few queries; also what the records count.
void decode(std::uint64_t seed) {
  const auto c = device_case(seed);
  make_fast(*c, seed, Fast::kDecode);
  c->problem.stats = seed % 4 == 0 ? StatsLevel::kNone : StatsLevel::kBasic;
  const Hidden hidden(*c, seed);
  const Result exact = run_exactly(*c, false), fast = on_device(*c, {.backward = false});
  std::string wrong =
      Yardstick(*c, run_plainly(*c, false), exact).judge(fast) + hidden.leaks(fast, {.backward = false});
  for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h) {
    const HeadStats &x = fast.stats.per_head[h], &y = exact.stats.per_head[h];
    if (x.rows_counted != y.rows_counted || x.rows_masked != y.rows_masked || x.rows_not_finite != y.rows_not_finite)
      wrong += "other rows; ";
  }
  if (!wrong.empty()) fail(seed, wrong, *c);
  const std::lock_guard lock(report);
  ++problems;
  if (chosen_kernel(*c) == "hopper") ++on_hopper;
}

constexpr double kU = 0x1p-24;

/// Whether the head's largest score is where the kernel says: there may be others as large but for rounding.
void place_of_largest(Compare& compare, const Case& c, const Spread& fast, const Spread& exact, std::size_t h,
                      double allowed) {
  if ((fast.max_query < 0) != (exact.max_query < 0))
    compare.out += "the largest score is in a sampled row, or is not; ";
  if (fast.max_query < 0 || c.problem.scale.by_row() || !c.table.empty()) return;
  const Shape& s = c.shape;
  const auto heads = static_cast<std::size_t>(s.heads_q);
  const auto b = static_cast<std::int64_t>(h / heads), head = static_cast<std::int64_t>(h % heads);
  const std::int64_t query = fast.max_query - c.problem.stats_options.first_query;
  double dot = 0;
  for (std::int64_t d = 0; d < s.dim_qk; ++d)
    dot += c.q.get(b, head, query, d) * c.k.get(b, head / s.group(), fast.max_key, d);
  compare.close(dot * c.problem.scale.factor(head, s.dim_qk), exact.max, allowed, "the score where the largest is");
}

/// Heads' statistics against the reference's.
void compare_heads(Compare& compare, const Case& c, const Result& exact, const Result& fast) {
  const Floors floor = floors(c, exact, Rounds::of(fast));
  const auto rows = static_cast<double>(c.shape.len_q);
  if (!fast.guards_intact) compare.out += "wrote outside an output; ";
  for (std::size_t h = 0; h < exact.stats.per_head.size(); ++h) {
    const HeadStats &x = fast.stats.per_head[h], &y = exact.stats.per_head[h];
    if (x.rows_not_finite || y.rows_not_finite) continue;
    compare.head(x, y, c, floor);
    // f32 adds up eight rows and the squares of four columns, each rounded, about a row that is as far from the mean as
    // any: some 50 roundings.
    for (double Causes::*cause : {&Causes::q_square, &Causes::k_variance, &Causes::key_mean_square})
      compare.close(x.causes.*cause, y.causes.*cause, 64 * kU * (1 + y.causes.*cause), "causes");
    compare.close(x.causes.scale_square, y.causes.scale_square, 1e-9 * (1 + y.causes.scale_square), "scale_square");
    // A gap moves by two roundings of scores, so single keys change bins; the number of keys does not.
    double gaps_x = 0, gaps_y = 0;
    for (const auto count : x.gaps.counts) gaps_x += static_cast<double>(count);
    for (const auto count : y.gaps.counts) gaps_y += static_cast<double>(count);
    compare.close(gaps_x, gaps_y, 0, "gaps");
    const double relative_mass = 4 * floor.score_max + 4 * floor.lse + 8 * kU;
    const auto len_kv = static_cast<std::size_t>(c.shape.len_kv);
    for (std::size_t j = 0; j < len_kv && !fast.key_mass.empty(); ++j)
      compare.close(fast.key_mass[h * len_kv + j], exact.key_mass[h * len_kv + j], relative_mass * rows + kU,
                    "key_mass");
    place_of_largest(compare, c, x.raw, y.raw, h, 2 * floor.raw_max);
    if (x.by_keys.size() != y.by_keys.size()) compare.out += "other buckets; ";
    for (std::size_t k = 0; k < std::min(x.by_keys.size(), y.by_keys.size()); ++k)
      place_of_largest(compare, c, x.by_keys[k].stats.raw, y.by_keys[k].stats.raw, h, 2 * floor.raw_max);
    const std::lock_guard lock(report);
    ++heads_compared;
  }
}

void full_statistics(std::uint64_t seed, bool fast_sizes) {
  const auto c = device_case(seed);
  if (fast_sizes) make_fast(*c, seed);
  if (c->shape.len_q == 0) return;
  Rng rng(seed ^ 0x57A75);
  c->problem.stats = StatsLevel::kFull;
  if (rng.chance(0.3))
    c->problem.stats_options.sample = rng.integer(2, 4), c->problem.stats_options.sample_offset = rng.integer(0, 1);
  c->problem.stats_options.gaps = rng.chance(0.5), c->problem.stats_options.key_mass = rng.chance(0.5),
  c->problem.stats_options.by_keys = rng.chance(0.3);
  const bool by_row = rng.chance(0.5);
  const Hidden hidden(*c, seed);
  const Result exact = run_exactly(*c), fast = on_device(*c, {.rows = by_row});
  const Floors floor = floors(*c, exact, Rounds::of(fast));
  const double n = static_cast<double>(c->shape.len_kv), rows = static_cast<double>(c->shape.len_q);
  Compare compare;
  compare.out = hidden.leaks(fast, {.rows = by_row});
  compare_heads(compare, *c, exact, fast);
  // Norms of what the sweep holds against the reference element by element: | ‖x‖ − ‖y‖ | ≤ ‖x − y‖ ≤ √count · the
  // largest error.
  const double q_count = rows * static_cast<double>(c->shape.dim_qk),
               k_count = n * static_cast<double>(c->shape.dim_qk), v_count = n * static_cast<double>(c->shape.dim_v);
  for (std::size_t h = 0; h < fast.gradient_stats.per_head.size(); ++h) {
    const HeadGradients &x = fast.gradient_stats.per_head[h], &y = exact.gradient_stats.per_head[h];
    compare.close(std::sqrt(x.d_scores), std::sqrt(y.d_scores), std::sqrt(rows * n) * floor.d_bias, "norm of dS");
    compare.close(std::sqrt(x.d_q), std::sqrt(y.d_q), std::sqrt(q_count) * floor.d_q, "norm of dQ");
    compare.close(std::sqrt(x.d_k), std::sqrt(y.d_k), std::sqrt(k_count) * floor.d_k, "norm of dK");
    compare.close(std::sqrt(x.d_v), std::sqrt(y.d_v), std::sqrt(v_count) * floor.d_v, "norm of dV");
  }
  for (std::size_t t = 0; t < exact.rows.size() && by_row; ++t)
    for (std::size_t i = 0; i < exact.rows[t].size(); ++i)
      if (std::isnan(exact.rows[t][i]) != std::isnan(fast.rows[t][i])) {
        compare.out += "a row tensor is NaN in other rows; ";
        t = exact.rows.size() - 1;
        break;
      }
  if (!compare.out.empty()) fail(seed, compare.out, *c);
}

/// Sampled statistics of so many rows that those that are sampled get multiprocessors of their own. Few keys, so that
/// the double reference is done with them.
void many_rows(std::uint64_t seed) {
  static std::counting_semaphore<> room(4);  // each takes up to 3 GB
  room.acquire();
  const auto c = device_case(seed);
  Rng rng(seed ^ 0x3A3B);
  Shape& s = c->shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = std::int64_t{64} << seed % 3;
  s.batch = 2, s.heads_kv = 8, s.heads_q = 16;
  s.len_q = (s.dim_qk == 64 ? 9600 : 6400) + rng.integer(0, 200),
  s.len_kv = rng.chance(0.3) ? rng.integer(130, 200) : rng.integer(20, 60);
  clear(*c);
  Problem& p = c->problem;
  if (rng.chance(0.5)) p.mask.causal = true, p.mask.diagonal = Diagonal::at(rng.integer(-s.len_q, s.len_kv));
  if (rng.chance(0.3))
    for (std::int64_t b = 0; b < s.batch; ++b) c->key_lengths.push_back(rng.integer(0, s.len_kv));
  p.stats = StatsLevel::kFull;
  p.stats_options.sample = rng.integer(2, 12),
  p.stats_options.sample_offset = rng.integer(0, p.stats_options.sample - 1);
  fill(*c, rng);
  const Hidden hidden(*c, seed);
  const Result exact = run_exactly(*c, false), fast = on_device(*c, {.backward = false, .rows = false});
  Compare compare;
  compare.out =
      Yardstick(*c, run_plainly(*c, false), exact).judge(fast) + hidden.leaks(fast, {.backward = false, .rows = false});
  compare_heads(compare, *c, exact, fast);
  const Result replayed = on_device(*c, {.backward = false, .rows = false, .graph = true});
  if (!fast.same_as(replayed)) compare.out += "a replayed graph has other bits; ";
  compare_heads(compare, *c, exact, replayed);
  if (!compare.out.empty()) fail(seed, compare.out, *c);
  room.release();
}

/// Keys hidden by numbers instead of −∞, finfo.min among them, in rows that see others: they weigh nothing, so outputs
/// and gradients are those of −∞. A row that has nothing but such keys makes nothing that is not finite.
void hidden_by_numbers(std::uint64_t seed) {
  const auto c = device_case(seed);
  Rng rng(seed ^ 0xF1B1);
  Shape& s = c->shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = 8 * rng.integer(1, 32);
  s.batch = 1, s.heads_kv = rng.integer(1, 2), s.heads_q = s.heads_kv * rng.integer(1, 3);
  s.len_kv = rng.integer(2, 600), s.len_q = rng.chance(0.5) ? rng.integer(1, 4) : rng.integer(5, 150);
  clear(*c);
  fill(*c, rng);
  const DType dtype = rng.chance(0.5) ? DType::kF32 : s.dtype;
  const double lowest = dtype == DType::kF32    ? -static_cast<double>(std::numeric_limits<float>::max())
                        : dtype == DType::kBF16 ? -0x1.fep127
                                                : -65504,
               number = rng.chance(0.4) ? lowest : std::max(lowest, rng.chance(0.5) ? -1e9 : -1e30);
  c->bias = Buffer(dtype, {1, rng.chance(0.5) ? 1 : s.heads_q, s.len_q, s.len_kv}, Layout::kRowMajor);
  c->bias.fill_normal(rng, 1);
  const auto infinite = c->copy();
  const std::int64_t step = rng.integer(1, 70);  // in runs, so that warps and splits have nothing else
  for (std::int64_t h = 0; h < c->bias.tensor().shape[1]; ++h)
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      const std::int64_t kept = rng.integer(0, s.len_kv - 1);
      for (std::int64_t j = 0; j < s.len_kv; ++j)
        if (j != kept && (rng.chance(0.1) || (i + j) / step % 2 == 0))
          c->bias.set(0, h, i, j, number), infinite->bias.set(0, h, i, j, -std::numeric_limits<double>::infinity());
        else infinite->bias.set(0, h, i, j, c->bias.get(0, h, i, j));
    }
  const Result numbers = on_device(*c, {.rows = false}), infinities = on_device(*infinite, {.rows = false});
  std::string wrong;
  const std::pair<const char*, std::vector<double> Result::*> outputs[] = {
      {"o", &Result::o},     {"lse", &Result::lse}, {"d_q", &Result::d_q},
      {"d_k", &Result::d_k}, {"d_v", &Result::d_v}, {"d_bias", &Result::d_bias}};
  for (const auto& [name, member] : outputs)
    if (numbers.*member != infinities.*member) wrong += std::string(name) + " is not that of −∞; ";
  for (std::int64_t h = 0; h < c->bias.tensor().shape[1]; ++h)
    for (std::int64_t j = 0; j < s.len_kv; ++j) c->bias.set(0, h, 0, j, number);
  const Result nothing_else = on_device(*c, {.rows = false});
  for (const auto& [name, member] : outputs)
    if (!std::all_of((nothing_else.*member).begin(), (nothing_else.*member).end(),
                     [](double x) { return std::isfinite(x); }))
      wrong += std::string(name) + " is not finite where a row has no other keys; ";
  if (!wrong.empty()) fail(seed, wrong, *c);
}

/// So many short tiles that each block takes one after another, where each overtakes what is still to be written of the
/// last: the whole batch again and again, and its first item against the reference.
void many_tiles(std::uint64_t seed) {
  static std::counting_semaphore<> room(4);  // each takes up to 2 GB
  room.acquire();
  const auto c = device_case(seed);
  Rng rng(seed ^ 0x71E5);
  Shape& s = c->shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = rng.chance(0.75) ? 64 : 128;
  s.batch = 24, s.heads_kv = s.heads_q = 44;
  s.len_kv = rng.log_integer(16, 512), s.len_q = rng.chance(0.6) ? s.len_kv : rng.integer(65, 300);
  clear(*c);
  c->problem.mask.causal = rng.chance(0.8);
  if (rng.chance(0.2)) c->problem.mask.window = Window{rng.log_integer(1, s.len_kv), Window::kUnbounded};
  fill(*c, rng);
  const Hidden hidden(*c, seed);
  const DeviceOptions options{.backward = false, .rows = false};
  const Result once = on_device(*c, options);
  for (int run = 0; run < 8; ++run)
    if (!once.same_as(on_device(*c, options))) fail(seed, "another run has other bits", *c);
  const auto alone = c->item(0);
  std::string wrong = hidden.leaks(once, options);
  const Result first = on_device(*alone, options);
  wrong += Yardstick(*alone, run_plainly(*alone, false), run_exactly(*alone, false)).judge(first);
  if (!wrong.empty()) fail(seed, wrong, *c);
  room.release();
}

/// So many sequences with few queries that mma takes several launches for them, the last with fewer: each has the bits
/// that it has alone, and those are right. Looked at are the first and the last, and one in between.
void many_sequences(std::uint64_t seed) {
  const auto c = device_case(seed);
  Rng rng(seed ^ 0x5E95);
  Shape& s = c->shape;
  s.dtype = rng.chance(0.5) ? DType::kBF16 : DType::kF16;
  s.dim_qk = s.dim_v = 16;
  s.batch = 7, s.heads_kv = 256, s.heads_q = s.heads_kv * rng.integer(1, 2);
  s.len_q = rng.integer(1, 2), s.len_kv = rng.integer(257, 600);
  clear(*c);
  for (std::int64_t b = 0; b < s.batch; ++b) c->key_lengths.push_back(rng.integer(0, s.len_kv));
  fill(*c, rng);
  const DeviceOptions options{.backward = false, .rows = false};
  const Result once = on_device(*c, options);
  std::string wrong;
  for (const std::int64_t b : {std::int64_t{0}, s.batch / 2, s.batch - 1}) {
    const auto alone = c->item(b);
    alone->out_layout = c->out_layout;
    const Result own = on_device(*alone, options);
    const auto first = once.o.begin() + b * static_cast<std::int64_t>(own.o.size());
    if (!std::equal(own.o.begin(), own.o.end(), first)) wrong += "an item has other bits than alone; ";
    wrong += Yardstick(*alone, run_plainly(*alone, false), run_exactly(*alone, false)).judge(own);
  }
  if (!wrong.empty()) fail(seed, wrong, *c);
}

/// The same bits again, alone in a batch, and replayed from a captured graph.
void same_bits(std::uint64_t seed, bool fast, Fast kind = Fast::kAny) {
  const auto c = device_case(seed);
  if (fast) make_fast(*c, seed, kind);
  const Result once = on_device(*c);
  if (!once.same_as(on_device(*c))) fail(seed, "another run has other bits", *c);
  if (!once.same_as(on_device(*c, {.graph = true}))) fail(seed, "a replayed graph has other bits", *c);
  if (!fast && chosen_kernel(*c) == "hopper") return;  // another layout may mean another kernel
  const auto alone = c->item(0);
  alone->out_layout = c->out_layout;
  const Result first = on_device(*alone, {.backward = false});
  for (std::size_t x = 0; x < first.o.size(); ++x)
    if (!(first.o[x] == once.o[x] || (std::isnan(first.o[x]) && std::isnan(once.o[x])))) {
      fail(seed, "alone has other bits than in a batch", *c);
      break;
    }
}

/// Lengths of many tiles, where the double reference would take hours: the fast backward against the plain kernel's.
/// Rounding p and dS to the storage dtype, and the results of both, leaves each term off by a relative half ulp four
/// times at most, whatever its sign, so that errors cancel as the terms do.
void long_rows(std::uint64_t seed) {
  const auto c = device_case(seed);
  make_fast(*c, seed);
  Rng rng(seed ^ 0x10C6);
  Shape& s = c->shape;
  s.dim_qk = s.dim_v = std::int64_t{64} << rng.integer(0, 2);
  s.batch = 1, s.heads_kv = rng.integer(1, 2), s.heads_q = s.heads_kv * rng.integer(1, 2);
  s.len_kv = rng.integer(1000, 40000),
  s.len_q = rng.chance(0.5) ? rng.integer(1000, 6000) : std::min<std::int64_t>(s.len_kv, 8000);
  Problem& p = c->problem;
  clear(*c);
  if (rng.chance(0.4)) p.mask.causal = true;
  if (rng.chance(0.2)) p.mask.window = Window{rng.integer(0, 3000), rng.integer(0, 3000)};
  if (rng.chance(0.15)) c->key_lengths.push_back(rng.integer(0, s.len_kv));
  if (rng.chance(0.2))
    p.mask.documents = Documents{}, c->q_starts = {0, rng.integer(0, s.len_q), s.len_q},
    c->kv_starts = {0, rng.integer(0, s.len_kv), s.len_kv};
  fill(*c, rng);
  const Hidden hidden(*c, seed);
  const Result fast = on_device(*c), plain = on_device(*c, {.back_kernel = "plain"});
  if (!fast.rounded_backward) fail(seed, "not the fast backward", *c);
  if (const std::string wrong = hidden.leaks(fast); !wrong.empty()) fail(seed, wrong, *c);
  if (!fast.same_as(on_device(*c))) fail(seed, "another run has other bits", *c);
  const double allowed = 4 * (s.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11);
  for (const auto member : {&Result::d_q, &Result::d_k, &Result::d_v}) {
    double error = 0, norm = 0;
    for (std::size_t x = 0; x < (plain.*member).size(); ++x) {
      const double y = (plain.*member)[x], difference = (fast.*member)[x] - y;
      error += difference * difference, norm += y * y;
    }
    char line[96];
    std::snprintf(line, sizeof line, "%s is off by %.2g of its norm",
                  member == &Result::d_q   ? "d_q"
                  : member == &Result::d_k ? "d_k"
                                           : "d_v",
                  std::sqrt(error / norm));
    if (!(error <= allowed * allowed * norm)) fail(seed, line, *c);
  }
}

void in_parallel(const char* name, int count, std::uint64_t first, const std::function<void(std::uint64_t)>& test) {
  const int before = failures;
#pragma omp parallel for schedule(dynamic)
  for (int x = 0; x < count; ++x)
    if (failures <= 20) test(first + static_cast<std::uint64_t>(x));
  std::printf("%-45s %5d problems, %d failures\n", name, count, failures - before);
  std::fflush(stdout);
}

void statistics_of_long_rows(int count, std::uint64_t first) {
  in_parallel("full statistics, long rows", count, first, [](std::uint64_t number) {
    const std::string wrong = long_statistics(number);
    const std::lock_guard lock(report);
    if (!wrong.empty() && ++failures <= 20)
      std::printf("FAILED problem %llu, %s\n", static_cast<unsigned long long>(number), wrong.c_str());
  });
}

int main(int count, std::uint64_t first, const std::string& only) {
  if (const std::string why = rootdk_cuda_backend()->missing(); !why.empty()) {
    std::printf("SKIPPED: %s\n", why.c_str());
    return 77;
  }
  const Gpu card = rootdk_cuda_backend()->current_card();
  std::printf("%s, sm_%d%d, %d multiprocessors\n", card.name.c_str(), card.major, card.minor, card.multiprocessors);
  const auto backward = [&](int problems) {
    in_parallel("sweep, the fast backward", problems, first + 700000,
                [](std::uint64_t seed) { sweep(seed, Sizes::kFastBackward); });
  };
  const auto decoding = [&](int problems) {
    in_parallel("sweep, few queries", problems, first + 800000, decode);
    in_parallel("the same bits, few queries", problems / 4, first + 900000,
                [](std::uint64_t seed) { same_bits(seed, true, Fast::kDecode); });
  };
  if (!only.empty()) {
    if (only == "first")
      in_parallel("sweep, all problems", count, first, [](std::uint64_t seed) { sweep(seed, Sizes::kAny); });
    else if (only == "statistics")
      in_parallel("full statistics", count, first + 200000, [](std::uint64_t seed) { full_statistics(seed, false); });
    else if (only == "backward") backward(count);
    else if (only == "decode") decoding(count);
    else if (only == "hidden") in_parallel("what is hidden", count, first + 1100000, hidden);
    else if (only == "few")
      in_parallel("sweep, few", count, first, [](std::uint64_t seed) { sweep(seed, Sizes::kFew); });
    else if (only == "numbers") in_parallel("hidden by numbers", count, first + 1300000, hidden_by_numbers);
    else if (only == "tiles") in_parallel("many short tiles", count, first + 1200000, many_tiles);
    else if (only == "sequences") in_parallel("many sequences", count, first + 1400000, many_sequences);
    else if (only == "many") in_parallel("full statistics, sampled from many rows", count, first + 1000000, many_rows);
    else if (only == "statistics_long") statistics_of_long_rows(count, first);
    else if (only == "same_bits")
      in_parallel("the same bits", count, first + 400000, [](std::uint64_t seed) { same_bits(seed, false); });
    else if (only == "long") in_parallel("long rows, backward", count, first + 600000, long_rows);
    else std::printf("no such part: %s\n", only.c_str()), ++failures;
    return failures == 0 ? 0 : 1;
  }
  in_parallel("sweep, all problems", count, first, [](std::uint64_t seed) { sweep(seed, Sizes::kAny); });
  in_parallel("sweep, sizes of the fast kernels", count / 2, first + 100000,
              [](std::uint64_t seed) { sweep(seed, Sizes::kFast); });
  const bool fast = card.major == 9;  // else there is nothing but the plain kernels
  if (fast) backward(count / 4);
  decoding(count / 4);
  in_parallel("many sequences", count / 100, first + 1400000, many_sequences);
  in_parallel("what is hidden", count / 4, first + 1100000, hidden);
  in_parallel("hidden by numbers", count / 16, first + 1300000, hidden_by_numbers);
  in_parallel("full statistics", count / 4, first + 200000, [](std::uint64_t seed) { full_statistics(seed, false); });
  in_parallel("full statistics, sizes of the fast kernels", count / 8, first + 300000,
              [](std::uint64_t seed) { full_statistics(seed, true); });
  in_parallel("full statistics, sampled from many rows", count / 200, first + 1000000, many_rows);
  in_parallel("many short tiles", count / 100, first + 1200000, many_tiles);
  if (count >= 80)
    statistics_of_long_rows((fast ? kLongOnHopper : 0) + kLongOnPlain + kLongOnMma, fast ? 0 : kLongOnHopper);
  in_parallel("the same bits", count / 16, first + 400000, [](std::uint64_t seed) { same_bits(seed, false); });
  in_parallel("the same bits, sizes of the fast kernels", count / 16, first + 500000,
              [](std::uint64_t seed) { same_bits(seed, true); });
  if (fast) in_parallel("long rows, backward", count / 80, first + 600000, long_rows);
  std::printf("%d swept (%d by the Hopper kernel, %d backwards), %d heads' statistics, %d with poison where nothing "
              "sees it, %d failures\n",
              problems, on_hopper, back_on_hopper, heads_compared, hidden_compared, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rootdk::test

int main(int argc, char** argv) {
  return rootdk::test::main(argc > 1 ? std::atoi(argv[1]) : 1600, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0,
                            argc > 3 ? argv[3] : "");
}
