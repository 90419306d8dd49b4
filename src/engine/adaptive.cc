// Unit variance from Gram matrices of q and k; adaptive temperature from a first pass's entropies.
#include "rootdk/adaptive.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/call.h"
#include "base/check.h"
#include "base/element.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "base/refuse.h"
#include "base/validate.h"
#include "base/visibility.h"

namespace rootdk {

using base::refuse;

namespace {

/// A symmetric d×d matrix, both halves kept: Σ x·xᵀ/rows.
class Gram {
 public:
  explicit Gram(std::int64_t dim) : dim_(static_cast<std::size_t>(dim)), at_(dim_ * dim_) {}

  void add(const std::vector<double>& x) {
    for (std::size_t r = 0; r < dim_; ++r)
      for (std::size_t c = 0; c < dim_; ++c) at_[r * dim_ + c] += x[r] * x[c];
    ++rows_;
  }

  /// ⟨this/rows, other/rows⟩
  double inner(const Gram& other) const {
    double sum = 0;
    for (std::size_t i = 0; i < at_.size(); ++i) sum += at_[i] * other.at_[i];
    return sum / (static_cast<double>(rows_) * static_cast<double>(other.rows_));
  }

 private:
  std::size_t dim_;
  std::int64_t rows_ = 0;
  std::vector<double> at_;
};

void load(const ConstTensor& t, std::int64_t b, std::int64_t h, std::int64_t l, std::vector<double>& row) {
  for (std::size_t d = 0; d < row.size(); ++d) row[d] = base::read(t, b, h, l, static_cast<std::int64_t>(d));
}

// Cov(K): centred before multiplying, because KᵀK/S − k̄k̄ᵀ would cancel.
Gram key_covariance(const Problem& problem, const Shape& s, const ConstTensor& k, std::int64_t b,
                    std::int64_t kv_head) {
  std::vector<double> row(static_cast<std::size_t>(s.dim_qk)), mean = row;
  const auto each_key = [&](const auto& visit) {
    for (std::int64_t j = 0; j < s.len_kv; ++j) {
      const base::KeyPlace place = base::place_of_key(problem, k, b, j);
      load(k, place.item, kv_head, place.row, row);
      visit();
    }
  };
  each_key([&] {
    for (std::size_t d = 0; d < row.size(); ++d) mean[d] += row[d];
  });
  for (double& m : mean) m /= static_cast<double>(s.len_kv);
  const double rounding = 0x1p-52 * static_cast<double>(s.len_kv);  // of the mean: what is no larger does not vary
  Gram out(s.dim_qk);
  each_key([&] {
    for (std::size_t d = 0; d < row.size(); ++d) {
      row[d] -= mean[d];
      if (std::fabs(row[d]) <= rounding * std::fabs(mean[d])) row[d] = 0;
    }
    out.add(row);
  });
  return out;
}

Gram query_gram(const Shape& s, const ConstTensor& q, std::int64_t b, std::int64_t h) {
  std::vector<double> row(static_cast<std::size_t>(s.dim_qk));
  Gram out(s.dim_qk);
  for (std::int64_t i = 0; i < s.len_q; ++i) {
    load(q, b, h, i, row);
    out.add(row);
  }
  return out;
}

std::vector<float> factors_of(const std::vector<double>& variance, std::int64_t dim_qk) {
  std::vector<float> factors;
  for (const double v : variance)
    factors.push_back(static_cast<float>(1 / std::sqrt(v == 0 ? static_cast<double>(dim_qk) : v)));
  return factors;
}

std::string masks_of(const Mask& mask) {
  std::string text;
  const auto mention = [&text](bool present, const char* what) {
    if (present) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  mention(mask.causal, "causal");
  mention(mask.window.has_value(), "window");
  for (const base::PerItem& field : base::kPerItem) mention(field.in(mask), field.words);
  mention(mask.documents.has_value(), "documents");
  mention(mask.allowed.present(), "boolean mask");
  mention(mask.bias.present(), "bias, if it hides keys");
  return text;
}

}  // namespace

namespace {

UnitVariance measure(Problem problem, const ConstTensor& q, const ConstTensor& k) {
  problem.scale = {};
  const Shape s = shape_of({q, k, k}, problem);
  base::check_problem(problem, s);
  base::check_keys(problem, s, q, k);
  if (s.len_q == 0 || s.len_kv == 0 || s.batch == 0)
    refuse("q, k: {} batch items, {} queries and {} keys, but at least 1 of each is wanted", s.batch, s.len_q,
           s.len_kv);

  std::vector<double> parts(static_cast<std::size_t>(s.batch * s.heads_q));  // [batch, heads_q]
  base::parallel_tasks(s.batch * s.heads_kv, Machine::here().threads, [&](std::int64_t task, int) {
    const std::int64_t b = task / s.heads_kv, kv_head = task % s.heads_kv;
    const Gram keys = key_covariance(problem, s, k, b, kv_head);
    for (std::int64_t h = kv_head * s.group(); h < (kv_head + 1) * s.group(); ++h)
      parts[static_cast<std::size_t>(b * s.heads_q + h)] = query_gram(s, q, b, h).inner(keys);
  });
  UnitVariance out;
  for (std::int64_t h = 0; h < s.heads_q; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < s.batch; ++b) sum += parts[static_cast<std::size_t>(b * s.heads_q + h)];
    out.variance.push_back(sum / static_cast<double>(s.batch));
  }
  out.factors = factors_of(out.variance, s.dim_qk);
  out.why = masks_of(problem.mask);
  out.exact = out.why.empty();
  return out;
}

}  // namespace

UnitVariance adaptive_unit_variance(const Problem& problem, const ConstTensor& q, const ConstTensor& k) {
  return base::with_memory_errors([&] { return measure(problem, q, k); });
}

RunningUnitVariance::RunningUnitVariance(double decay) : decay_(decay) {
  if (!(decay >= 0 && decay < 1)) refuse("decay: {}, but 0 <= decay < 1 is wanted", decay);
}

const UnitVariance& RunningUnitVariance::update(const UnitVariance& batch, std::int64_t dim_qk) {
  if (average_.variance.empty()) {
    average_ = batch;
  } else {
    if (batch.variance.size() != average_.variance.size())
      refuse("batch: {} heads, but those before had {}", batch.variance.size(), average_.variance.size());
    for (std::size_t h = 0; h < batch.variance.size(); ++h)
      average_.variance[h] += (1 - decay_) * (batch.variance[h] - average_.variance[h]);
    if (!batch.exact) average_.exact = false, average_.why = batch.why;
  }
  average_.factors = factors_of(average_.variance, dim_qk);
  return average_;
}

double adaptive_temperature(double entropy) {
  if (!(entropy > 0.5)) return 1;
  double polynomial = 0;
  for (const double coefficient : {-0.037, 0.481, -2.3, 4.917, -1.791}) polynomial = polynomial * entropy + coefficient;
  return std::max(1.0, polynomial);
}

namespace {

void check_two_passes(const Problem& p, const Shape& s) {
  const auto refuse_if = [](bool present, const char* what) {
    if (present)
      refuse("{}: does not go with adaptive temperature, which needs scores that are c·q·k and nothing else", what);
  };
  refuse_if(p.soft_cap.has_value(), "softcap");
  refuse_if(p.transform.present(), "transform");
  refuse_if(p.mask.bias.present(), "bias");
  refuse_if(!p.mask.alibi_slopes.empty(), "alibi");
  refuse_if(!p.sink.empty(), "sink");
  refuse_if(p.dropout.p > 0, "dropout");
  if (s.dtype != DType::kF32 && s.dtype != DType::kF64)
    refuse("q: dtype is {}, but f32 or f64 is wanted: its rows are scaled in their own dtype", name_of(s.dtype));
}

Stats two_passes(const Problem& problem, const Inputs& in, const Outputs& out, const Tensor& temperatures) {
  const Shape s = shape_of(in, problem);
  base::check_problem(problem, s);
  check_two_passes(problem, s);
  base::check_forward(problem, s, in, out);
  if (temperatures.present()) {
    base::check_numbers("temperatures", temperatures, {s.batch, s.heads_q, s.len_q, 1});
    for (const auto& [name, t] :
         {std::pair{"q", in.q}, {"k", in.k}, {"v", in.v}, {"o", ConstTensor(out.o)}, {"lse", ConstTensor(out.lse)}})
      base::check_output("temperatures", temperatures, name, t);
  }
  const Extents wide = {s.batch, s.heads_q, s.len_q, s.dim_qk}, rows = {s.batch, s.heads_q, s.len_q, 1};
  const auto size = static_cast<std::size_t>(s.batch * s.heads_q * s.len_q);
  const auto bytes = static_cast<std::size_t>(size_of(s.dtype));
  std::vector<std::byte> entropy_memory(size * bytes), q_memory(size * static_cast<std::size_t>(s.dim_qk) * bytes);
  const Tensor entropy{entropy_memory.data(), s.dtype, Device::kCpu, rows, row_major(rows)};
  const Tensor q{q_memory.data(), s.dtype, Device::kCpu, wide, row_major(wide)};
  Problem first = problem;
  first.stats = StatsLevel::kFull;
  first.stats_options = {.causes = false};
  Outputs looks{out.o};
  looks.rows.entropy = entropy;
  forward(first, in, looks);

  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < s.len_q; ++i) {
        const double beta = adaptive_temperature(base::read(entropy, b, h, i, 0));
        if (temperatures.present()) base::write(temperatures, b, h, i, 0, beta);
        for (std::int64_t d = 0; d < s.dim_qk; ++d) base::write(q, b, h, i, d, beta * base::read(in.q, b, h, i, d));
      }
  return forward(problem, {q, in.k, in.v}, out);
}

}  // namespace

Stats forward_adaptive_temperature(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                                   const Tensor& temperatures) {
  return base::with_memory_errors([&] { return two_passes(problem, inputs, outputs, temperatures); });
}

}  // namespace rootdk
