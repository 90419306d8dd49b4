// The backward pass on a blackboard: gradients of q, k, v, bias, scale and sink, a row at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/row_state.h"
#include "cpu/reference/naive_rows.h"

namespace rootdk::cpu {

template <class Arithmetic>
class NaiveBackward : NaiveRows<Arithmetic> {
  using Rows = NaiveRows<Arithmetic>;
  using Real = typename Rows::Real;
  using Row = typename Rows::Row;
  using KeyHead = typename Rows::KeyHead;
  using Rows::keep_factor, Rows::load, Rows::load_row, Rows::score_row;

 public:
  static void run(const base::BackwardCall& call) {
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
