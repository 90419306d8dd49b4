// The reference itself: its forward against sums written out by hand, its gradients against differences of its forward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {
namespace {

const engine::Kernel& reference() { return engine::kernel_table().back(); }

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// L = Σ dO·O + Σ dLSE·lse: its gradients are what backward returns.
double loss(const Case& c) {
  const Result r = run(c, reference(), {.threads = 1, .backward = false});
  double sum = dot(r.o, c.d_o.values());
  if (c.d_lse.empty()) return sum;
  const std::vector<double> d_lse = c.d_lse.values();
  for (std::size_t i = 0; i < d_lse.size(); ++i)
    if (std::isfinite(r.lse[i])) sum += d_lse[i] * r.lse[i];
  return sum;
}

struct Slope {
  double value, error;
};

// dL along a direction: central differences at h and h/2, extrapolated. Their difference bounds the error of the better
// one by far; the rest is rounding of L.
Slope directional(const std::function<double(double)>& loss_at) {
  const double h = 0x1p-10;
  const double high = loss_at(h), low = loss_at(-h), high2 = loss_at(h / 2), low2 = loss_at(-h / 2);
  const double coarse = (high - low) / (2 * h), fine = (high2 - low2) / h;
  const double magnitude = std::max({std::fabs(high), std::fabs(low), 1.0});
  // L sums up to 2^14 terms here: 2^-52 · 2^7 (random walk) · magnitude / h.
  return {(4 * fine - coarse) / 3, std::fabs(fine - coarse) + 0x1p-45 * magnitude / h};
}

void expect_gradient(const char* name, double analytic, const Slope& measured, std::uint64_t seed) {
  EXPECT_LE(std::fabs(analytic - measured.value),
            measured.error + 0x1p-23 * std::fabs(analytic))  // d_scale, d_sink are f32
      << name << " of seed " << seed << ": " << analytic << " but differences give " << measured.value;
}

// Moves every element of a buffer along a random direction; returns the derivative that the gradient predicts.
void check_buffer(const char* name, Case& c, Buffer Case::*member, const std::vector<double>& gradient,
                  std::uint64_t seed) {
  if ((c.*member).empty()) return;
  Rng rng(seed + 77);
  const Buffer original = c.*member;
  Buffer direction(DType::kF64, original.tensor().shape);
  direction.fill_normal(rng, 1);
  const std::vector<double> base_values = original.values(), step = direction.values();
  const auto loss_at = [&](double h) {
    Buffer moved(DType::kF64, original.tensor().shape);
    double* to = static_cast<double*>(moved.tensor().data);
    for (std::size_t i = 0; i < step.size(); ++i) to[i] = base_values[i] + h * step[i];
    c.*member = moved;
    c.link();
    return loss(c);
  };
  double analytic = 0;
  for (std::size_t i = 0; i < step.size(); ++i)
    if (std::isfinite(base_values[i])) analytic += gradient[i] * step[i];
  const Slope slope = directional(loss_at);
  c.*member = original;
  c.link();
  expect_gradient(name, analytic, slope, seed);
}

// The per-head numbers are f32: kept on a grid so coarse that every step of them is exact.
void check_heads(const char* name, Case& c, std::vector<float> Case::*member, const std::vector<double>& gradient,
                 std::uint64_t seed) {
  if ((c.*member).empty()) return;
  const std::vector<float> original = c.*member;
  const auto loss_at = [&](double h) {
    for (std::size_t i = 0; i < original.size(); ++i)
      (c.*member)[i] = static_cast<float>(static_cast<double>(original[i]) + h * (i % 2 ? -1 : 1));
    c.link();
    return loss(c);
  };
  double analytic = 0, size = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    analytic += gradient[i] * (i % 2 ? -1 : 1);
    size += std::fabs(gradient[i]);
  }
  Slope slope = directional(loss_at);
  slope.error += 0x1p-24 * size;
  c.*member = original;
  c.link();
  expect_gradient(name, analytic, slope, seed);
}

TEST(Reference, GradientsMatchDirectionalDerivatives) {
  int dense = 0, learned = 0, log_n = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const auto drawn = random_case(seed, {.work = 1 << 12, .longest = 24});
    const auto c = drawn->exact();
    for (auto* heads : {&c->scale, &c->gains, &c->offsets, &c->sink})
      for (float& x : *heads) x = std::round(x * 64) / 64;
    c->link();
    const Result r = run(*c, reference(), {.threads = 1});
    check_buffer("d_q", *c, &Case::q, r.d_q, seed);
    check_buffer("d_bias", *c, &Case::bias, r.d_bias, seed);
    check_heads("d_scale", *c, &Case::scale, r.d_scale, seed);
    check_heads("d_log_n_gain", *c, &Case::gains, r.d_log_n_gain, seed);
    check_heads("d_log_n_offset", *c, &Case::offsets, r.d_log_n_offset, seed);
    check_heads("d_sink", *c, &Case::sink, r.d_sink, seed);
    if (!c->problem.paged) {  // with pages the gradients are of the gathered keys
      check_buffer("d_k", *c, &Case::k, r.d_k, seed);
      check_buffer("d_v", *c, &Case::v, r.d_v, seed);
    }
    dense += !c->bias.empty();
    learned += !c->scale.empty() && c->problem.scale.by_row();
    log_n += !c->gains.empty() && !c->offsets.empty();
  }
  EXPECT_GT(dense, 20) << "the draw no longer covers biases";
  EXPECT_GT(learned, 5) << "nor a learned scale under a length rule";
  EXPECT_GT(log_n, 5) << "nor a learned SSMax";
}

TEST(Reference, PagedGradientsAreThoseOfTheGatheredKeys) {
  int paged = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto c = random_case(seed, {.work = 1 << 12, .longest = 24})->exact();
    if (!c->problem.paged || c->shape.len_kv == 0) continue;
    ++paged;
    const Shape& s = c->shape;
    const Result through_pages = run(*c, reference(), {.threads = 1});
    Buffer k(DType::kF64, {s.batch, s.heads_kv, s.len_kv, s.dim_qk}),
        v(DType::kF64, {s.batch, s.heads_kv, s.len_kv, s.dim_v});
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads_kv; ++h)
        for (std::int64_t j = 0; j < s.len_kv; ++j) {
          const std::int64_t page_size = c->k.tensor().shape[2];
          const std::int64_t page =
              c->table[static_cast<std::size_t>(b * c->problem.paged->pages_per_item + j / page_size)];
          for (std::int64_t d = 0; d < s.dim_qk; ++d) k.set(b, h, j, d, c->k.get(page, h, j % page_size, d));
          for (std::int64_t d = 0; d < s.dim_v; ++d) v.set(b, h, j, d, c->v.get(page, h, j % page_size, d));
        }
    c->problem.paged.reset();
    c->k = k, c->v = v;
    c->link();
    EXPECT_TRUE(run(*c, reference(), {.threads = 1}).same_as(through_pages)) << "seed " << seed;
  }
  EXPECT_GT(paged, 10);
}

// softmax of scores set through the bias: q·k = 0, so s = bias, and o = p when V is the identity.
std::vector<double> softmax_of(const std::vector<double>& scores) {
  const auto n = static_cast<std::int64_t>(scores.size());
  Case c;
  c.shape = {1, 1, 1, 1, n, 1, n, DType::kF64};
  c.q = Buffer(DType::kF64, {1, 1, 1, 1});
  c.k = Buffer(DType::kF64, {1, 1, n, 1});
  c.v = Buffer(DType::kF64, {1, 1, n, n});
  c.bias = Buffer(DType::kF64, {1, 1, 1, n});
  c.q.fill(0), c.k.fill(0), c.v.fill(0);
  for (std::int64_t j = 0; j < n; ++j)
    c.v.set(0, 0, j, j, 1), c.bias.set(0, 0, 0, j, scores[static_cast<std::size_t>(j)]);
  c.link();
  return run(c, reference(), {.threads = 1, .backward = false}).o;
}

TEST(Reference, SoftmaxAsWrittenDown) {
  for (const std::vector<double>& scores :
       {std::vector<double>{14, 10, 12}, {1.75, 1.25, 1.5}, {50, 10, 5}, {0}, {-3, 700, 2}}) {
    const std::vector<double> p = softmax_of(scores);
    double sum = 0;
    const double top = *std::max_element(scores.begin(), scores.end());
    for (const double s : scores) sum += std::exp(s - top);
    for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], std::exp(scores[i] - top) / sum, 4 * 0x1p-53);
  }
}

}  // namespace
}  // namespace rootdk::test
