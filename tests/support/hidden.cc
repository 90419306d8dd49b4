// What no row sees is worked out pair by pair, filled, and afterwards looked for in the results.
#include "support/hidden.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/element.h"
#include "base/visibility.h"
#include "support/bits.h"

namespace rootdk::test {

namespace {

constexpr double kHuge = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

double largest_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 65504;
    case DType::kBF16: return 0x1.FEp127;
    case DType::kF64: return std::numeric_limits<double>::max();
    default: return static_cast<double>(std::numeric_limits<float>::max());
  }
}

/// A row of one kind of poison, or of all of them.
void fill_row(Buffer& t, std::int64_t b, std::int64_t h, std::int64_t l, Filling with, Rng& rng) {
  const ConstTensor view = t.tensor();
  const double poisons[] = {kNan, kHuge, -kHuge, largest_of(view.dtype), -largest_of(view.dtype)};
  const std::int64_t kind = rng.integer(0, 6);
  for (std::int64_t d = 0; d < view.shape[3]; ++d)
    t.set(b, h, l, d, with == Filling::kZeros ? 0 : poisons[kind < 5 ? kind : rng.integer(0, 4)]);
}

base::KeyRange range_of(const Case& c, std::int64_t b, std::int64_t i) {
  return base::visible_keys(c.problem.mask, c.shape, b, i);
}

bool allows(const Case& c, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  return c.allowed.empty() || base::read(c.problem.mask.allowed, b, h, i, j) != 0;
}

/// Fills the elements of a mask's tensor of which no pair takes notice. `matters`: whether a pair inside its row's run
/// does.
template <class Matters>
bool fill_mask(const Case& c, Buffer& t, const Matters& matters, const std::vector<double>& poisons, Filling with,
               Rng& rng) {
  if (t.empty()) return false;
  const Shape& s = c.shape;
  Tensor view = t.tensor(), packed = view;
  packed.strides = row_major(view.shape);
  std::vector<bool> used(static_cast<std::size_t>(view.count()));
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      const base::KeyRange range = range_of(c, b, i);
      for (std::int64_t h = 0; h < s.heads_q; ++h)
        for (std::int64_t j = range.begin; j < range.end; ++j)
          if (matters(b, h, i, j)) used[static_cast<std::size_t>(base::offset_of(packed, b, h, i, j))] = true;
    }
  bool any = false;
  std::size_t element = 0;
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t h = 0; h < view.shape[1]; ++h)
      for (std::int64_t i = 0; i < view.shape[2]; ++i)
        for (std::int64_t j = 0; j < view.shape[3]; ++j) {
          if (used[element++]) continue;
          any = true;
          const double value =
              with == Filling::kZeros
                  ? 0
                  : poisons[static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(poisons.size()) - 1))];
          const std::int64_t at = base::offset_of(view, b, h, i, j);
          if (view.dtype == DType::kBool)
            static_cast<std::uint8_t*>(view.data)[at] = static_cast<std::uint8_t>(value);  // bytes that no bool has
          else base::write(view.dtype, view.data, at, value);
        }
  return any;
}

}  // namespace

Sight::Sight(const Case& c) : case_(c) {
  const Shape& s = c.shape;
  queries_.resize(static_cast<std::size_t>(s.batch * s.heads_q * s.len_q));
  keys_.resize(static_cast<std::size_t>(s.batch * s.heads_kv * s.len_kv));
  const bool dense = !c.allowed.empty() || !c.bias.empty();
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      const base::KeyRange range = range_of(c, b, i);
      std::int64_t marked_to = range.begin;  // without a dense part, rows in order need not mark a key twice
      if (!dense && i > 0)
        if (const base::KeyRange before = range_of(c, b, i - 1); !before.empty() && before.begin <= range.begin)
          marked_to = std::clamp(before.end, range.begin, std::max(range.begin, range.end));
      for (std::int64_t h = 0; h < s.heads_q; ++h) {
        if (!dense) {
          queries_[index(b, h, i, s.heads_q, s.len_q)] = !range.empty();
          for (std::int64_t j = marked_to; j < range.end; ++j)
            keys_[index(b, h / s.group(), j, s.heads_kv, s.len_kv)] = true;
          continue;
        }
        for (std::int64_t j = range.begin; j < range.end; ++j)
          if (sees(b, h, i, j))
            queries_[index(b, h, i, s.heads_q, s.len_q)] = keys_[index(b, h / s.group(), j, s.heads_kv, s.len_kv)] =
                true;
      }
    }
  hides_ = std::find(queries_.begin(), queries_.end(), false) != queries_.end() ||
           std::find(keys_.begin(), keys_.end(), false) != keys_.end();
}

bool Sight::sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const base::KeyRange range = range_of(case_, b, i);
  return j >= range.begin && j < range.end && allows(case_, b, h, i, j) &&
         (case_.bias.empty() || base::read(case_.problem.mask.bias, b, h, i, j) != -kHuge);
}

bool fill_hidden(Case& c, const Sight& sight, Filling with, std::uint64_t seed) {
  Rng rng(seed ^ 0x41DDE4);
  const Shape& s = c.shape;
  bool any = false;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        if (sight.query(b, h, i)) continue;
        any = true;
        fill_row(c.q, b, h, i, with, rng), fill_row(c.d_o, b, h, i, with, rng);
        if (!c.d_lse.empty() && c.sink.empty()) fill_row(c.d_lse, b, h, i, with, rng);
      }
  // Where a key lies: several may share a row of a page.
  const ConstTensor k = c.k.tensor();
  std::vector<bool> seen(static_cast<std::size_t>(k.shape[0] * k.shape[1] * k.shape[2]));
  const auto place = [&](std::int64_t item, std::int64_t h, std::int64_t row) {
    return static_cast<std::size_t>((item * k.shape[1] + h) * k.shape[2] + row);
  };
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_kv; ++h)
      for (std::int64_t j = 0; j < s.len_kv; ++j) {
        if (!sight.key(b, h, j)) continue;
        const base::KeyPlace at = base::place_of_key(c.problem, k, b, j);
        seen[place(at.item, h, at.row)] = true;
      }
  for (std::int64_t item = 0; item < k.shape[0]; ++item)
    for (std::int64_t h = 0; h < k.shape[1]; ++h)
      for (std::int64_t row = 0; row < k.shape[2]; ++row) {
        if (seen[place(item, h, row)]) continue;
        any = true;
        fill_row(c.k, item, h, row, with, rng), fill_row(c.v, item, h, row, with, rng);
      }
  // The bias first: which of its elements matter is for the boolean mask to say.
  const auto bias_matters = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return allows(c, b, h, i, j);
  };
  const double largest = c.bias.empty() ? 0 : largest_of(c.bias.tensor().dtype);
  const bool biases = fill_mask(c, c.bias, bias_matters, {kNan, kHuge, -kHuge, largest, -largest}, with, rng);
  const bool bytes = fill_mask(
      c, c.allowed, [](auto...) { return true; }, {0, 1, 0xFF, 0x80}, with, rng);
  c.link();
  return any || biases || bytes;
}

std::string hidden_gradients(const Case& c, const Sight& sight, const Result& r) {
  const Shape& s = c.shape;
  std::string out;
  const auto check = [&](const char* name, const std::vector<double>& x, std::size_t row, std::int64_t dim) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(row) * dim;
    if (!x.empty() && out.size() < 400 && std::any_of(first, first + dim, [](double value) { return value != 0; }))
      out += fmt::format("{}: row {} is hidden, but not 0\n", name, row);
  };
  std::size_t row = 0, key = 0;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i, ++row)
        if (!sight.query(b, h, i)) check("o", r.o, row, s.dim_v), check("d_q", r.d_q, row, s.dim_qk);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_kv; ++h)
      for (std::int64_t j = 0; j < s.len_kv; ++j, ++key)
        if (!sight.key(b, h, j)) check("d_k", r.d_k, key, s.dim_qk), check("d_v", r.d_v, key, s.dim_v);
  return out;
}

Stain::Stain(const Case& c, const Sight& sight, std::uint64_t seed) : case_(c) {
  Rng rng(seed ^ 0x57A14);
  const Shape& s = c.shape;
  row_ = static_cast<Row>(rng.integer(0, 4));
  rows_.resize(static_cast<std::size_t>(s.batch * s.heads_q * s.len_q));
  keys_.resize(static_cast<std::size_t>(s.batch * s.heads_kv * s.len_kv));
  heads_.resize(static_cast<std::size_t>(s.batch * s.heads_q));
  if (s.batch * s.heads_q * s.len_q * s.len_kv == 0) return;
  const bool query = row_ == Row::kQuery || row_ == Row::kGradient;
  const std::int64_t heads = query ? s.heads_q : s.heads_kv, length = query ? s.len_q : s.len_kv;
  std::int64_t b = 0, l = 0;
  for (int tries = 0; tries < 100 && !found_; ++tries) {
    b = rng.integer(0, s.batch - 1), head_ = rng.integer(0, heads - 1), l = rng.integer(0, length - 1);
    found_ = query ? sight.query(b, head_, l) : sight.key(b, head_, l);
  }
  if (!found_) return;
  const ConstTensor k = c.k.tensor();
  const base::KeyPlace at = query ? base::KeyPlace{b, l} : base::place_of_key(c.problem, k, b, l);
  item_ = at.item, place_ = at.row;
  // Rows that it reaches: itself, or those that see a key which lies there.
  for (std::int64_t x = 0; x < s.batch; ++x)
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        bool reached = query && x == b && h == head_ && i == l;
        for (std::int64_t j = query || h / s.group() != head_ ? s.len_kv : 0; j < s.len_kv && !reached; ++j) {
          const base::KeyPlace other = base::place_of_key(c.problem, k, x, j);
          reached = other.item == item_ && other.row == place_ && sight.sees(x, h, i, j);
          if (!c.problem.paged) {  // no other key lies there
            reached = x == b && sight.sees(x, h, i, l);
            break;
          }
        }
        if (!reached) continue;
        rows_[static_cast<std::size_t>((x * s.heads_q + h) * s.len_q + i)] =
            heads_[static_cast<std::size_t>(x * s.heads_q + h)] = true;
        for (std::int64_t j = 0; j < s.len_kv; ++j)
          if (sight.sees(x, h, i, j))
            keys_[static_cast<std::size_t>((x * s.heads_kv + h / s.group()) * s.len_kv + j)] = true;
      }
}

std::string Stain::where() const {
  static constexpr const char* kNames[] = {"Q", "dO", "K", "V", "K and V"};
  return fmt::format("{} [{}, {}, {}]", kNames[static_cast<int>(row_)], item_, head_, place_);
}

void Stain::fill(Case& c, Filling with, std::uint64_t seed) const {
  Rng rng(seed ^ 0xF111);
  if (row_ == Row::kQuery) fill_row(c.q, item_, head_, place_, with, rng);
  if (row_ == Row::kGradient) fill_row(c.d_o, item_, head_, place_, with, rng);
  if (row_ == Row::kKey || row_ == Row::kBoth) fill_row(c.k, item_, head_, place_, with, rng);
  if (row_ == Row::kValue || row_ == Row::kBoth) fill_row(c.v, item_, head_, place_, with, rng);
}

std::string Stain::spread(const Result& zeros, const Result& poisoned) const {
  const Shape& s = case_.shape;
  std::string out;
  const auto compare = [&](const std::string& name, const std::vector<double>& a, const std::vector<double>& b,
                           const auto& reached) {
    if (a.size() != b.size()) out += name + ": other sizes\n";
    for (std::size_t x = 0; x < std::min(a.size(), b.size()); ++x)
      if (!equal_bits(a[x], b[x]) && !reached(x)) {
        out += fmt::format("{}[{}]: {:.9g} and {:.9g}\n", name, x, a[x], b[x]);
        return;
      }
  };
  const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  const bool forward = row_ != Row::kGradient;  // whether the stain is there before backward
  const auto row = [&](std::int64_t dim, bool stained = true) {
    return [&, dim, stained](std::size_t x) { return stained && rows_[x / size(dim)]; };
  };
  const auto key = [&](std::int64_t dim) {
    return [&, dim](std::size_t x) { return static_cast<bool>(keys_[x / size(dim)]); };
  };
  compare("o", zeros.o, poisoned.o, row(s.dim_v, forward));
  for (const Part& part : kRowParts) compare(part.name, zeros.*part.values, poisoned.*part.values, row(1, forward));
  for (std::size_t t = 0; t < zeros.rows.size(); ++t)
    compare("row tensor " + std::to_string(t), zeros.rows[t], poisoned.rows[t], row(1, forward));
  compare("d_q", zeros.d_q, poisoned.d_q, row(s.dim_qk));
  compare("d_k", zeros.d_k, poisoned.d_k, key(s.dim_qk));
  compare("d_v", zeros.d_v, poisoned.d_v, key(s.dim_v));
  // A head's gradients are sums over the batch; those of a bias over what shares it, which may be anything.
  const auto any_item = [&](std::size_t h) {
    for (std::size_t b = 0; b < size(s.batch); ++b)
      if (heads_[b * size(s.heads_q) + h]) return true;
    return false;
  };
  for (const Part& part : kHeadParts) compare(part.name, zeros.*part.values, poisoned.*part.values, any_item);
  // Causes are of keys that a group of heads shares.
  const auto group_reached = [&](std::size_t head) {
    const std::size_t group = size(s.group()), first = head / group * group;  // heads_q is a multiple of the group
    return std::any_of(heads_.begin() + static_cast<std::ptrdiff_t>(first),
                       heads_.begin() + static_cast<std::ptrdiff_t>(first + group), [](bool x) { return x; });
  };
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const auto never = [](std::size_t) { return false; };
    if (group_reached(h)) continue;
    if (h < zeros.stats.per_head.size())
      compare("statistics of head " + std::to_string(h), numbers(zeros.stats.per_head[h]),
              numbers(poisoned.stats.per_head[h]), never);
    if (h < zeros.gradient_stats.per_head.size())
      compare("gradient statistics of head " + std::to_string(h), numbers(zeros.gradient_stats.per_head[h]),
              numbers(poisoned.gradient_stats.per_head[h]), never);
  }
  compare("key_mass", zeros.key_mass, poisoned.key_mass,
          [&](std::size_t x) { return forward && heads_[x / size(s.len_kv)]; });
  return out;
}

}  // namespace rootdk::test
