// The floors derived: f32's by magnitudes, the storage dtype's term by term as sums and as random walks.
#include "support/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/dropout.h"
#include "base/element.h"
#include "base/visibility.h"

namespace rootdk::test {

namespace {

constexpr double kU = 0x1p-24;  // f32 unit roundoff

double half_ulp(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    case DType::kF64: return 0x1p-53;
    default: return 0x1p-24;
  }
}

double largest(const std::vector<double>& x) {
  double m = 0;
  for (const double v : x)
    if (std::isfinite(v)) m = std::max(m, std::fabs(v));
  return m;
}

// A sum of roundings. Each is off by at most its share, so all by at most the sum; and, being independent and spread
// evenly about 0, by no more than `kWalk` times the root of the sum of squares: a sum of uniform variables has tails
// below 2·exp(−3/2·kWalk²), 10⁻¹⁰ at 4, and the sweeps look at some 10⁹ elements.
constexpr double kWalk = 4;

struct Walk {
  double squares = 0, most = 0;

  void add(double share) { squares += share * share, most += std::fabs(share); }
  void add(const Walk& w, double by) { squares += w.squares * by * by, most += w.most * std::fabs(by); }
  Walk and_if(bool more, const Walk& w) const { return more ? Walk{squares + w.squares, most + w.most} : *this; }
  double bound(bool independent) const { return independent ? std::min(most, kWalk * std::sqrt(squares)) : most; }
};

// The norm of a tensor of such sums, in blocks that are independent of each other. Its expected square is a third of
// the shares' squares; how far it strays from that, the largest block says.
struct NormWalk {
  double squares = 0, largest = 0, most_squares = 0;

  void add(const Walk& block) {
    squares += block.squares, largest = std::max(largest, block.squares), most_squares += block.most * block.most;
  }
  NormWalk and_if(bool more, const NormWalk& w) const {
    if (!more) return *this;
    const double most = std::sqrt(most_squares) + std::sqrt(w.most_squares);
    return {squares + w.squares, std::max(largest, w.largest), most * most};
  }
  double bound(bool independent) const {
    return independent ? std::min(std::sqrt(most_squares), std::sqrt(squares / 3) + kWalk * std::sqrt(largest))
                       : std::sqrt(most_squares);
  }
};

// What rounding to the storage dtype does on the way to a result, by where it happens: in the probabilities of forward,
// in o as it is stored (which shows where backward reads it), in the probabilities and dS of backward.
struct Rounding {
  Walk weights, stored, backward;
  Walk of(Rounds rounds) const { return stored.and_if(rounds.weights, weights).and_if(rounds.backward, backward); }
};

struct NormRounding {
  NormWalk weights, stored, backward;
  NormWalk of(Rounds rounds) const { return stored.and_if(rounds.weights, weights).and_if(rounds.backward, backward); }
};

// Magnitudes of a problem that bound its rounding errors, over visible pairs.
struct Magnitudes {
  double raw = 0;                  // max c·Σ|q||k|
  double dot = 0;                  // max Σ|q||k|
  double score = 0;                // max of |what is added to the score| + |score|
  double d_p = 0;                  // max Σ|dO||v|
  double delta = 0;                // max |dLSE|
  double column = 0;               // max over keys of Σ P over the rows that see it (all heads of a group)
  double rows = 0;                 // batch × len_q
  Scale::Slopes slopes{0, 0, 0};   // max |dc/d…|
  double scale = 0;                // max |c|
  bool independent = true;         // roundings are not the same for all
  std::vector<Rounding> o, d_q;    // of an element of each row, [batch, heads_q, len_q]
  std::vector<Rounding> d_k, d_v;  // of each key, [batch, heads_kv, len_kv]
  std::vector<Rounding> d_c, d_z;  // of each head, [heads_q]
  NormRounding o_norm, d_q_norm, d_k_norm, d_v_norm;
  Rounding one_pair, one_row;  // of the dS that is off furthest, and of the sum of a row's that is
};

double largest_of_row(const std::vector<double>& x, std::size_t row, std::size_t dim) {
  double m = 0;
  for (std::size_t d = row * dim; d < (row + 1) * dim; ++d) m = std::max(m, std::fabs(x[d]));
  return m;
}

double length_of_row(const std::vector<double>& x, std::size_t row, std::size_t dim) {
  double sum = 0;
  for (std::size_t d = row * dim; d < (row + 1) * dim; ++d) sum += x[d] * x[d];
  return std::sqrt(sum);
}

// One pair of a row and a key that it sees: what backward makes of it, exactly.
struct Pair {
  std::size_t key;
  double dot, weight, p, gradient, d_s, slope;  // q·k, p·keep, p, keep·dP − D, dS, d score / d raw
};

// The rows of one head of a batch item, and all that their roundings add up to.
class HeadMeasure {
 public:
  HeadMeasure(const Case& c, const Result& exact, Magnitudes& m)
      : c_(c), exact_(exact), m_(m), s_(c.shape), q_(c.q.values()), d_o_(c.d_o.values()), d_lse_(c.d_lse.values()) {}

  void head(std::int64_t b, std::int64_t h) {
    const std::int64_t kv = h / s_.group();
    if (h % s_.group() == 0) gather(b, kv);
    const auto dim_qk = static_cast<std::size_t>(s_.dim_qk), dim_v = static_cast<std::size_t>(s_.dim_v);
    const double stored = half_ulp(s_.dtype), step = s_.dtype == DType::kF16 ? 0x1p-25 : 0;
    std::vector<double> mean_key(dim_qk);
    for (std::int64_t i = 0; i < s_.len_q; ++i) {
      const auto row = static_cast<std::size_t>((b * s_.heads_q + h) * s_.len_q + i);
      const double delta = see(b, h, i, row);
      // D is off by what o is off by: its rounding as it is stored, and that of the probabilities that made it.
      Rounding d;
      for (std::size_t x = row * dim_v; x < (row + 1) * dim_v; ++x) d.stored.add(stored * d_o_[x] * exact_.o[x]);
      Rounding o, o_length, d_q, d_q_length, sum;  // sum: of dS over the row
      std::fill(mean_key.begin(), mean_key.end(), 0.0);
      double mean_dot = 0;
      const double c = std::fabs(factor_);
      for (const Pair& pair : pairs_) {
        const std::size_t key = pair.key;
        const double keep = pair.p > 0 ? pair.weight / pair.p : 0;
        const double weight = std::hypot(stored * pair.weight, step * keep), d_p = pair.gradient + delta;  // keep·dP
        o.weights.add(weight * largest_v_[key]), o_length.weights.add(weight * length_v_[key]);
        if (keep > 0) d.weights.add(weight * d_p / keep);
        for (const double rounded : roundings(pair)) {
          const double raw = rounded * pair.slope;
          d_q.backward.add(c * raw * largest_k_[key]), d_q_length.backward.add(c * raw * length_k_[key]);
          m_.d_c[static_cast<std::size_t>(h)].backward.add(raw * pair.dot);
          sum.backward.add(rounded);
        }
        const double through = pair.p * pair.slope;
        for (std::size_t x = 0; x < dim_qk; ++x) mean_key[x] += through * keys_k_[key * dim_qk + x];
        mean_dot += through * pair.dot;
      }
      const double mean_largest = c * largest_of_row(mean_key, 0, dim_qk),
                   mean_length = c * length_of_row(mean_key, 0, dim_qk);
      d_q.stored.add(d.stored, mean_largest), d_q.weights.add(d.weights, mean_largest);
      d_q_length.stored.add(d.stored, mean_length), d_q_length.weights.add(d.weights, mean_length);
      m_.o[row] = o, m_.d_q[row] = d_q;
      m_.o_norm.weights.add(o_length.weights);
      m_.d_q_norm.stored.add(d_q_length.stored), m_.d_q_norm.weights.add(d_q_length.weights),
          m_.d_q_norm.backward.add(d_q_length.backward);
      m_.d_c[static_cast<std::size_t>(h)].stored.add(d.stored, mean_dot),
          m_.d_c[static_cast<std::size_t>(h)].weights.add(d.weights, mean_dot);
      if (!c_.sink.empty() && std::isfinite(exact_.lse[row])) {
        const double p_sink = std::exp(static_cast<double>(c_.sink[static_cast<std::size_t>(h)]) - exact_.lse[row]);
        m_.d_z[static_cast<std::size_t>(h)].stored.add(d.stored, p_sink),
            m_.d_z[static_cast<std::size_t>(h)].weights.add(d.weights, p_sink);
      }
      sum.stored = d.stored, sum.weights = d.weights;  // the p of a row sum to 1
      keep_larger(m_.one_row, sum);

      // The same for the keys.
      const double largest_q = c * largest_of_row(q_, row, dim_qk), length_q = c * length_of_row(q_, row, dim_qk);
      const double largest_d_o = largest_of_row(d_o_, row, dim_v), length_d_o = length_of_row(d_o_, row, dim_v);
      Walk shares;  // of one row's D in all keys' gradients
      for (const Pair& pair : pairs_) {
        const std::size_t key = static_cast<std::size_t>((b * s_.heads_kv + kv) * s_.len_kv) + pair.key;
        const double keep = pair.p > 0 ? pair.weight / pair.p : 0,
                     weight = std::hypot(stored * pair.weight, step * keep);
        m_.d_v[key].backward.add(weight * largest_d_o), d_v_length_[pair.key].add(weight * length_d_o);
        Rounding one;
        for (const double rounded : roundings(pair)) {
          m_.d_k[key].backward.add(rounded * pair.slope * largest_q),
              d_k_length_[pair.key].add(rounded * pair.slope * length_q);
          one.backward.add(rounded);
        }
        one.stored.add(d.stored, pair.p), one.weights.add(d.weights, pair.p);
        keep_larger(m_.one_pair, one);
        const double through = pair.p * pair.slope;
        m_.d_k[key].stored.add(d.stored, through * largest_q), m_.d_k[key].weights.add(d.weights, through * largest_q);
        shares.add(through * length_q);
      }
      // A row's D reaches all its keys with one sign: as a vector it is that times the root of the squares of its
      // shares.
      Walk one_row;
      one_row.add(d.stored, std::sqrt(shares.squares)), m_.d_k_norm.stored.add(one_row);
      one_row = {};
      one_row.add(d.weights, std::sqrt(shares.squares)), m_.d_k_norm.weights.add(one_row);
    }
    if (h % s_.group() != s_.group() - 1) return;
    for (const Walk& key : d_k_length_) m_.d_k_norm.backward.add(key);
    for (const Walk& key : d_v_length_) m_.d_v_norm.backward.add(key);
  }

  // c of every row.
  void factors() {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t b = 0; b < s_.batch; ++b)
      for (std::int64_t h = 0; h < s_.heads_q; ++h)
        for (std::int64_t i = 0; i < s_.len_q; ++i) {
          const ScaleRow row = base::visible_keys(c_.problem.mask, s_, b, i).scale_row();
          const Scale::Slopes slopes = c_.problem.scale.slopes(h, s_.dim_qk, row);
          const double factor = std::fabs(c_.problem.scale.factor(h, s_.dim_qk, row));
          m_.scale = std::max(m_.scale, factor);
          if (factor != 0) least = std::min(least, factor);
          else m_.independent = false;  // all probabilities of a row are the same, and so are their roundings
          m_.slopes.rule = std::max(m_.slopes.rule, std::fabs(slopes.rule));
          m_.slopes.log_n_gain = std::max(m_.slopes.log_n_gain, std::fabs(slopes.log_n_gain));
          m_.slopes.log_n_offset = std::max(m_.slopes.log_n_offset, std::fabs(slopes.log_n_offset));
        }
    if (m_.scale > 0) scale_ratio_ = std::max(1.0, m_.scale / least);
  }

 private:
  static void keep_larger(Rounding& most, const Rounding& one) {
    for (const auto part : {&Rounding::stored, &Rounding::weights, &Rounding::backward})
      (most.*part).squares = std::max((most.*part).squares, (one.*part).squares),
      (most.*part).most = std::max((most.*part).most, (one.*part).most);
  }

  // How far dS is off: by p once and by its own rounding once more; where they are too small for f16 by its smallest
  // step.
  std::array<double, 2> roundings(const Pair& pair) const {
    const double stored = half_ulp(s_.dtype), step = s_.dtype == DType::kF16 ? 0x1p-25 : 0;
    return {std::hypot(stored * pair.d_s, step * pair.gradient), std::hypot(stored * pair.d_s, step * scale_ratio_)};
  }

  // K and V of a key head, row-major, and the sizes of their rows.
  void gather(std::int64_t b, std::int64_t kv) {
    const auto keys = static_cast<std::size_t>(s_.len_kv);
    keys_k_.clear(), keys_v_.clear();
    for (std::int64_t j = 0; j < s_.len_kv; ++j) {
      const base::KeyPlace place = base::place_of_key(c_.problem, c_.k.tensor(), b, j);
      for (std::int64_t d = 0; d < s_.dim_qk; ++d) keys_k_.push_back(c_.k.get(place.item, kv, place.row, d));
      for (std::int64_t d = 0; d < s_.dim_v; ++d) keys_v_.push_back(c_.v.get(place.item, kv, place.row, d));
    }
    largest_k_.clear(), length_k_.clear(), largest_v_.clear(), length_v_.clear();
    for (std::size_t j = 0; j < keys; ++j) {
      largest_k_.push_back(largest_of_row(keys_k_, j, static_cast<std::size_t>(s_.dim_qk))),
          length_k_.push_back(length_of_row(keys_k_, j, static_cast<std::size_t>(s_.dim_qk)));
      largest_v_.push_back(largest_of_row(keys_v_, j, static_cast<std::size_t>(s_.dim_v))),
          length_v_.push_back(length_of_row(keys_v_, j, static_cast<std::size_t>(s_.dim_v)));
    }
    d_k_length_.assign(keys, {}), d_v_length_.assign(keys, {});
    column_.assign(keys, 0);
  }

  // Fills in pairs_ and returns D.
  double see(std::int64_t b, std::int64_t h, std::int64_t i, std::size_t row) {
    const Problem& problem = c_.problem;
    const Mask& mask = problem.mask;
    const auto dim_qk = static_cast<std::size_t>(s_.dim_qk), dim_v = static_cast<std::size_t>(s_.dim_v);
    const base::KeyRange range = base::visible_keys(mask, s_, b, i);
    factor_ = problem.scale.factor(h, s_.dim_qk, range.scale_row());
    double delta = d_lse_.empty() ? 0 : -d_lse_[row];
    for (std::size_t d = row * dim_v; d < (row + 1) * dim_v; ++d) delta += d_o_[d] * exact_.o[d];
    pairs_.clear();
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const auto key = static_cast<std::size_t>(j);
      if (!c_.allowed.empty() && base::read(mask.allowed, b, h, i, j) == 0) continue;
      double bias = c_.bias.empty() ? 0 : base::read(mask.bias, b, h, i, j);
      double added = std::fabs(bias);
      if (!std::isfinite(added)) continue;
      if (!c_.slopes.empty()) {
        const double far = static_cast<double>(c_.slopes[static_cast<std::size_t>(h)]) *
                           std::fabs(static_cast<double>(range.position - j));
        bias -= far, added += std::fabs(far);
      }
      double dot = 0, signed_dot = 0, d_p = 0, signed_d_p = 0;
      for (std::size_t d = 0; d < dim_qk; ++d) {
        const double product = q_[row * dim_qk + d] * keys_k_[key * dim_qk + d];
        signed_dot += product, dot += std::fabs(product);
      }
      for (std::size_t d = 0; d < dim_v; ++d) {
        const double product = d_o_[row * dim_v + d] * keys_v_[key * dim_v + d];
        signed_d_p += product, d_p += std::fabs(product);
      }
      m_.raw = std::max(m_.raw, std::fabs(factor_) * dot), m_.dot = std::max(m_.dot, dot),
      m_.score = std::max(m_.score, added), m_.d_p = std::max(m_.d_p, d_p);
      double score = factor_ * signed_dot, slope = 1;
      if (problem.soft_cap) {
        const double t = std::tanh(score / static_cast<double>(*problem.soft_cap));
        score = static_cast<double>(*problem.soft_cap) * t, slope = 1 - t * t;
      }
      if (problem.transform.present()) problem.transform.chain_f64(problem.transform.context, &score, &slope, 1);
      const double p = std::isfinite(exact_.lse[row]) ? std::min(1.0, std::exp(score + bias - exact_.lse[row])) : 0;
      double keep = 1;
      if (problem.dropout.p != 0)
        keep = base::keeps(problem.dropout, b, h, i, j) ? base::keep_gain(problem.dropout) : 0;
      const double gradient = keep * signed_d_p - delta;
      pairs_.push_back({key, signed_dot, p * keep, p, gradient, p * gradient, std::fabs(slope)});
      m_.column = std::max(m_.column, column_[key] += p);
    }
    return delta;
  }

  const Case& c_;
  const Result& exact_;
  Magnitudes& m_;
  const Shape& s_;
  std::vector<double> q_, d_o_, d_lse_, keys_k_, keys_v_, largest_k_, length_k_, largest_v_, length_v_, column_;
  std::vector<Walk> d_k_length_, d_v_length_;
  std::vector<Pair> pairs_;
  double factor_ = 0, scale_ratio_ = 1;
};

Magnitudes measure(const Case& c, const Result& exact) {
  const Shape& s = c.shape;
  Magnitudes m;
  m.rows = static_cast<double>(s.batch * s.len_q);
  m.delta = largest(c.d_lse.values());
  m.o.resize(static_cast<std::size_t>(s.batch * s.heads_q * s.len_q)), m.d_q.resize(m.o.size());
  m.d_k.resize(static_cast<std::size_t>(s.batch * s.heads_kv * s.len_kv)), m.d_v.resize(m.d_k.size());
  m.d_c.resize(static_cast<std::size_t>(s.heads_q)), m.d_z.resize(m.d_c.size());
  HeadMeasure measure(c, exact, m);
  measure.factors();
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_q; ++h) measure.head(b, h);
  return m;
}

double largest_bound(const std::vector<Rounding>& all, Rounds rounds, bool independent) {
  double m = 0;
  for (const Rounding& one : all) m = std::max(m, one.of(rounds).bound(independent));
  return m;
}

}  // namespace

// The derivation. A score is a sum of magnitude at most A = c·Σ|q||k| plus what is added; computed in f32 it is off by
// at most about u·A (the sums behind it are short against their bound, and the plain method, of which twice is allowed,
// has the same error), so a probability is off by a relative u·(2 + A): the 2 is for exp and the division.
//   o      = Σ p·v:            u·(2 + A)·max|v|·gain, gain = 1/(1 − dropout)
//   maxima, lse: one score, with no others to average its error out. Rounding errors of a sum of n terms behave as a
//   random
//                              walk (Higham and Mary, 2019): u·√n·A in place of u·A; lse and p_max add their own
//                              roundings
// Backward computes p = e^{s − lse} from an lse that was stored in f32 and subtracts it in f32: u·|lse| twice more, so
// there B = A + 2·|lse|.
//   dV     = Σ_rows p·dO:      u·(2 + B)·max|dO|·gain·column, column = largest Σ_rows p of a key
//   dS     = p·(dP − D):       u·(4 + B)·M·p, E = gain·max Σ|dO||v| bounds |dP| and |dO·o|, M = 2E + max|dLSE|
//   dQ     = c·Σ_keys dS·k:    c·max|k| times that (the p of a row sum to 1)
//   dK     = c·Σ_rows dS·q:    c·max|q|·column times that
//   dc     = Σ dS·(q·k):       max Σ|q||k|·rows times that (p of a row sum to 1); what c is made of: times max |dc/d…|
//   dbias  = Σ dS:             times the number of rows that share an element
//   dz     = Σ_rows p_sink·D:  rows times u·(4 + B)·M
// So much for f32, where worst cases of all factors at once are still small. Rounding to a storage dtype of 8 or 11
// bits is not, so what it does is added up term by term, with the exact p, dP and D of each pair (`Walk`: at most the
// sum of the shares h·|term|, h = half an ulp, and at most kWalk times the root of the sum of their squares; where c is
// 0 all probabilities of a row are the same, so are their roundings, and only the sum counts):
//   o as it is stored, which backward reads: D_i = Σ_d dO·o is off by e_i, shares h·dO_d·o_d; it reaches dQ_i as
//   c·e_i·Σ_j p·k_j, with the sign of the keys, dK_j as
//                              shares c·p_ij·q_i·e_i of the rows, dc as e_i·Σ_j p·(q·k), dz as p_sink·e_i, an element
//                              of dbias as p·e_i
//   probabilities in forward (`Rounds::weights`): o_i has shares h·p_ij·v_j, and e_i besides h·p_ij·dP_ij
//   probabilities and dS in backward (`Rounds::backward`): dV_j has shares h·p_ij·dO_i; dS is off by h for p and by h
//   again before dQ and dK, two
//                              shares of h·|dS| each, times c·k_j of the keys in dQ_i, c·q_i of the rows in dK_j
// Below f16's smallest normal number h is an absolute half step instead, of p, which |dP − D| multiplies, and of dS;
// where heads that read the same keys have scales of their own, dS is rounded after the ratio to the largest of them,
// so its step is as many times as large. An element of a row takes the largest element of what is summed; the norm
// takes its length, and strays from what is expected of it as its largest independent part does (`NormWalk`: a row of o
// or dQ; a key of dV or dK, and of dK what one row's D does to all keys). Each result is then rounded to the storage
// dtype: half an ulp of the element, and f16's smallest step; in the norm half an ulp of it over √3, and kWalk times
// that of the largest element.
static Floors floors(const Case& c, const Result& exact, const Magnitudes& m, Rounds rounds) {
  const Shape& s = c.shape;
  const double a = m.raw + m.score;
  const double gain = base::keep_gain(c.problem.dropout);
  const double stored = half_ulp(s.dtype);
  const double e = gain * m.d_p, big_m = 2 * e + m.delta;
  const double back = a + 2 * largest(exact.lse);
  const double d_s = kU * (4 + back) * big_m;

  double sharing = 1;  // rows that share an element of the bias
  double bias_stored = 0;
  if (c.bias.tensor().count() > 0) {
    const ConstTensor bias = c.bias.tensor();
    sharing = static_cast<double>(s.batch * s.heads_q * s.len_q) /
              static_cast<double>(bias.shape[0] * bias.shape[1] * bias.shape[2]);
    bias_stored = half_ulp(bias.dtype) * largest(exact.d_bias) + (bias.dtype == DType::kF16 ? 0x1p-25 : 0);
  }
  const double tiny = s.dtype == DType::kF16 ? 0x1p-25 : 0x1p-126;
  const auto rows = [&](double every, const std::vector<Rounding>& each, const NormRounding& norm) {
    const double again = 1 + 2 * stored;  // what is rounded is off already
    RowFloors out{every + tiny, {}, again * norm.of(rounds).bound(m.independent)};
    for (const Rounding& row : each) out.row.push_back(again * row.of(rounds).bound(m.independent));
    return out;
  };
  Floors f;
  f.o_rows = rows(kU * (2 + a) * largest(c.v.values()) * gain, m.o, m.o_norm);
  f.d_q_rows = rows(m.scale * largest(c.k.values()) * d_s, m.d_q, m.d_q_norm);
  f.d_k_rows = rows(m.scale * largest(c.q.values()) * m.column * d_s, m.d_k, m.d_k_norm);
  f.d_v_rows = rows(kU * (2 + back) * m.column * largest(c.d_o.values()) * gain, m.d_v, m.d_v_norm);
  f.o = f.o_rows.largest() + stored * largest(exact.o);
  f.d_q = f.d_q_rows.largest() + stored * largest(exact.d_q);
  f.d_k = f.d_k_rows.largest() + stored * largest(exact.d_k);
  f.d_v = f.d_v_rows.largest() + stored * largest(exact.d_v);
  const double single = std::sqrt(static_cast<double>(s.dim_qk)) * m.raw;
  f.raw_max = kU * (2 + single);
  f.score_max = kU * (2 + single + a);
  f.lse = kU * (2 + single + a + 2 * largest(exact.lse));
  f.p_max = kU * (4 + single + a + largest(exact.lse));
  const double d_c = m.dot * m.rows * d_s + largest_bound(m.d_c, rounds, m.independent);
  f.d_scale = m.slopes.rule * d_c + kU * largest(exact.d_scale);
  f.d_log_n_gain = m.slopes.log_n_gain * d_c + kU * largest(exact.d_log_n_gain);
  f.d_log_n_offset = m.slopes.log_n_offset * d_c + kU * largest(exact.d_log_n_offset);
  const bool one_key =
      c.bias.tensor().count() == 0 || c.bias.tensor().shape[3] > 1 || s.len_kv <= 1;  // else an element sums up rows
  f.d_bias = sharing * (d_s + (one_key ? m.one_pair : m.one_row).of(rounds).bound(m.independent)) + bias_stored;
  f.d_sink = m.rows * d_s + largest_bound(m.d_z, rounds, m.independent) + kU * largest(exact.d_sink);
  return f;
}

double RowFloors::largest() const { return every + (row.empty() ? 0 : *std::max_element(row.begin(), row.end())); }

Floors floors(const Case& c, const Result& exact, Rounds rounds) { return floors(c, exact, measure(c, exact), rounds); }

namespace {

bool same_kind(double x, double exact) { return x == exact || (std::isnan(x) && std::isnan(exact)); }

// How far a result is from the exact one.
struct Distance {
  double error = 0;        // the largest
  double squares = 0;      // of all
  bool comparable = true;  // infinities and NaNs in the same places
};

Distance distance(const std::vector<double>& x, const std::vector<double>& exact) {
  Distance d;
  d.comparable = x.size() == exact.size();
  for (std::size_t i = 0; i < x.size() && d.comparable; ++i) {
    if (std::isfinite(exact[i]) && std::isfinite(x[i]))
      d.error = std::max(d.error, std::fabs(x[i] - exact[i])), d.squares += (x[i] - exact[i]) * (x[i] - exact[i]);
    else d.comparable = same_kind(x[i], exact[i]);
  }
  return d;
}

}  // namespace

Yardstick::Yardstick(const Case& c, Result plain, Result exact)
    : dtype_(c.shape.dtype), plain_(std::move(plain)), exact_(std::move(exact)) {
  const Magnitudes m = measure(c, exact_);
  for (const bool weights : {false, true})
    for (const bool backward : {false, true}) floors_[weights][backward] = floors(c, exact_, m, {weights, backward});
}

template <class Visit>
void Yardstick::each(const Result& fast, const Visit& visit) const {
  const Floors& f = floors_[fast.rounded_weights][fast.rounded_backward];
  const struct {
    const char* name;
    std::vector<double> Result::*member;
    double floor;
  } numbers[] = {{"lse", &Result::lse, f.lse},
                 {"raw_max", &Result::raw_max, f.raw_max},
                 {"score_max", &Result::score_max, f.score_max},
                 {"p_max", &Result::p_max, f.p_max},
                 {"d_scale", &Result::d_scale, f.d_scale},
                 {"d_bias", &Result::d_bias, f.d_bias},
                 {"d_sink", &Result::d_sink, f.d_sink},
                 {"d_log_n_gain", &Result::d_log_n_gain, f.d_log_n_gain},
                 {"d_log_n_offset", &Result::d_log_n_offset, f.d_log_n_offset}};
  for (const auto& part : numbers) {
    const Distance ours = distance(fast.*part.member, exact_.*part.member),
                   theirs = distance(plain_.*part.member, exact_.*part.member);
    visit(part.name, ours.comparable, ours.error, (theirs.comparable ? 2 * theirs.error : 0) + part.floor);
  }
  const struct {
    const char *name, *norm;
    std::vector<double> Result::*member;
    const RowFloors& floor;
  } tensors[] = {{"o", "norm of o", &Result::o, f.o_rows},
                 {"d_q", "norm of d_q", &Result::d_q, f.d_q_rows},
                 {"d_k", "norm of d_k", &Result::d_k, f.d_k_rows},
                 {"d_v", "norm of d_v", &Result::d_v, f.d_v_rows}};
  const double stored = half_ulp(dtype_);
  for (const auto& part : tensors) {
    const std::vector<double>&x = fast.*part.member, &y = exact_.*part.member;
    const Distance ours = distance(x, y), theirs = distance(plain_.*part.member, y);
    const double plain = theirs.comparable ? 2 * theirs.error : 0;
    const std::size_t dim = part.floor.row.empty() ? 1 : std::max<std::size_t>(1, y.size() / part.floor.row.size());
    double worst = 0, allowed = plain + part.floor.every, norm = 0;  // of the element that takes up most of what it may
    for (std::size_t i = 0; ours.comparable && i < y.size(); ++i) {
      if (!std::isfinite(y[i])) continue;
      norm += y[i] * y[i];
      const double may = plain + part.floor.every + part.floor.row[i / dim] + stored * std::fabs(y[i]),
                   error = std::fabs(x[i] - y[i]);
      if (error * allowed > worst * may || !(error <= may)) worst = error, allowed = may;
    }
    visit(part.name, ours.comparable, worst, allowed);
    const double count = std::sqrt(static_cast<double>(y.size()));
    const double floor =
        count * part.floor.every + part.floor.norm + stored * (std::sqrt(norm / 3) + kWalk * largest(y));
    visit(part.norm, ours.comparable, std::sqrt(ours.squares),
          (theirs.comparable ? 2 * std::sqrt(theirs.squares) : 0) + floor);
  }
}

double Yardstick::share(const Result& fast) const {
  double most = 0;
  each(fast, [&](const char*, bool comparable, double error, double allowed) {
    if (!comparable) most = std::numeric_limits<double>::infinity();
    else if (error > 0) most = std::max(most, error / allowed);
  });
  return most;
}

std::string Yardstick::judge(const Result& fast) const {
  std::string out;
  if (!fast.guards_intact) out += "wrote outside an output\n";
  each(fast, [&](const char* name, bool comparable, double error, double allowed) {
    if (!comparable) out += fmt::format("{}: not finite where the reference is, or sizes differ\n", name);
    else if (!(error <= allowed)) out += fmt::format("{}: error {:.3g}, allowed {:.3g}\n", name, error, allowed);
  });
  return out;
}

}  // namespace rootdk::test
