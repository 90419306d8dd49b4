// Attention as one would write it on a blackboard, a row at a time, with every feature of Problem: from q·k to what
// softmax sees. Two arithmetics share it: double (the reference, the last row of the kernel table) and "plain" (f32
// with scores and probabilities rounded to the storage dtype: what most people write, and the yardstick for rounding
// errors).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/call.h"
#include "base/dropout.h"
#include "base/element.h"
#include "base/visibility.h"

namespace rootdk::cpu {

/// The reference's arithmetic: nothing is rounded but to double.
struct DoubleArithmetic {
  using Real = double;
  static double stored(DType, double x) { return x; }
};

template <class Arithmetic>
struct NaiveRows {
  using Real = typename Arithmetic::Real;

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
};

}  // namespace rootdk::cpu
