// Naive loops over float or double with a rounding after each step that a GPU rounds at, and faults to switch on.
#include "support/simulated.h"

#include <cmath>
#include <limits>

#include "base/dropout.h"
#include "base/element.h"
#include "base/visibility.h"

namespace rootdk::test {

namespace {

constexpr std::int64_t kFaultyTile = 64;

/// Real is float, and what is stored is rounded; or double, and nothing is.
template <class Real>
class Simulated {
 public:
  Simulated(const Case& c, const Faults& faults)
      : c_(c),
        s_(c.shape),
        faults_(faults),
        dim_qk_(static_cast<std::size_t>(s_.dim_qk)),
        dim_v_(static_cast<std::size_t>(s_.dim_v)),
        q_(narrow(c.q.values())),
        d_o_(narrow(c.d_o.values())),
        d_lse_(c.d_lse.values()) {}

  Result run(const Result& exact) {
    Result r = exact;
    r.rounded_weights = r.rounded_backward = true;
    r.stats = {}, r.gradient_stats = {}, r.rows.clear(), r.key_mass.clear();
    std::fill(r.d_bias.begin(), r.d_bias.end(), 0.0);
    for (auto* sums : {&r.d_scale, &r.d_sink, &r.d_log_n_gain, &r.d_log_n_offset})
      std::fill(sums->begin(), sums->end(), 0.0);
    for (std::int64_t b = 0; b < s_.batch; ++b)
      for (std::int64_t kv = 0; kv < s_.heads_kv; ++kv) {
        gather(b, kv);
        for (std::int64_t h = kv * s_.group(); h < (kv + 1) * s_.group(); ++h)
          for (std::int64_t i = 0; i < s_.len_q; ++i) row(b, h, i, r);
        const auto first = static_cast<std::size_t>((b * s_.heads_kv + kv) * s_.len_kv);
        for (std::size_t x = 0; x < d_k_.size(); ++x) r.d_k[first * dim_qk_ + x] = stored(d_k_[x]);
        for (std::size_t x = 0; x < d_v_.size(); ++x) r.d_v[first * dim_v_ + x] = stored(d_v_[x]);
      }
    return r;
  }

 private:
  struct Pair {
    std::size_t key;
    Real score, slope, keep;
    bool forward, backward;  ///< whether the pass sees it
  };

  static std::vector<Real> narrow(const std::vector<double>& x) { return {x.begin(), x.end()}; }

  Real stored(Real x) const {
    if constexpr (sizeof(Real) == 8) return x;
    switch (s_.dtype) {
      case DType::kF16: return static_cast<Real>(to_float(to_float16(static_cast<double>(x))));
      case DType::kBF16: return static_cast<Real>(to_float(to_bfloat16(static_cast<double>(x))));
      default: return x;
    }
  }

  void gather(std::int64_t b, std::int64_t kv) {
    k_.clear(), v_.clear();
    for (std::int64_t j = 0; j < s_.len_kv; ++j) {
      const base::KeyPlace place = base::place_of_key(c_.problem, c_.k.tensor(), b, j);
      for (std::int64_t d = 0; d < s_.dim_qk; ++d)
        k_.push_back(static_cast<Real>(c_.k.get(place.item, kv, place.row, d)));
      for (std::int64_t d = 0; d < s_.dim_v; ++d)
        v_.push_back(static_cast<Real>(c_.v.get(place.item, kv, place.row, d)));
    }
    d_k_.assign(k_.size(), 0), d_v_.assign(v_.size(), 0);
  }

  static Real dot(const Real* a, const Real* b, std::size_t n) {
    Real sums[8] = {};
    std::size_t d = 0;
    for (; d + 8 <= n; d += 8)
      for (std::size_t x = 0; x < 8; ++x) sums[x] += a[d + x] * b[d + x];
    for (; d < n; ++d) sums[0] += a[d] * b[d];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  static void add(Real* to, Real by, const Real* x, std::size_t n) {
    for (std::size_t d = 0; d < n; ++d) to[d] += by * x[d];
  }

  void see(std::int64_t b, std::int64_t h, std::int64_t i, const base::KeyRange& range, Real c) {
    const Problem& problem = c_.problem;
    const Mask& mask = problem.mask;
    const std::size_t row = index(b, h, i);
    pairs_.clear();
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      if (faults_.drop_last && mask.causal && j == range.position) continue;
      if (mask.allowed.present() && base::read(mask.allowed, b, h, i, j) == 0) continue;
      double bias = 0;
      if (mask.bias.present())
        bias = base::read(mask.bias, b, h, faults_.next_bias && i % 64 == 0 ? (i + 1) % s_.len_q : i, j);
      if (bias == -std::numeric_limits<double>::infinity()) continue;
      if (!mask.alibi_slopes.empty())
        bias -= static_cast<double>(mask.alibi_slopes[static_cast<std::size_t>(h)]) *
                static_cast<double>(std::abs(range.position - j));
      const auto key = static_cast<std::size_t>(j);
      Real score = c * dot(q_.data() + row * dim_qk_, k_.data() + key * dim_qk_, dim_qk_), slope = 1;
      if (problem.soft_cap) {
        const auto cap = static_cast<Real>(*problem.soft_cap);
        const Real t = std::tanh(score / cap);
        score = cap * t, slope = 1 - t * t;
      }
      if (problem.transform.present()) {
        if constexpr (sizeof(Real) == 8) problem.transform.chain_f64(problem.transform.context, &score, &slope, 1);
        else problem.transform.chain_f32(problem.transform.context, &score, &slope, 1);
      }
      Real keep = 1;
      if (problem.dropout.p != 0)
        keep = base::keeps(problem.dropout, b, h, faults_.next_dropout ? i + 1 : i, j)
                   ? static_cast<Real>(base::keep_gain(problem.dropout))
                   : Real(0);
      const bool last = j % kFaultyTile == kFaultyTile - 1;
      pairs_.push_back({key, score + static_cast<Real>(bias), slope, keep, !(faults_.drop_forward && last),
                        !(faults_.drop_backward && last)});
    }
  }

  void row(std::int64_t b, std::int64_t h, std::int64_t i, Result& r) {
    const Problem& problem = c_.problem;
    const base::KeyRange range = base::visible_keys(problem.mask, s_, b, i);
    const auto c = static_cast<Real>(faults_.scale * problem.scale.factor(h, s_.dim_qk, range.scale_row()));
    const std::size_t row = index(b, h, i), head = static_cast<std::size_t>(h);
    see(b, h, i, range, c);
    // Unnormalised probabilities are rounded, their sum is not.
    constexpr Real kNothing = -std::numeric_limits<Real>::infinity();
    Real max = kNothing, sum = 0;
    for (const Pair& pair : pairs_)
      if (pair.forward) max = std::max(max, pair.score);
    std::vector<Real> o(dim_v_);
    for (const Pair& pair : pairs_) {
      if (!pair.forward) continue;
      const Real e = std::exp(pair.score - max);
      sum += e;
      add(o.data(), stored(e) * pair.keep, v_.data() + pair.key * dim_v_, dim_v_);
    }
    Real lse = sum > 0 ? max + std::log(sum) : kNothing, share = sum > 0 ? 1 / sum : 0;
    if (!problem.sink.empty()) {
      const auto z = static_cast<Real>(problem.sink[head]);
      const Real high = std::max(lse, z), total = high + std::log(std::exp(lse - high) + std::exp(z - high));
      if (sum > 0) share = std::exp(max - total);
      lse = total;
    }
    for (Real& x : o) x = stored(x * share);
    for (std::size_t d = 0; d < dim_v_; ++d) r.o[row * dim_v_ + d] = static_cast<double>(o[d]);
    r.lse[row] = static_cast<double>(lse);

    const Real* d_o = d_o_.data() + row * dim_v_;
    Real delta = faults_.no_delta ? 0 : dot(d_o, o.data(), dim_v_);
    if (!d_lse_.empty() && !faults_.no_d_lse) delta -= static_cast<Real>(d_lse_[row]);
    if (!problem.sink.empty())
      r.d_sink[head] -= static_cast<double>(std::exp(static_cast<Real>(problem.sink[head]) - lse) * delta);
    std::vector<Real> d_q(dim_qk_);
    for (const Pair& pair : pairs_) {
      if (!pair.backward || lse == kNothing) continue;
      const Real p = stored(std::exp(pair.score - lse));
      const Real d_s = stored(p * (pair.keep * dot(d_o, v_.data() + pair.key * dim_v_, dim_v_) - delta)),
                 d_raw = d_s * pair.slope;
      add(d_v_.data() + pair.key * dim_v_, p * pair.keep, d_o, dim_v_);
      add(d_q.data(), d_raw, k_.data() + pair.key * dim_qk_, dim_qk_);
      add(d_k_.data() + pair.key * dim_qk_, c * d_raw, q_.data() + row * dim_qk_, dim_qk_);
      if (!r.d_bias.empty())
        r.d_bias[bias_index(b, h, i, static_cast<std::int64_t>(pair.key))] += static_cast<double>(d_s);
    }
    const auto d_c = static_cast<double>(dot(q_.data() + row * dim_qk_, d_q.data(), dim_qk_));
    for (std::size_t d = 0; d < dim_qk_; ++d) r.d_q[row * dim_qk_ + d] = static_cast<double>(stored(c * d_q[d]));
    const Scale::Slopes slopes = problem.scale.slopes(h, s_.dim_qk, range.scale_row());
    if (!r.d_scale.empty()) r.d_scale[head] += slopes.rule * d_c;
    if (!r.d_log_n_gain.empty())
      r.d_log_n_gain[head] += slopes.log_n_gain * d_c, r.d_log_n_offset[head] += slopes.log_n_offset * d_c;
  }

  std::size_t index(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>((b * s_.heads_q + h) * s_.len_q + i);
  }

  std::size_t bias_index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    ConstTensor packed = c_.problem.mask.bias;
    packed.strides = row_major(packed.shape);
    return static_cast<std::size_t>(base::offset_of(packed, b, h, i, j));
  }

  const Case& c_;
  const Shape& s_;
  const Faults& faults_;
  std::size_t dim_qk_, dim_v_;
  std::vector<Real> q_, d_o_, k_, v_, d_k_, d_v_;
  std::vector<double> d_lse_;
  std::vector<Pair> pairs_;
};

}  // namespace

Result run_simulated(const Case& c, const Result& exact, const Faults& faults) {
  return Simulated<float>(c, faults).run(exact);
}
Result run_simulated_exactly(const Case& c, const Result& exact, const Faults& faults) {
  return Simulated<double>(c, faults).run(exact);
}

}  // namespace rootdk::test
