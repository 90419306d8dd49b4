// What a seed draws, in a fixed order: shape, scale, masks, transform, sink, dropout, then layouts and numbers.
#include "support/case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rootdk::test {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Layout random_layout(Rng& rng) {
  return rng.chance(0.5) ? Layout::kRowMajor
                         : static_cast<Layout>(rng.integer(0, static_cast<int>(Layout::kCount) - 1));
}

Extents random_broadcast(Rng& rng, const Shape& s) {
  Extents e = {s.batch, s.heads_q, s.len_q, s.len_kv};
  for (std::int64_t& size : e)
    if (rng.chance(0.35)) size = 1;
  return e;
}

std::vector<std::int64_t> random_starts(Rng& rng, std::int64_t length, std::size_t documents) {
  std::vector<std::int64_t> starts = {0};
  for (std::size_t d = 0; d < documents; ++d) starts.push_back(rng.integer(0, length));
  std::sort(starts.begin(), starts.end());
  starts[0] = 0;
  if (rng.chance(0.7)) starts.back() = length;
  return starts;
}

std::vector<float> per_head(Rng& rng, const Shape& s, double low, double high) {
  std::vector<float> values;
  for (std::int64_t h = 0; h < s.heads_q; ++h) values.push_back(static_cast<float>(low + (high - low) * rng.uniform()));
  return values;
}

void draw_shape(Rng& rng, const CaseLimits& limits, Shape& s) {
  static constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
  s.dtype = kTypes[rng.integer(0, 3)];
  s.dim_qk = rng.log_integer(1, 512);
  s.dim_v = rng.chance(0.7) ? s.dim_qk : rng.log_integer(1, 512);
  if (rng.chance(0.3)) s.dim_qk = s.dim_v = std::int64_t{16} << rng.integer(0, 3);
  const std::int64_t dim = std::max(s.dim_qk, s.dim_v);
  s.batch = rng.log_integer(1, 3);
  s.heads_kv = rng.log_integer(1, 3);
  s.heads_q = s.heads_kv * (rng.chance(0.5) ? 1 : rng.log_integer(2, 4));
  const std::int64_t pairs = std::max<std::int64_t>(1, limits.work / (dim * s.batch * s.heads_q));
  s.len_kv = rng.log_integer(1, std::min(limits.longest, pairs));
  s.len_q = rng.chance(0.4) && s.len_kv * s.len_kv <= pairs
                ? s.len_kv
                : rng.log_integer(1, std::min(limits.longest, pairs / s.len_kv));
  if (rng.chance(0.02)) s.len_kv = 0;
  if (rng.chance(0.01)) s.len_q = 0;
}

void draw_mask(Rng& rng, Case& c) {
  const Shape& s = c.shape;
  Mask& mask = c.problem.mask;
  if (rng.chance(0.3)) mask.causal = true;
  if (rng.chance(0.2)) {
    mask.window = Window{};
    if (rng.chance(0.8)) mask.window->left = rng.log_integer(1, s.len_kv + 2) - 1;
    if (rng.chance(0.6)) mask.window->right = rng.log_integer(1, s.len_kv + 2) - 1;
  }
  if (rng.chance(0.2))
    for (std::int64_t b = 0; b < s.batch; ++b) c.key_lengths.push_back(rng.integer(0, s.len_kv));
  if (rng.chance(0.15)) {
    const auto documents = static_cast<std::size_t>(rng.integer(1, 4));
    c.q_starts = random_starts(rng, s.len_q, documents);
    c.kv_starts = random_starts(rng, s.len_kv, documents);
    mask.documents = Documents{};
  }
  switch (rng.integer(0, 6)) {
    case 0: mask.diagonal = Diagonal::top_left(); break;
    case 1: mask.diagonal = Diagonal::at(rng.integer(-s.len_q - 1, s.len_kv + 1)); break;
    case 2:
      if (!c.key_lengths.empty() && !mask.documents) mask.diagonal = Diagonal::last_key();
      break;
    default: break;
  }
  if (rng.chance(0.15)) {
    c.allowed = Buffer(DType::kBool, random_broadcast(rng, s), random_layout(rng));
    const double share = rng.uniform();
    const Extents e = c.allowed.tensor().shape;
    for (std::int64_t b = 0; b < e[0]; ++b)
      for (std::int64_t h = 0; h < e[1]; ++h)
        for (std::int64_t i = 0; i < e[2]; ++i)
          for (std::int64_t j = 0; j < e[3]; ++j) c.allowed.set(b, h, i, j, rng.chance(share) ? 1 : 0);
  }
  if (rng.chance(0.2)) {
    c.bias = Buffer(rng.chance(0.5) ? DType::kF32 : s.dtype, random_broadcast(rng, s), random_layout(rng));
    c.bias.fill_normal(rng, 1);
    const double hidden = rng.chance(0.5) ? 0 : 0.3;
    const Extents e = c.bias.tensor().shape;
    for (std::int64_t b = 0; b < e[0]; ++b)
      for (std::int64_t h = 0; h < e[1]; ++h)
        for (std::int64_t i = 0; i < e[2]; ++i)
          for (std::int64_t j = 0; j < e[3]; ++j)
            if (rng.chance(hidden)) c.bias.set(b, h, i, j, -kInf);
  }
  if (rng.chance(0.15)) c.slopes = per_head(rng, s, 0, 0.5);
}

void draw_scale(Rng& rng, Case& c) {
  switch (rng.integer(0, 5)) {
    case 0: c.problem.scale = Scale::none(); break;
    case 1: c.problem.scale = Scale::inv_dk(); break;
    case 2: c.problem.scale = Scale::constant(rng.chance(0.1) ? 0 : rng.normal()); break;
    case 3:
      c.problem.scale.rule = Scale::Rule::kPerHead;
      c.scale = per_head(rng, c.shape, -1, 1);
      break;
    default: c.problem.scale = Scale::inv_sqrt_dk(); break;
  }
}

// Beyond the plain rules, from a generator of its own: what else a seed draws stays as it is.
void draw_scale_parts(Rng& rng, Case& c) {
  Scale& scale = c.problem.scale;
  Mask& mask = c.problem.mask;
  if (scale.rule == Scale::Rule::kInvSqrtDk && rng.chance(0.3))
    scale = rng.chance(0.5) ? Scale::alpha_over_dk(8 * rng.normal())
                            : Scale::unit_variance(0.5 + rng.uniform(), 0.5 + rng.uniform());
  if (rng.chance(0.1)) scale = scale.with_yarn(1 + 31 * rng.uniform());
  if (!rng.chance(0.4)) return;
  const bool countable = c.allowed.empty() && c.bias.empty();
  switch (rng.integer(0, 3)) {
    case 0:
      scale = scale.with_llama4_temperature();
      // Far along in a long context, where that changes nothing else.
      if (!mask.causal && !mask.window && c.slopes.empty()) mask.diagonal = Diagonal::at(rng.integer(8000, 40000));
      break;
    case 1:
      if (countable) scale = scale.with_entropy_invariance();
      break;
    default:
      if (!countable) break;
      scale = scale.with_ssmax(rng.normal() / 2, rng.chance(0.5) ? 0 : rng.normal());
      if (rng.chance(0.7)) c.gains = per_head(rng, c.shape, -0.5, 1);
      if (rng.chance(0.7)) c.offsets = per_head(rng, c.shape, -1, 1);
      break;
  }
}

}  // namespace

void Case::forget_key_counts() {
  if (problem.scale.counts_keys()) problem.scale.length = Scale::Length::kNone;
}

void Case::link() {
  problem.scale.head_values = scale;
  problem.scale.head_gains = gains, problem.scale.head_offsets = offsets;
  problem.mask.key_starts = key_starts, problem.mask.key_lengths = key_lengths,
  problem.mask.query_lengths = query_lengths;
  if (problem.mask.documents) problem.mask.documents = Documents{q_starts, kv_starts, problem.mask.documents->items};
  problem.mask.allowed = allowed.tensor();
  problem.mask.bias = bias.tensor();
  problem.mask.alibi_slopes = slopes;
  problem.sink = sink;
  if (problem.paged) problem.paged->table = table;
  if (problem.transform.present()) problem.transform = ScoreTransform::of(bend);
}

void draw_padding(Rng& rng, Case& c, double share) {
  const Shape& s = c.shape;
  const auto per_item = [&](std::int64_t most) {
    std::vector<std::int64_t> values;
    for (std::int64_t b = 0; b < s.batch; ++b) values.push_back(rng.integer(0, most));
    return values;
  };
  if (rng.chance(share)) c.key_starts = per_item(s.len_kv);
  if (rng.chance(share)) c.query_lengths = per_item(s.len_q);
  if (!c.problem.mask.documents || rng.chance(0.5)) return;
  c.problem.mask.documents->items = s.batch;
  const std::size_t documents = c.q_starts.size() - 1;
  c.q_starts.clear(), c.kv_starts.clear();
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (auto [starts, length] : {std::pair(&c.q_starts, s.len_q), std::pair(&c.kv_starts, s.len_kv)}) {
      const std::vector<std::int64_t> drawn = random_starts(rng, length, documents);
      starts->insert(starts->end(), drawn.begin(), drawn.end());
    }
}

std::unique_ptr<Case> random_case(std::uint64_t seed, const CaseLimits& limits) {
  Rng rng(seed);
  auto c = std::make_unique<Case>();
  draw_shape(rng, limits, c->shape);
  const Shape& s = c->shape;
  draw_scale(rng, *c);
  draw_mask(rng, *c);
  Rng padded(seed ^ 0xFADED);
  if (limits.padding) draw_padding(padded, *c, 0.15);
  Rng more(seed ^ 0x5CA1E);
  draw_scale_parts(more, *c);
  if (rng.chance(0.15)) c->problem.soft_cap = static_cast<float>(0.5 + 30 * rng.uniform());
  if (rng.chance(0.1)) c->problem.transform = ScoreTransform::of(c->bend);
  if (rng.chance(0.2)) c->sink = per_head(rng, s, -3, 3);
  if (rng.chance(0.2)) c->problem.dropout = {static_cast<float>(0.9 * rng.uniform()), rng.next()};

  c->q = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_qk}, random_layout(rng));
  if (limits.paged && rng.chance(0.15)) {
    const std::int64_t page = rng.log_integer(1, 64), per_item = (s.len_kv + page - 1) / page + rng.integer(0, 1);
    const std::int64_t pages = s.batch * per_item + rng.integer(1, 3);
    c->problem.paged = PagedKv{{}, per_item, s.len_kv};
    for (std::int64_t i = 0; i < s.batch * per_item; ++i)
      c->table.push_back(static_cast<std::int32_t>(rng.integer(0, pages - 1)));
    c->k = Buffer(s.dtype, {pages, s.heads_kv, page, s.dim_qk}, random_layout(rng));
    c->v = Buffer(s.dtype, {pages, s.heads_kv, page, s.dim_v}, random_layout(rng));
  } else {
    c->k = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}, random_layout(rng));
    c->v = Buffer(s.dtype, {s.batch, s.heads_kv, s.len_kv, s.dim_v}, random_layout(rng));
  }
  c->d_o = Buffer(s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}, random_layout(rng));
  const double spread = rng.chance(0.8) ? 1 : 3;
  c->q.fill_normal(rng, spread);
  c->k.fill_normal(rng, 1);
  c->v.fill_normal(rng, 1);
  c->d_o.fill_normal(rng, 1);
  if (rng.chance(0.25)) {
    c->d_lse = Buffer(DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    c->d_lse.fill_normal(rng, 1);
  }
  c->out_layout = random_layout(rng);
  c->link();
  return c;
}

std::unique_ptr<Case> Case::copy() const {
  auto c = std::make_unique<Case>();
  c->shape = shape;
  c->problem = problem;
  c->q = q, c->k = k, c->v = v, c->d_o = d_o, c->d_lse = d_lse;
  c->allowed = allowed, c->bias = bias;
  c->scale = scale, c->gains = gains, c->offsets = offsets, c->slopes = slopes, c->sink = sink;
  c->key_starts = key_starts, c->key_lengths = key_lengths, c->query_lengths = query_lengths;
  c->q_starts = q_starts, c->kv_starts = kv_starts, c->table = table;
  c->out_layout = out_layout;
  c->link();
  return c;
}

std::unique_ptr<Case> Case::exact() const {
  auto c = copy();
  c->shape.dtype = DType::kF64;
  for (Buffer* buffer : {&c->q, &c->k, &c->v, &c->d_o, &c->d_lse, &c->bias}) *buffer = buffer->as_f64();
  c->out_layout = Layout::kRowMajor;
  c->link();
  return c;
}

namespace {

// Rows [b, b+1) of the batch axis, unless that axis is broadcast.
Buffer slice(const Buffer& from, std::int64_t b, std::int64_t batch) {
  if (from.empty()) return {};
  const ConstTensor t = from.tensor();
  if (t.shape[0] != batch) return from;
  Buffer out(t.dtype, {1, t.shape[1], t.shape[2], t.shape[3]});
  for (std::int64_t h = 0; h < t.shape[1]; ++h)
    for (std::int64_t l = 0; l < t.shape[2]; ++l)
      for (std::int64_t d = 0; d < t.shape[3]; ++d) out.set(0, h, l, d, from.get(b, h, l, d));
  return out;
}

}  // namespace

std::unique_ptr<Case> Case::item(std::int64_t b) const {
  auto c = std::make_unique<Case>();
  c->shape = shape;
  c->shape.batch = 1;
  c->problem = problem;
  c->q = slice(q, b, shape.batch);
  c->d_o = slice(d_o, b, shape.batch);
  c->d_lse = slice(d_lse, b, shape.batch);
  c->allowed = slice(allowed, b, shape.batch);
  c->bias = slice(bias, b, shape.batch);
  c->k = problem.paged ? k : slice(k, b, shape.batch);
  c->v = problem.paged ? v : slice(v, b, shape.batch);
  c->scale = scale, c->gains = gains, c->offsets = offsets, c->slopes = slopes, c->sink = sink;
  const auto item_of = [b](const std::vector<std::int64_t>& from, std::size_t count) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(b) * count);
    return from.empty() ? from : std::vector<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(count));
  };
  c->q_starts = q_starts, c->kv_starts = kv_starts;
  if (problem.mask.documents && problem.mask.documents->items > 0) {
    c->problem.mask.documents->items = 1;
    const std::size_t count = q_starts.size() / static_cast<std::size_t>(shape.batch);
    c->q_starts = item_of(q_starts, count), c->kv_starts = item_of(kv_starts, count);
  }
  c->key_starts = item_of(key_starts, 1), c->key_lengths = item_of(key_lengths, 1),
  c->query_lengths = item_of(query_lengths, 1);
  if (problem.paged) {
    const auto per_item = problem.paged->pages_per_item;
    c->table.assign(table.begin() + b * per_item, table.begin() + (b + 1) * per_item);
  }
  c->link();
  return c;
}

}  // namespace rootdk::test
