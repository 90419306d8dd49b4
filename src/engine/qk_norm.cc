// Rows in double, tasks of a fixed size, gradients of gains summed in order.
#include "rootdk/qk_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/element.h"
#include "base/memory_errors.h"
#include "base/parallel.h"
#include "base/refuse.h"
#include "rootdk/plan.h"

namespace rootdk {

using base::refuse;

namespace {

// Rows a task takes; gradients of the gain are summed per task, then in order, so it must not depend on the threads.
constexpr std::int64_t kRowsTogether = 256;

constexpr double kLogOf100 = 4.605170185988092;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void check_norm(const QkNorm& norm, const ConstTensor& x) {
  if (!(norm.eps >= 0 && std::isfinite(norm.eps)))
    refuse("eps: {}, but a finite number of at least 0 is wanted", norm.eps);
  base::check_numbers("x", x);
  const auto size = static_cast<std::int64_t>(norm.gain.size());
  if (size != 0 && size != x.shape[3] && size != x.shape[1] * x.shape[3])
    refuse("gain: {} values, but dim {} or heads {} × dim are wanted", size, x.shape[3], x.shape[1]);
}

struct Task {
  std::int64_t batch, head, first, last;
};

struct Tasks {
  std::int64_t heads, length, chunks, count;
  explicit Tasks(const ConstTensor& x)
      : heads(x.shape[1]),
        length(x.shape[2]),
        chunks((length + kRowsTogether - 1) / kRowsTogether),
        count(x.shape[0] * heads * chunks) {}
  Task operator[](std::int64_t n) const {
    const std::int64_t first = n % chunks * kRowsTogether;
    return {n / chunks / heads, n / chunks % heads, first, std::min(first + kRowsTogether, length)};
  }
};

/// Where the gains of a head start: all heads share them, or each has its own.
std::size_t gain_offset(std::size_t gains, std::int64_t dim, std::int64_t head) {
  return gains > at(dim) ? at(head * dim) : 0;
}

/// A row, centred and divided: x̂. Returns r.
double standardise(const QkNorm& norm, const ConstTensor& x, std::int64_t b, std::int64_t h, std::int64_t i,
                   std::vector<double>& row) {
  const auto dim = static_cast<double>(row.size());
  double sum = 0, squares = 0;
  for (std::size_t d = 0; d < row.size(); ++d) sum += row[d] = base::read(x, b, h, i, static_cast<std::int64_t>(d));
  if (norm.kind == QkNorm::Kind::kLayer)
    for (double& v : row) v -= sum / dim;
  for (const double v : row) squares += v * v;
  const double r = 1 / std::sqrt((norm.kind == QkNorm::Kind::kL2 ? squares : squares / dim) + norm.eps);
  for (double& v : row) v = v == 0 ? 0 : v * r;  // eps may be 0, and r then infinite
  return r;
}

void run_forward(const QkNorm& norm, const ConstTensor& x, const Tensor& y) {
  check_norm(norm, x);
  base::check_numbers("y", y, x.shape);
  base::check_output("y", y, "x", x);
  const std::int64_t dim = x.shape[3];
  const Tasks tasks(x);
  base::parallel_tasks(tasks.count, Machine::here().threads, [&](std::int64_t n, int) {
    const Task task = tasks[n];
    const std::size_t gains = gain_offset(norm.gain.size(), dim, task.head);
    std::vector<double> row(at(dim));
    for (std::int64_t i = task.first; i < task.last; ++i) {
      standardise(norm, x, task.batch, task.head, i, row);
      for (std::int64_t d = 0; d < dim; ++d)
        base::write(y, task.batch, task.head, i, d,
                    norm.gain.empty() ? row[at(d)] : row[at(d)] * static_cast<double>(norm.gain[gains + at(d)]));
    }
  });
}

// With x̂ = (x − mean)·r, g = dY·gain and w = 1 (L2) or 1/dim: dX = r·(g − x̂·w·Σg·x̂), less its mean where x lost its
// own; d_gain = Σ_rows dY·x̂.
void run_backward(const QkNorm& norm, const ConstTensor& x, const ConstTensor& d_y, const Tensor& d_x,
                  std::span<float> d_gain) {
  check_norm(norm, x);
  base::check_numbers("d_y", d_y, x.shape);
  if (d_x.present()) {
    base::check_numbers("d_x", d_x, x.shape);
    base::check_output("d_x", d_x, "d_y", d_y);
    base::check_output("d_x", d_x, "x", x);
  }
  const std::int64_t dim = x.shape[3];
  const std::size_t gain_size = norm.gain.empty() ? at(dim) : norm.gain.size();
  if (!d_gain.empty() && d_gain.size() != gain_size)
    refuse("d_gain: {} values, but {} are wanted", d_gain.size(), gain_size);
  const bool is_l2 = norm.kind == QkNorm::Kind::kL2, is_layer = norm.kind == QkNorm::Kind::kLayer;
  const Tasks tasks(x);
  std::vector<double> sums(d_gain.empty() ? 0 : at(tasks.count * dim));  // Σ dY·x̂ of each task
  base::parallel_tasks(tasks.count, Machine::here().threads, [&](std::int64_t n, int) {
    const Task task = tasks[n];
    const std::size_t gains = gain_offset(norm.gain.size(), dim, task.head);
    std::vector<double> row(at(dim)), g(at(dim));
    for (std::int64_t i = task.first; i < task.last; ++i) {
      const double r = standardise(norm, x, task.batch, task.head, i, row);
      double along = 0, mean = 0;
      for (std::size_t d = 0; d < row.size(); ++d) {
        g[d] = base::read(d_y, task.batch, task.head, i, static_cast<std::int64_t>(d));
        if (!sums.empty()) sums[at(n * dim) + d] += g[d] * row[d];
        if (!norm.gain.empty()) g[d] *= static_cast<double>(norm.gain[gains + d]);
        along += g[d] * row[d];
        mean += g[d];
      }
      if (!d_x.present()) continue;
      along = is_l2 ? along : along / static_cast<double>(dim);
      mean = is_layer ? mean / static_cast<double>(dim) : 0;
      for (std::size_t d = 0; d < row.size(); ++d)
        base::write(d_x, task.batch, task.head, i, static_cast<std::int64_t>(d), r * (g[d] - mean - row[d] * along));
    }
  });
  if (d_gain.empty()) return;
  std::vector<double> total(gain_size);
  for (std::int64_t n = 0; n < tasks.count; ++n)
    for (std::int64_t d = 0; d < dim; ++d)
      total[gain_offset(gain_size, dim, tasks[n].head) + at(d)] += sums[at(n * dim + d)];
  for (std::size_t i = 0; i < gain_size; ++i) d_gain[i] = static_cast<float>(total[i]);
}

}  // namespace

void normalise(const QkNorm& norm, const ConstTensor& x, const Tensor& y) {
  base::with_memory_errors([&] { run_forward(norm, x, y); });
}

void normalise_backward(const QkNorm& norm, const ConstTensor& x, const ConstTensor& d_y, const Tensor& d_x,
                        std::span<float> d_gain) {
  base::with_memory_errors([&] { run_backward(norm, x, d_y, d_x, d_gain); });
}

void cosine_factors(std::span<const float> w, std::span<float> factors) {
  if (factors.size() != w.size()) refuse("factors: {} values, but w has {}", factors.size(), w.size());
  for (std::size_t h = 0; h < w.size(); ++h)
    factors[h] = static_cast<float>(std::exp(std::min(static_cast<double>(w[h]), kLogOf100)));
}

void cosine_factors_backward(std::span<const float> w, std::span<const float> d_factors, std::span<float> d_w) {
  if (d_factors.size() != w.size()) refuse("d_factors: {} values, but w has {}", d_factors.size(), w.size());
  if (d_w.size() != w.size()) refuse("d_w: {} values, but w has {}", d_w.size(), w.size());
  for (std::size_t h = 0; h < w.size(); ++h) {
    const auto x = static_cast<double>(w[h]);
    d_w[h] = x < kLogOf100 ? static_cast<float>(static_cast<double>(d_factors[h]) * std::exp(x)) : 0.0f;
  }
}

}  // namespace rootdk
