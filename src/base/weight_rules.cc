// Factors of QK-clip by head; the largest singular value by power iteration, and its gradient.
#include "rootdk/weight_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/element.h"
#include "base/memory_errors.h"
#include "base/refuse.h"

namespace rootdk {

using base::refuse;

namespace {

// Multiplies head h of a tensor by factor(h).
template <class Factor>
void shrink(const Tensor& t, const Factor& factor) {
  for (std::int64_t h = 0; h < t.shape[1] && t.present(); ++h) {
    const double by = factor(h);
    if (by == 1) continue;
    for (std::int64_t r = 0; r < t.shape[2]; ++r)
      for (std::int64_t c = 0; c < t.shape[3]; ++c) base::write(t, 0, h, r, c, by * base::read(t, 0, h, r, c));
  }
}

void check_weights(const char* name, const Tensor& t, std::int64_t heads) {
  if (!t.present()) return;
  base::check_numbers(name, t, {1, heads, t.shape[2], t.shape[3]});
  base::check_output(name, t, name, t);
}

double norm(const std::vector<double>& x) {
  double largest = 0, sum = 0;
  for (const double v : x) {
    if (!std::isfinite(v)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::fabs(v));
  }
  if (largest == 0) return 0;
  for (const double v : x)
    sum += (v / largest) * (v / largest);  // weights near the ends of double must not overflow or vanish
  return largest * std::sqrt(sum);
}

void divide(std::vector<double>& x, double by) {
  for (double& v : x) v /= by;
}

// A matrix [1, 1, rows, columns] in double.
struct Dense {
  std::size_t rows, columns;
  std::vector<double> at;  // row-major

  explicit Dense(const ConstTensor& t)
      : rows(static_cast<std::size_t>(t.shape[2])), columns(static_cast<std::size_t>(t.shape[3])) {
    at.reserve(rows * columns);
    for (std::int64_t r = 0; r < t.shape[2]; ++r)
      for (std::int64_t c = 0; c < t.shape[3]; ++c) at.push_back(base::read(t, 0, 0, r, c));
  }

  std::vector<double> times(const std::vector<double>& v) const {
    std::vector<double> out(rows);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) out[r] += at[r * columns + c] * v[c];
    return out;
  }
  std::vector<double> transposed_times(const std::vector<double>& u) const {
    std::vector<double> out(columns);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) out[c] += at[r * columns + c] * u[r];
    return out;
  }
};

// Directions that no weight matrix has reason to be orthogonal to: the golden-ratio sequence, centred, and never zero.
std::vector<double> first_guess(std::size_t size) {
  std::vector<double> v(size);
  for (std::size_t i = 0; i < size; ++i) {
    const double x = 0.6180339887498949 * static_cast<double>(i + 1);
    v[i] = x - std::floor(x) - 0.4;
  }
  return v;
}

void check_matrix(const char* name, const ConstTensor& w) {
  base::check_numbers(name, w, {1, 1, w.shape[2], w.shape[3]});
  if (w.count() == 0) refuse("{}: shape is {}, but at least one row and column are wanted", name, base::show(w.shape));
}

SingularTriple iterate(const Dense& w, const PowerIteration& options, std::span<const double> start) {
  if (!(options.tolerance > 0)) refuse("tolerance: {}, but a positive number is wanted", options.tolerance);
  if (options.most_steps < 1) refuse("most_steps: {}, but at least 1 is wanted", options.most_steps);
  if (!start.empty() && start.size() != w.columns)
    refuse("start: {} values, but w has {} columns", start.size(), w.columns);
  SingularTriple out;
  out.v = start.empty() ? first_guess(w.columns) : std::vector<double>(start.begin(), start.end());
  if (const double length = norm(out.v); length > 0 && std::isfinite(length)) divide(out.v, length);
  else refuse("start: is zero or not finite");
  for (out.steps = 1;; ++out.steps) {
    out.u = w.times(out.v);
    out.sigma = norm(out.u);
    if (!std::isfinite(out.sigma)) refuse("w: has values that are not finite, or too large to square");
    if (out.sigma == 0) {  // W·v = 0: begin with a row of W instead, which W·v cannot lose
      const auto found = std::find_if(w.at.begin(), w.at.end(), [](double x) { return x != 0; });
      if (found == w.at.end() || out.steps >= options.most_steps) return out;
      const auto row = w.at.begin() + (found - w.at.begin()) / static_cast<std::ptrdiff_t>(w.columns) *
                                          static_cast<std::ptrdiff_t>(w.columns);
      out.v.assign(row, row + static_cast<std::ptrdiff_t>(w.columns));
      divide(out.v, norm(out.v));
      continue;
    }
    divide(out.u, out.sigma);
    std::vector<double> next = w.transposed_times(out.u);  // WᵀW·v/σ
    std::vector<double> residual(next.size());
    for (std::size_t c = 0; c < next.size(); ++c) residual[c] = next[c] / out.sigma - out.v[c];
    out.converged = norm(residual) <= options.tolerance;
    if (out.converged || out.steps >= options.most_steps) return out;
    divide(next, norm(next));
    out.v = std::move(next);
  }
}

double inner(const ConstTensor& a, const ConstTensor& b) {
  double sum = 0;
  for (std::int64_t r = 0; r < a.shape[2]; ++r)
    for (std::int64_t c = 0; c < a.shape[3]; ++c) sum += base::read(a, 0, 0, r, c) * base::read(b, 0, 0, r, c);
  return sum;
}

}  // namespace

std::vector<double> qk_clip(const QkClip& clip, std::span<const float> max_raw, std::int64_t heads_kv,
                            const QkWeights& weights) {
  const auto heads_q = static_cast<std::int64_t>(max_raw.size());
  if (!(clip.threshold > 0 && std::isfinite(clip.threshold)))
    refuse("threshold: {}, but a finite positive number is wanted", clip.threshold);
  if (!(clip.alpha >= 0 && clip.alpha <= 1)) refuse("alpha: {}, but 0 to 1 is wanted", clip.alpha);
  if (heads_kv < 1 || heads_q % heads_kv != 0)
    refuse("heads_kv: {}, which does not divide the {} heads of max_raw", heads_kv, heads_q);
  for (std::size_t h = 0; h < max_raw.size(); ++h)  // −inf is a head that saw nothing
    if (std::isnan(max_raw[h]) || max_raw[h] == std::numeric_limits<float>::infinity())
      refuse("max_raw: value {} of head {} cannot be clipped to a finite one", max_raw[h], h);
  check_weights("w_q", weights.w_q, heads_q), check_weights("b_q", weights.b_q, heads_q);
  check_weights("w_k", weights.w_k, heads_kv), check_weights("b_k", weights.b_k, heads_kv);

  std::vector<double> gamma;
  for (const float s : max_raw) gamma.push_back(s > 0 ? std::min(1.0, clip.threshold / static_cast<double>(s)) : 1.0);
  if (clip.log_only) return gamma;
  const bool shared = heads_kv != heads_q;
  const double on_q = shared ? 1 : clip.alpha;
  const auto factor = [&gamma](double power) {
    return [&gamma, power](std::int64_t h) { return std::pow(gamma[static_cast<std::size_t>(h)], power); };
  };
  shrink(weights.w_q, factor(on_q)), shrink(weights.b_q, factor(on_q));
  if (!shared) shrink(weights.w_k, factor(1 - on_q)), shrink(weights.b_k, factor(1 - on_q));
  return gamma;
}

std::vector<float> max_raw_of(const Stats& stats) {
  if (stats.level == StatsLevel::kNone) refuse("stats: level is none, but basic is wanted");
  std::vector<float> out(static_cast<std::size_t>(stats.heads), -std::numeric_limits<float>::infinity());
  for (std::int64_t b = 0; b < stats.batch; ++b)
    for (std::int64_t h = 0; h < stats.heads; ++h) {
      float& largest = out[static_cast<std::size_t>(h)];
      largest = std::max(largest, stats.at(b, h).raw_max);
    }
  return out;
}

SingularTriple largest_singular_value(const ConstTensor& w, const PowerIteration& options,
                                      std::span<const double> start) {
  check_matrix("w", w);
  return base::with_memory_errors([&] { return iterate(Dense(w), options, start); });
}

SingularTriple sigma_reparam(const ConstTensor& w, double gain, const Tensor& out, const PowerIteration& options,
                             std::span<const double> start) {
  check_matrix("w", w);
  base::check_numbers("out", out, w.shape);
  base::check_output("out", out, "w", w);
  SingularTriple triple = largest_singular_value(w, options, start);
  if (triple.sigma == 0) refuse("w: is all zero, so there is no singular value to divide by");
  const double by = gain / triple.sigma;
  for (std::int64_t r = 0; r < w.shape[2]; ++r)
    for (std::int64_t c = 0; c < w.shape[3]; ++c) base::write(out, 0, 0, r, c, by * base::read(w, 0, 0, r, c));
  return triple;
}

double sigma_reparam_backward(const ConstTensor& w, double gain, const SingularTriple& triple, const ConstTensor& d_out,
                              const Tensor& d_w) {
  check_matrix("w", w);
  base::check_numbers("d_out", d_out, w.shape);
  if (static_cast<std::int64_t>(triple.u.size()) != w.shape[2] ||
      static_cast<std::int64_t>(triple.v.size()) != w.shape[3] || !(triple.sigma > 0))
    refuse("triple: {} by {} with sigma {}, but it must be what sigma_reparam returned for w", triple.u.size(),
           triple.v.size(), triple.sigma);
  const double d_gain = inner(d_out, w) / triple.sigma;
  if (!d_w.present()) return d_gain;
  base::check_numbers("d_w", d_w, w.shape);
  base::check_output("d_w", d_w, "d_out", d_out);
  for (std::int64_t r = 0; r < w.shape[2]; ++r)
    for (std::int64_t c = 0; c < w.shape[3]; ++c) {
      const double along = triple.u[static_cast<std::size_t>(r)] * triple.v[static_cast<std::size_t>(c)];
      base::write(d_w, 0, 0, r, c, gain / triple.sigma * (base::read(d_out, 0, 0, r, c) - d_gain * along));
    }
  return d_gain;
}

}  // namespace rootdk
