// The forward pass on a blackboard: softmax of a row's scores, the output, and every statistic by its definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/gaps.h"
#include "base/parallel.h"
#include "base/row_state.h"
#include "base/row_tensors.h"
#include "base/softmax_sums.h"
#include "cpu/reference/naive_rows.h"

namespace rootdk::cpu {

template <class Arithmetic>
class NaiveForward : NaiveRows<Arithmetic> {
  using Rows = NaiveRows<Arithmetic>;
  using Real = typename Rows::Real;
  using Row = typename Rows::Row;
  using KeyHead = typename Rows::KeyHead;
  using Rows::keep_factor, Rows::lets_see, Rows::load_row, Rows::score_row;

 public:
  static void run(const base::ForwardCall& call) {
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

 private:
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
    const base::RowRecord record = {
        static_cast<double>(state.raw_max),
        static_cast<double>(state.max),
        static_cast<double>(p_max),
        static_cast<double>(lse),
        base::is_query(problem.mask, s, b, i) ? static_cast<std::int32_t>(state.visible) : -1,
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
    const float* sink = sinks.empty() ? nullptr : &sinks[static_cast<std::size_t>(h)];
    return base::full_record(moments(row.key, row.raw), moments(row.key, row.score), sums, sink);
  }

  static void write_row(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i, Real value) {
    if (t.present()) base::write(t, b, h, i, 0, static_cast<double>(value));
  }
};

}  // namespace rootdk::cpu
