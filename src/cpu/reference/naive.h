// Attention as one would write it on a blackboard, a row at a time, with every feature of Problem. Two arithmetics
// share it: double (the reference, the last row of the kernel table) and "plain" (f32 with scores and probabilities
// rounded to the storage dtype: what most people write, and the yardstick for rounding errors).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/call.h"
#include "base/dropout.h"
#include "base/element.h"
#include "base/gaps.h"
#include "base/parallel.h"
#include "base/row_state.h"
#include "base/row_tensors.h"
#include "base/softmax_sums.h"
#include "base/visibility.h"

namespace rootdk::cpu {

/// The reference's arithmetic: nothing is rounded but to double.
struct DoubleArithmetic {
  using Real = double;
  static double stored(DType, double x) { return x; }
};

template <class Arithmetic>
class Naive {
  using Real = typename Arithmetic::Real;

 public:
  static void forward(const base::ForwardCall& call) {
    const Shape& s = call.plan.shape;
    base::parallel_tasks(s.batch * s.heads_q, call.plan.threads, [&](std::int64_t task, int) {
      const std::int64_t b = task / s.heads_q, h = task % s.heads_q;
      const KeyHead keys(call.plan, call.in.k, call.in.v, b, h / s.group());
      Row row;
      std::vector<double> mass(static_cast<std::size_t>(s.len_kv));
      for (std::int64_t i = 0; i < s.len_q; ++i) forward_row(call, keys, b, h, i, row, mass);
      for (std::int64_t j = 0; j < s.len_kv && call.out.key_mass.present(); ++j)
        base::write(call.out.key_mass, b, h, j, 0, mass[static_cast<std::size_t>(j)]);
      if (call.causes) call.causes[task] = causes(call, keys, b, h);
    });
  }

  static void backward(const base::BackwardCall& call) {
    const Shape& s = call.plan.shape;
    const Gradients& grad = call.grad;
    const auto heads = static_cast<std::size_t>(s.batch * s.heads_q);
    const std::vector<double> zeros(heads);
    HeadSums sums{zeros,
                  zeros,
                  zeros,
                  zeros,
                  std::vector<HeadGradients>(heads),
                  std::vector<Real>(grad.d_bias.present() ? static_cast<std::size_t>(grad.d_bias.count()) : 0)};
    // A bias may be shared by any heads, so its gradient is summed by one thread.
    const int threads = grad.d_bias.present() ? 1 : call.plan.threads;
    base::parallel_tasks(s.batch * s.heads_kv, threads, [&](std::int64_t task, int) {
      backward_kv_head(call, task / s.heads_kv, task % s.heads_kv, sums);
    });
    write_sums(s, sums.scale, grad.d_scale);
    write_sums(s, sums.log_n_gain, grad.d_log_n_gain);
    write_sums(s, sums.log_n_offset, grad.d_log_n_offset);
    write_sums(s, sums.sink, grad.d_sink);
    write_bias(grad.d_bias, sums.bias);
    if (call.stats) std::copy(sums.stats.begin(), sums.stats.end(), call.stats);
  }

 private:
  /// The visible keys of one row, in order, and what happened to their scores.
  struct Row {
    std::vector<std::int64_t> key;
    std::vector<Real> raw;     ///< c·q·k
    std::vector<Real> score;   ///< just before softmax
    std::vector<Real> slope;   ///< d score / d raw
    std::vector<Real> weight;  ///< probability times what dropout makes of it (forward only)
    std::vector<Real> q;       ///< the query
    base::KeyRange range;
  };

  /// K and V of one key head of one batch item, through the page table if there is one: [len_kv, dim], row-major.
  struct KeyHead {
    std::vector<Real> k, v;

    KeyHead(const Plan& plan, const ConstTensor& k_tensor, const ConstTensor& v_tensor, std::int64_t b,
            std::int64_t kv_head)
        : k(gather(plan, k_tensor, b, kv_head)), v(gather(plan, v_tensor, b, kv_head)) {}

   private:
    static std::vector<Real> gather(const Plan& plan, const ConstTensor& t, std::int64_t b, std::int64_t kv_head) {
      std::vector<Real> out;
      out.reserve(static_cast<std::size_t>(plan.shape.len_kv * t.shape[3]));
      for (std::int64_t j = 0; j < plan.shape.len_kv; ++j) {
        const base::KeyPlace place = base::place_of_key(plan.problem, t, b, j);
        for (std::int64_t d = 0; d < t.shape[3]; ++d) out.push_back(load(t, place.item, kv_head, place.row, d));
      }
      return out;
    }
  };

  struct HeadSums {
    std::vector<double> scale, log_n_gain, log_n_offset, sink;  ///< [batch, heads_q]
    std::vector<HeadGradients> stats;                           ///< likewise
    std::vector<Real> bias;                                     ///< [d_bias.shape], row-major
  };

  // Each head's sum over the batch, in order.
  static void write_sums(const Shape& s, const std::vector<double>& sums, std::span<float> out) {
    for (std::int64_t h = 0; h < s.heads_q && !out.empty(); ++h) {
      double sum = 0;
      for (std::int64_t b = 0; b < s.batch; ++b) sum += sums[static_cast<std::size_t>(b * s.heads_q + h)];
      out[static_cast<std::size_t>(h)] = static_cast<float>(sum);
    }
  }

  static Real load(const ConstTensor& t, std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d) {
    return static_cast<Real>(base::read(t, b, h, l, d));
  }

  static std::vector<Real> load_row(const ConstTensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
    std::vector<Real> row(static_cast<std::size_t>(t.shape[3]));
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = load(t, b, h, i, static_cast<std::int64_t>(d));
    return row;
  }

  // Whether a boolean mask and biases let a query see a key of its run.
  static bool lets_see(const Mask& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (mask.allowed.present() && base::read(mask.allowed, b, h, i, j) == 0) return false;
    return !mask.bias.present() || load(mask.bias, b, h, i, j) != -std::numeric_limits<Real>::infinity();
  }

  static void score_row(const Plan& plan, const ConstTensor& q, const KeyHead& keys, std::int64_t b, std::int64_t h,
                        std::int64_t i, Row& row) {
    const Problem& problem = plan.problem;
    const Shape& s = plan.shape;
    const Mask& mask = problem.mask;
    const auto dim = static_cast<std::size_t>(s.dim_qk);
    row.range = base::visible_keys(mask, s, b, i);
    const auto c = static_cast<Real>(problem.scale.factor(h, s.dim_qk, row.range.scale_row()));
    row.key.clear(), row.raw.clear(), row.score.clear(), row.slope.clear();
    row.q = load_row(q, b, h, i);
    for (std::int64_t j = row.range.begin; j < row.range.end; ++j) {
      if (!lets_see(mask, b, h, i, j)) continue;
      Real bias = 0;
      if (mask.bias.present()) bias = load(mask.bias, b, h, i, j);
      if (!mask.alibi_slopes.empty())
        bias -= static_cast<Real>(mask.alibi_slopes[static_cast<std::size_t>(h)]) *
                static_cast<Real>(std::abs(row.range.position - j));

      Real dot = 0;
      const Real* k = keys.k.data() + static_cast<std::size_t>(j) * dim;
      for (std::size_t d = 0; d < dim; ++d) dot += row.q[d] * k[d];
      const Real raw = Arithmetic::stored(s.dtype, c * dot);
      Real score = raw, slope = 1;
      if (problem.soft_cap) {
        const auto cap = static_cast<Real>(*problem.soft_cap);
        const Real t = std::tanh(score / cap);
        score = cap * t;
        slope *= 1 - t * t;
      }
      if (problem.transform.present()) {
        if constexpr (std::is_same_v<Real, double>)
          problem.transform.chain_f64(problem.transform.context, &score, &slope, 1);
        else problem.transform.chain_f32(problem.transform.context, &score, &slope, 1);
      }
      row.key.push_back(j);
      row.raw.push_back(raw);
      row.score.push_back(Arithmetic::stored(s.dtype, score + bias));
      row.slope.push_back(slope);
    }
  }

  // What dropout multiplies probability j by: 0 or 1/(1−p).
  static Real keep_factor(const Dropout& dropout, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (dropout.p == 0) return 1;
    return base::keeps(dropout, b, h, i, j) ? static_cast<Real>(base::keep_gain(dropout)) : Real(0);
  }

  static void forward_row(const base::ForwardCall& call, const KeyHead& keys, std::int64_t b, std::int64_t h,
                          std::int64_t i, Row& row, std::vector<double>& mass) {
    const Problem& problem = call.plan.problem;
    const Shape& s = call.plan.shape;
    const Outputs& out = call.out;
    score_row(call.plan, call.in.q, keys, b, h, i, row);

    base::RowState<Real> state;
    for (std::size_t n = 0; n < row.key.size(); ++n) state.observe(row.raw[n], row.score[n]);
    base::SinkResult<Real> total{state.lse(), 1};
    if (!problem.sink.empty())
      total = base::with_sink(total.lse, static_cast<Real>(problem.sink[static_cast<std::size_t>(h)]));
    const Real lse = total.lse;

    row.weight.clear();
    if (state.lse() != base::RowState<Real>::kNothing)  // else all scores are −inf: as if nothing were visible
      for (std::size_t n = 0; n < row.key.size(); ++n)
        row.weight.push_back(Arithmetic::stored(s.dtype, std::exp(row.score[n] - lse)) *
                             keep_factor(problem.dropout, b, h, i, row.key[n]));

    bool finite = std::isfinite(lse) || lse == base::RowState<Real>::kNothing;
    const auto dim = static_cast<std::size_t>(s.dim_v);
    std::vector<Real> o(dim);
    for (std::size_t n = 0; n < row.weight.size(); ++n) {
      const Real* v = keys.v.data() + static_cast<std::size_t>(row.key[n]) * dim;
      for (std::size_t d = 0; d < dim; ++d) o[d] += row.weight[n] * v[d];
    }
    for (std::size_t d = 0; d < dim; ++d) {
      finite = finite && std::isfinite(o[d]);
      base::write(out.o, b, h, i, static_cast<std::int64_t>(d), static_cast<double>(o[d]));
    }
    const Real p_max = state.p_max(total.share);
    write_row(out.lse, b, h, i, lse);
    write_row(out.rows.raw_max, b, h, i, state.raw_max);
    write_row(out.rows.score_max, b, h, i, state.max);
    write_row(out.rows.p_max, b, h, i, p_max);
    if (!call.records) return;
    const std::int64_t index = (b * s.heads_q + h) * s.len_q + i;
    const base::RowRecord record = {static_cast<double>(state.raw_max),
                                    static_cast<double>(state.max),
                                    static_cast<double>(p_max),
                                    static_cast<double>(lse),
                                    base::is_query(problem.mask, b, i) ? static_cast<std::int32_t>(state.visible) : -1,
                                    finite};
    call.records[index] = record;
    if (finite) look_again(call, (b * s.heads_q + h) * GapHistogram::kBins, row, record, mass);
    if (!call.full) return;
    const bool sampled = base::is_sampled(problem.stats_options, i);
    if (sampled) call.full[index] = full_record(call, h, row);
    for (const base::FullRowTensor& t : base::kFullRowTensors)
      write_row(
          out.rows.*t.tensor, b, h, i,
          sampled ? static_cast<Real>(t.value(record, call.full[index])) : std::numeric_limits<Real>::quiet_NaN());
  }

  // What needs a row's maximum and lse: its keys' distances and probabilities.
  static void look_again(const base::ForwardCall& call, std::int64_t first_bin, const Row& row,
                         const base::RowRecord& record, std::vector<double>& mass) {
    for (std::size_t n = 0; n < row.key.size(); ++n) {
      const auto score = static_cast<double>(row.score[n]);
      if (score == -std::numeric_limits<double>::infinity()) continue;
      if (call.gaps) ++call.gaps[first_bin + base::gap_bin(static_cast<float>(record.score_max - score))];
      mass[static_cast<std::size_t>(row.key[n])] += std::exp(score - record.lse);
    }
  }

  // Over the queries of one head that see a key and the keys that a query of its group sees, of these those that are
  // finite.
  static Causes causes(const base::ForwardCall& call, const KeyHead& keys, std::int64_t b, std::int64_t h) {
    const Shape& s = call.plan.shape;
    const auto dim = static_cast<std::size_t>(s.dim_qk);
    const auto is_finite = [dim](const Real* x) {
      return std::all_of(x, x + dim, [](Real value) { return std::isfinite(value); });
    };
    const Mask& mask = call.plan.problem.mask;
    std::vector<bool> sees(static_cast<std::size_t>(s.len_q)), seen(static_cast<std::size_t>(s.len_kv));
    for (std::int64_t other = h / s.group() * s.group(); other < (h / s.group() + 1) * s.group(); ++other)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        const base::KeyRange range = base::visible_keys(mask, s, b, i);
        for (std::int64_t j = range.begin; j < range.end; ++j) {
          if (!lets_see(mask, b, other, i, j)) continue;
          seen[static_cast<std::size_t>(j)] = true;
          if (other == h) sees[static_cast<std::size_t>(i)] = true;
        }
      }
    Causes out;
    out.dim = static_cast<double>(s.dim_qk);
    double queries = 0, squares = 0;
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      const std::vector<Real> q = load_row(call.in.q, b, h, i);
      if (!sees[static_cast<std::size_t>(i)] || !is_finite(q.data())) continue;
      queries += 1;
      for (const Real x : q) squares += static_cast<double>(x) * static_cast<double>(x);
    }
    out.q_square = queries > 0 ? squares / (queries * out.dim) : 0;

    std::vector<const Real*> rows;
    for (std::size_t j = 0; j < seen.size(); ++j)
      if (const Real* k = keys.k.data() + j * dim; seen[j] && is_finite(k)) rows.push_back(k);
    for (std::size_t d = 0; d < dim && !rows.empty(); ++d) {
      double mean = 0, variance = 0;
      for (const Real* k : rows) mean += static_cast<double>(k[d]) / static_cast<double>(rows.size());
      for (const Real* k : rows)
        variance +=
            (static_cast<double>(k[d]) - mean) * (static_cast<double>(k[d]) - mean) / static_cast<double>(rows.size());
      out.key_mean_square += mean * mean;
      out.k_variance += variance / out.dim;
    }
    return out;
  }

  static base::RowMoments moments(const std::vector<std::int64_t>& keys, const std::vector<Real>& scores) {
    base::RowMoments m;
    if (scores.empty()) return m;
    for (const Real x : scores) m.mean += static_cast<double>(x) / static_cast<double>(scores.size());
    for (const Real x : scores) m.m2 += (static_cast<double>(x) - m.mean) * (static_cast<double>(x) - m.mean);
    m.min = static_cast<double>(*std::min_element(scores.begin(), scores.end()));
    m.argmax = static_cast<std::int32_t>(
        keys[static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin())]);
    return m;
  }

  static base::FullRecord full_record(const base::ForwardCall& call, std::int64_t h, const Row& row) {
    base::SoftmaxSums sums;
    for (const Real score : row.score) sums = merge(sums, base::SoftmaxSums::of(static_cast<double>(score)));
    const auto& sinks = call.plan.problem.sink;
    const auto sink = sinks.empty() ? std::nullopt : std::optional<double>(sinks[static_cast<std::size_t>(h)]);
    return base::full_record(moments(row.key, row.raw), moments(row.key, row.score), sums, sink);
  }

  static void write_row(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i, Real value) {
    if (t.present()) base::write(t, b, h, i, 0, static_cast<double>(value));
  }

  // All query heads that read one key head, in order, so that sums over the group have one owner.
  static void backward_kv_head(const base::BackwardCall& call, std::int64_t b, std::int64_t kv_head, HeadSums& sums) {
    const Shape& s = call.plan.shape;
    const Gradients& grad = call.grad;
    std::vector<Real> d_k(static_cast<std::size_t>(s.len_kv * s.dim_qk)),
        d_v(static_cast<std::size_t>(s.len_kv * s.dim_v));
    const KeyHead keys(call.plan, call.in.k, call.in.v, b, kv_head);
    Row row;
    for (std::int64_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i) backward_row(call, keys, b, h, i, row, d_k, d_v, sums);
    if (grad.d_k.present())
      for (std::int64_t j = 0; j < s.len_kv; ++j)
        for (std::int64_t d = 0; d < s.dim_qk; ++d)
          base::write(grad.d_k, b, kv_head, j, d, static_cast<double>(d_k[static_cast<std::size_t>(j * s.dim_qk + d)]));
    if (grad.d_v.present())
      for (std::int64_t j = 0; j < s.len_kv; ++j)
        for (std::int64_t d = 0; d < s.dim_v; ++d)
          base::write(grad.d_v, b, kv_head, j, d, static_cast<double>(d_v[static_cast<std::size_t>(j * s.dim_v + d)]));
    for (std::int64_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h) {
      HeadGradients& stats = sums.stats[static_cast<std::size_t>(b * s.heads_q + h)];
      stats.d_k = grad.d_k.present() ? squares(d_k) : std::numeric_limits<double>::quiet_NaN();
      stats.d_v = grad.d_v.present() ? squares(d_v) : std::numeric_limits<double>::quiet_NaN();
    }
  }

  static double squares(const std::vector<Real>& x) {
    double sum = 0;
    for (const Real value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    return sum;
  }

  static void backward_row(const base::BackwardCall& call, const KeyHead& keys, std::int64_t b, std::int64_t h,
                           std::int64_t i, Row& row, std::vector<Real>& d_k, std::vector<Real>& d_v, HeadSums& sums) {
    const Problem& problem = call.plan.problem;
    const Shape& s = call.plan.shape;
    const BackwardInputs& in = call.in;
    const auto dim_qk = static_cast<std::size_t>(s.dim_qk), dim_v = static_cast<std::size_t>(s.dim_v);
    score_row(call.plan, in.q, keys, b, h, i, row);
    const auto c = static_cast<Real>(problem.scale.factor(h, s.dim_qk, row.range.scale_row()));

    const Real lse = load(in.lse, b, h, i, 0);
    Real delta = in.d_lse.present() ? -load(in.d_lse, b, h, i, 0) : Real(0);  // D = dO·O − dLSE
    const std::vector<Real> d_o = load_row(in.d_o, b, h, i), o = load_row(in.o, b, h, i);
    for (std::size_t d = 0; d < dim_v; ++d)
      if (o[d] != 0) delta += d_o[d] * o[d];  // a row that sees no key has o = 0, and its dO may hold anything

    const bool seen = lse != base::RowState<Real>::kNothing;
    if (!problem.sink.empty() && seen) {
      const auto z = static_cast<Real>(problem.sink[static_cast<std::size_t>(h)]);
      sums.sink[static_cast<std::size_t>(b * s.heads_q + h)] -= static_cast<double>(std::exp(z - lse) * delta);
    }

    HeadGradients& stats = sums.stats[static_cast<std::size_t>(b * s.heads_q + h)];
    std::vector<Real> sum(dim_qk);  // Σ dS_raw · k, before the scale
    for (std::size_t n = 0; seen && n < row.key.size(); ++n) {
      const std::int64_t j = row.key[n];
      const Real *k = keys.k.data() + static_cast<std::size_t>(j) * dim_qk,
                 *v = keys.v.data() + static_cast<std::size_t>(j) * dim_v;
      Real *d_k_row = d_k.data() + static_cast<std::size_t>(j) * dim_qk,
           *d_v_row = d_v.data() + static_cast<std::size_t>(j) * dim_v;
      const Real p = Arithmetic::stored(s.dtype, std::exp(row.score[n] - lse));
      const Real keep = keep_factor(problem.dropout, b, h, i, j);
      Real d_p = 0;
      for (std::size_t d = 0; d < dim_v; ++d) d_p += d_o[d] * v[d];
      for (std::size_t d = 0; d < dim_v; ++d) d_v_row[d] += p * keep * d_o[d];
      const Real d_score = Arithmetic::stored(s.dtype, p * (keep * d_p - delta));
      stats.d_scores += static_cast<double>(d_score) * static_cast<double>(d_score);
      if (!sums.bias.empty()) sums.bias[bias_index(call.grad.d_bias, b, h, i, j)] += d_score;
      const Real d_raw = d_score * row.slope[n];
      for (std::size_t d = 0; d < dim_qk; ++d) sum[d] += d_raw * k[d];
      for (std::size_t d = 0; d < dim_qk; ++d) d_k_row[d] += c * d_raw * row.q[d];
    }
    Real d_c = 0;
    for (std::size_t d = 0; d < dim_qk; ++d) {
      if (sum[d] != 0) d_c += row.q[d] * sum[d];  // likewise its q
      if (call.grad.d_q.present())
        base::write(call.grad.d_q, b, h, i, static_cast<std::int64_t>(d), static_cast<double>(c * sum[d]));
    }
    stats.d_log_scale += static_cast<double>(c) * static_cast<double>(d_c);
    stats.d_q += static_cast<double>(c) * static_cast<double>(c) * squares(sum);
    const Scale::Slopes slopes = problem.scale.slopes(h, s.dim_qk, row.range.scale_row());
    const auto head = static_cast<std::size_t>(b * s.heads_q + h);
    sums.scale[head] += slopes.rule * static_cast<double>(d_c);
    sums.log_n_gain[head] += slopes.log_n_gain * static_cast<double>(d_c);
    sums.log_n_offset[head] += slopes.log_n_offset * static_cast<double>(d_c);
  }

  // Row-major index into the (broadcast) shape of the bias.
  static std::size_t bias_index(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    Tensor packed = t;
    packed.strides = row_major(t.shape);
    return static_cast<std::size_t>(base::offset_of(packed, b, h, i, j));
  }

  static void write_bias(const Tensor& t, const std::vector<Real>& sums) {
    if (!t.present()) return;
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.shape[1]; ++h)
        for (std::int64_t i = 0; i < t.shape[2]; ++i)
          for (std::int64_t j = 0; j < t.shape[3]; ++j)
            base::write(t, b, h, i, j, static_cast<double>(sums[bias_index(t, b, h, i, j)]));
  }
};

}  // namespace rootdk::cpu
