#include "support/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
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

// Magnitudes of a problem that bound its rounding errors, over visible pairs.
struct Magnitudes {
  double raw = 0;       // max c·Σ|q||k|
  double dot = 0;       // max Σ|q||k|
  double score = 0;     // max of |what is added to the score| + |score|
  double d_p = 0;       // max Σ|dO||v|
  double delta = 0;     // max |dLSE|
  double column = 0;    // max over keys of Σ P over the rows that see it (all heads of a group)
  double rows = 0;      // batch × len_q
  // max Σ|dS| of a row, of a key (all heads of a group), of a head, and max |dS|; where scores are not bent
  double row_d_s = 0, column_d_s = 0, head_d_s = 0, one_d_s = 0;
  double scale = 0;     // max |c|
  double scale_ratio = 1;  // between heads of a group
  Scale::Slopes slopes{0, 0, 0};  // max |dc/d…|
};

Magnitudes measure(const Case& c, const Result& exact) {
  const Shape& s = c.shape;
  const Mask& mask = c.problem.mask;
  const std::vector<double> q = c.q.values(), d_o = c.d_o.values(), d_lse = c.d_lse.values();
  Magnitudes m;
  m.rows = static_cast<double>(s.batch * s.len_q);
  m.delta = largest(d_lse);
  std::vector<double> factors;  // c, [batch, heads_q, len_q]
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        const ScaleRow row = base::visible_keys(mask, s, b, i).scale_row();
        const Scale::Slopes slopes = c.problem.scale.slopes(h, s.dim_qk, row);
        factors.push_back(c.problem.scale.factor(h, s.dim_qk, row));
        m.scale = std::max(m.scale, std::fabs(factors.back()));
        m.slopes.rule = std::max(m.slopes.rule, std::fabs(slopes.rule));
        m.slopes.log_n_gain = std::max(m.slopes.log_n_gain, std::fabs(slopes.log_n_gain));
        m.slopes.log_n_offset = std::max(m.slopes.log_n_offset, std::fabs(slopes.log_n_offset));
      }
  for (std::size_t x = 0; x < factors.size(); ++x)
    if (factors[x] != 0) m.scale_ratio = std::max(m.scale_ratio, m.scale / std::fabs(factors[x]));
  std::vector<double> deltas(factors.size());  // D = dO·o − dLSE
  const auto dim_v = static_cast<std::size_t>(s.dim_v);
  for (std::size_t row = 0; row < deltas.size(); ++row) {
    for (std::size_t d = row * dim_v; d < (row + 1) * dim_v; ++d) deltas[row] += d_o[d] * exact.o[d];
    if (!d_lse.empty()) deltas[row] -= d_lse[row];
  }
  std::vector<double> row_d_s(factors.size()), head_d_s(static_cast<std::size_t>(s.heads_q));
  std::vector<double> k(static_cast<std::size_t>(s.dim_qk)), v(static_cast<std::size_t>(s.dim_v));
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t kv = 0; kv < s.heads_kv; ++kv)
      for (std::int64_t j = 0; j < s.len_kv; ++j) {
        const base::KeyPlace place = base::place_of_key(c.problem, c.k.tensor(), b, j);
        for (std::int64_t d = 0; d < s.dim_qk; ++d) k[static_cast<std::size_t>(d)] = c.k.get(place.item, kv, place.row, d);
        for (std::int64_t d = 0; d < s.dim_v; ++d) v[static_cast<std::size_t>(d)] = c.v.get(place.item, kv, place.row, d);
        double column = 0, column_d_s = 0;
        for (std::int64_t h = kv * s.group(); h < (kv + 1) * s.group(); ++h)
          for (std::int64_t i = 0; i < s.len_q; ++i) {
            const base::KeyRange range = base::visible_keys(mask, s, b, i);
            if (j < range.begin || j >= range.end) continue;
            const std::size_t row = static_cast<std::size_t>((b * s.heads_q + h) * s.len_q + i);
            double dot = 0, signed_dot = 0, d_p = 0, signed_d_p = 0;
            for (std::size_t d = 0; d < k.size(); ++d) {
              const double product = q[row * k.size() + d] * k[d];
              signed_dot += product;
              dot += std::fabs(product);
            }
            for (std::size_t d = 0; d < v.size(); ++d) {
              const double product = d_o[row * v.size() + d] * v[d];
              signed_d_p += product;
              d_p += std::fabs(product);
            }
            const double factor = factors[row], scale = std::fabs(factor);
            double added = 0;
            if (!c.bias.empty()) added += std::fabs(base::read(mask.bias, b, h, i, j));
            if (!c.slopes.empty()) added += std::fabs(static_cast<double>(c.slopes[static_cast<std::size_t>(h)]) * static_cast<double>(range.position - j));
            if (!std::isfinite(added)) continue;
            m.raw = std::max(m.raw, scale * dot);
            m.dot = std::max(m.dot, dot);
            m.score = std::max(m.score, added);
            m.d_p = std::max(m.d_p, d_p);
            // P is at most 1 and at most what an unbent score gives; transforms here only shrink scores, so bound by 1.
            const bool bent = c.problem.soft_cap || c.problem.transform.present();
            const double exponent = factor * signed_dot + added - exact.lse[row];
            const double p = bent ? 1.0 : std::min(1.0, std::exp(exponent)), d_s = p * std::fabs(signed_d_p - deltas[row]);
            column += p;
            column_d_s += d_s, row_d_s[row] += d_s, head_d_s[static_cast<std::size_t>(h)] += d_s;
            m.one_d_s = std::max(m.one_d_s, d_s);
          }
        m.column = std::max(m.column, column);
        m.column_d_s = std::max(m.column_d_s, column_d_s);
      }
  m.row_d_s = largest(row_d_s), m.head_d_s = largest(head_d_s);
  return m;
}

}  // namespace

// The derivation. A score is a sum of magnitude at most A = c·Σ|q||k| plus what is added; computed in f32 it is off by at
// most about u·A (the sums behind it are short against their bound, and the plain method, of which twice is allowed, has
// the same error), so a probability is off by a relative u·(2 + A): the 2 is for exp and the division.
//   o      = Σ p·v:            u·(2 + A)·max|v|·gain, gain = 1/(1 − dropout)
//   maxima, lse: one score, with no others to average its error out. Rounding errors of a sum of n terms behave as a random
//                              walk (Higham and Mary, 2019): u·√n·A in place of u·A; lse and p_max add their own roundings
// Backward computes p = e^{s − lse} from an lse that was stored in f32 and subtracts it in f32: u·|lse| twice more, so there
// B = A + 2·|lse|.
//   dV     = Σ_rows p·dO:      u·(2 + B)·max|dO|·gain·column, column = largest Σ_rows p of a key
//   dS     = p·(dP − D):       [u·(4 + B)·M + half_ulp·E]·p, E = gain·max Σ|dO||v| bounds |dP| and |dO·o|,
//                              M = 2E + max|dLSE|; the half ulp is of o, which backward reads in the storage dtype
//   dQ     = c·Σ_keys dS·k:    c·max|k| times that (the p of a row sum to 1)
//   dK     = c·Σ_rows dS·q:    c·max|q|·column times that
//   dc     = Σ dS·(q·k):       max Σ|q||k|·rows times that (p of a row sum to 1); what c is made of: times max |dc/d…|
//   dbias  = Σ dS:             times the number of rows that share an element
//   dz     = Σ_rows p_sink·D:  rows times u·(4 + B)·M
// Each is then rounded to the storage dtype: half an ulp of the largest element, and f16's smallest step.
// A kernel that rounds its probabilities to the storage dtype (`Rounds::weights`) has each off by a relative half ulp of it, h, more:
// h·max|v|·gain in o, and through o, which backward reads, h·E in dS. One that rounds in backward (`Rounds::backward`) has p off by h
// before dV: h·column·max|dO|; and dS = p·(dP − D) by h for p and by h again before dQ and dK: 2·h·|dS|, added up over the keys of a row for dQ, over the rows
// of a key for dK and over a head for dc, with the exact dS (such kernels take neither bent scores nor dropout). Below f16's smallest normal
// number h is an absolute half step instead, of p, which |dP − D| ≤ M multiplies, and of dS, of each of the terms; where heads that read
// the same keys have scales of their own, dS is rounded after the ratio to the largest of them, so its step is as many times as large for dc.
static Floors floors(const Case& c, const Result& exact, const Magnitudes& m, Rounds rounds) {
  const Shape& s = c.shape;
  const double a = m.raw + m.score;
  const double gain = base::keep_gain(c.problem.dropout);
  const double stored = half_ulp(s.dtype);
  const double tiny = s.dtype == DType::kF16 ? 0x1p-25 : 0x1p-126;
  const double e = gain * m.d_p, big_m = 2 * e + m.delta;
  const double back = a + 2 * largest(exact.lse);
  const double rounded_p = rounds.weights ? half_ulp(s.dtype) : 0;
  const double rounded = rounds.backward ? stored : 0, step = rounds.backward && s.dtype == DType::kF16 ? 0x1p-25 : 0;
  const double d_s = kU * (4 + back) * big_m + (stored + rounded_p) * e;
  const double again = 1 + 2 * rounded;  // what is rounded is off already
  const double keys = static_cast<double>(s.len_kv), rows = static_cast<double>(s.len_q * s.group()), steps = step * (1 + big_m);
  const auto after_store = [&](double floor, const std::vector<double>& result) { return floor + stored * largest(result) + tiny; };

  double sharing = 1;  // rows that share an element of the bias
  double bias_stored = 0;
  if (c.bias.tensor().count() > 0) {
    const ConstTensor bias = c.bias.tensor();
    sharing = static_cast<double>(s.batch * s.heads_q * s.len_q) / static_cast<double>(bias.shape[0] * bias.shape[1] * bias.shape[2]);
    bias_stored = half_ulp(bias.dtype) * largest(exact.d_bias) + (bias.dtype == DType::kF16 ? 0x1p-25 : 0);
  }
  Floors f;
  f.o = after_store((kU * (2 + a) + rounded_p) * largest(c.v.values()) * gain, exact.o);
  const double single = std::sqrt(static_cast<double>(s.dim_qk)) * m.raw;
  f.raw_max = kU * (2 + single);
  f.score_max = kU * (2 + single + a);
  f.lse = kU * (2 + single + a + 2 * largest(exact.lse));
  f.p_max = kU * (4 + single + a + largest(exact.lse));
  f.d_v = after_store(((kU * (2 + back) + rounded) * m.column + step * rows) * largest(c.d_o.values()) * gain, exact.d_v);
  f.d_q = after_store(m.scale * largest(c.k.values()) * (again * d_s + 2 * rounded * m.row_d_s + keys * steps), exact.d_q);
  f.d_k = after_store(m.scale * largest(c.q.values()) * (m.column * again * d_s + 2 * rounded * m.column_d_s + rows * steps), exact.d_k);
  const double d_c = m.dot * (m.rows * again * d_s + 2 * rounded * m.head_d_s + m.rows * keys * steps * m.scale_ratio);
  f.d_scale = m.slopes.rule * d_c + kU * largest(exact.d_scale);
  f.d_log_n_gain = m.slopes.log_n_gain * d_c + kU * largest(exact.d_log_n_gain);
  f.d_log_n_offset = m.slopes.log_n_offset * d_c + kU * largest(exact.d_log_n_offset);
  f.d_bias = sharing * (again * d_s + rounded * m.one_d_s + step * big_m) + bias_stored;
  f.d_sink = m.rows * d_s + kU * largest(exact.d_sink);
  return f;
}

Floors floors(const Case& c, const Result& exact, Rounds rounds) { return floors(c, exact, measure(c, exact), rounds); }

namespace {

struct Distance {
  double error = 0;
  bool comparable = true;  // infinities and NaNs in the same places
};

Distance distance(const std::vector<double>& x, const std::vector<double>& exact) {
  Distance d;
  d.comparable = x.size() == exact.size();
  for (std::size_t i = 0; i < x.size() && d.comparable; ++i) {
    if (std::isfinite(exact[i]) && std::isfinite(x[i])) d.error = std::max(d.error, std::fabs(x[i] - exact[i]));
    else d.comparable = x[i] == exact[i] || (std::isnan(x[i]) && std::isnan(exact[i]));
  }
  return d;
}

}  // namespace

Yardstick::Yardstick(const Case& c, Result plain, Result exact)
    : plain_(std::move(plain)), exact_(std::move(exact)) {
  const Magnitudes m = measure(c, exact_);
  for (const bool weights : {false, true})
    for (const bool backward : {false, true}) floors_[weights][backward] = floors(c, exact_, m, {weights, backward});
}

std::string Yardstick::judge(const Result& fast) const {
  const Floors& f = floors_[fast.rounded_weights][fast.rounded_backward];
  const struct {
    const char* name;
    std::vector<double> Result::*member;
    double floor;
  } parts[] = {{"o", &Result::o, f.o},           {"lse", &Result::lse, f.lse},       {"raw_max", &Result::raw_max, f.raw_max},
               {"score_max", &Result::score_max, f.score_max}, {"p_max", &Result::p_max, f.p_max}, {"d_q", &Result::d_q, f.d_q},
               {"d_k", &Result::d_k, f.d_k},     {"d_v", &Result::d_v, f.d_v},       {"d_scale", &Result::d_scale, f.d_scale},
               {"d_bias", &Result::d_bias, f.d_bias}, {"d_sink", &Result::d_sink, f.d_sink},
               {"d_log_n_gain", &Result::d_log_n_gain, f.d_log_n_gain}, {"d_log_n_offset", &Result::d_log_n_offset, f.d_log_n_offset}};
  std::string out;
  if (!fast.guards_intact) out += "wrote outside an output\n";
  for (const auto& part : parts) {
    const Distance ours = distance(fast.*part.member, exact_.*part.member);
    const Distance theirs = distance(plain_.*part.member, exact_.*part.member);
    const double allowed = (theirs.comparable ? 2 * theirs.error : 0) + part.floor;
    if (!ours.comparable) out += fmt::format("{}: not finite where the reference is, or sizes differ\n", part.name);
    else if (!(ours.error <= allowed))
      out += fmt::format("{}: error {:.3g}, allowed {:.3g} (plain {:.3g}, floor {:.3g})\n", part.name, ours.error, allowed, theirs.error, part.floor);
  }
  return out;
}

}  // namespace rootdk::test
