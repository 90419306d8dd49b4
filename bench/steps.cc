// The kernel from naive to final, one step a line, on one problem (8 heads, 2,048 × 2,048, d = 128): what each step
// gave. Steps are timed in turn, round after round; every figure is a median of its rounds. ./run steps
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rootdk/rootdk.h"

namespace {

using rootdk::DType;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kHeads = 8, kLength = 2048, kDim = 128;
constexpr int kRounds = 15;
constexpr double kFlops = 4.0 * kHeads * kLength * kLength * kDim;

struct Tensors {
  std::vector<float> q, k, v, o;

  Tensors() : q(kHeads * kLength * kDim), k(q.size()), v(q.size()), o(q.size()) {
    std::uint32_t state = 1;  // uniform with variance 1: the values do not matter to the time
    for (std::vector<float>* x : {&q, &k, &v})
      for (float& value : *x)
        value = (static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f) * 3.4641016f;
  }
};

rootdk::ConstTensor view(const void* data, DType dtype) {
  rootdk::ConstTensor t;
  t.data = data, t.dtype = dtype;
  t.shape = {1, kHeads, kLength, kDim}, t.strides = rootdk::row_major(t.shape);
  return t;
}

// As the formula says it: scores of a row, softmax, weighted sum. The compiler vectorises what it can for the baseline.
void by_the_book(const Tensors& x, float* out) {
  std::vector<float> s(kLength);
  const float c = 1 / std::sqrt(static_cast<float>(kDim));
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t i = 0; i < kLength; ++i) {
      const float* q = &x.q[static_cast<std::size_t>((h * kLength + i) * kDim)];
      float* o = out + (h * kLength + i) * kDim;
      float largest = -INFINITY, sum = 0;
      for (std::int64_t j = 0; j < kLength; ++j) {
        const float* k = &x.k[static_cast<std::size_t>((h * kLength + j) * kDim)];
        float dot = 0;
        for (std::int64_t d = 0; d < kDim; ++d) dot += q[d] * k[d];
        largest = std::max(largest, s[static_cast<std::size_t>(j)] = c * dot);
      }
      std::fill_n(o, kDim, 0.0f);
      for (std::int64_t j = 0; j < kLength; ++j) {
        const float p = std::exp(s[static_cast<std::size_t>(j)] - largest);
        const float* v = &x.v[static_cast<std::size_t>((h * kLength + j) * kDim)];
        sum += p;
        for (std::int64_t d = 0; d < kDim; ++d) o[d] += p * v[d];
      }
      for (std::int64_t d = 0; d < kDim; ++d) o[d] /= sum;
    }
}

struct Step {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() {
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

std::vector<std::uint16_t> to_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint32_t bits;
    static_assert(sizeof bits == sizeof x[i]);
    std::copy_n(reinterpret_cast<const char*>(&x[i]), sizeof bits, reinterpret_cast<char*>(&bits));
    y[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  return y;
}

}  // namespace

int main() {
  Tensors x;
  std::vector<float> check = x.o;
  const std::vector<std::uint16_t> q = to_bf16(x.q), k = to_bf16(x.k), v = to_bf16(x.v);
  std::vector<std::uint16_t> o16(q.size());

  const auto attention = [&](const std::string& isa, int threads, DType dtype) {
    const bool half = dtype == DType::kBF16;
    const rootdk::Inputs in =
        half ? rootdk::Inputs{view(q.data(), dtype), view(k.data(), dtype), view(v.data(), dtype)}
             : rootdk::Inputs{view(x.q.data(), dtype), view(x.k.data(), dtype), view(x.v.data(), dtype)};
    rootdk::Outputs out;
    out.o.data = half ? static_cast<void*>(o16.data()) : x.o.data();
    out.o.dtype = dtype, out.o.shape = in.q.shape, out.o.strides = in.q.strides;
    rootdk::Machine machine = rootdk::Machine::here();
    machine.threads = threads, machine.isas = {isa};
    return [plan = rootdk::make_plan({}, rootdk::shape_of(in), rootdk::Pass::kForward, machine), in, out,
            workspace = std::vector<std::byte>()]() mutable {
      workspace.resize(plan.workspace_bytes + 64);
      std::byte* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
      rootdk::forward(plan, in, out, {aligned, plan.workspace_bytes});
    };
  };

  const rootdk::Machine here = rootdk::Machine::here();
  std::vector<Step> steps = {{"by the book, 1 thread", [&] { by_the_book(x, check.data()); }}};
  std::vector<std::string> isas(here.isas.rbegin(), here.isas.rend());  // worst first
  std::string best;
  for (const std::string& isa : isas) {
    const rootdk::Plan plan = rootdk::make_plan({}, {1, 1, 1, 64, 64, kDim, kDim}, rootdk::Pass::kForward, {1, {isa}});
    if (plan.isa != isa) continue;  // an extension for bf16
    steps.push_back({fmt::format("fused, {}, 1 thread", best = isa), attention(isa, 1, DType::kF32)});
  }
  if (here.threads > 1)
    steps.push_back(
        {fmt::format("fused, {}, {} threads", best, here.threads), attention(best, here.threads, DType::kF32)});
  steps.push_back(
      {fmt::format("bf16 stored, {}, {} threads", best, here.threads), attention(best, here.threads, DType::kBF16)});
  for (const std::string& isa : isas)
    if (rootdk::make_plan({}, {1, 1, 1, 64, 64, kDim, kDim}, rootdk::Pass::kForward, {1, {isa}}).isa != isa)
      steps.push_back({fmt::format("bf16 multiplied, {}, {} threads", isa, here.threads),
                       attention(isa, here.threads, DType::kBF16)});

  for (int round = 0; round < kRounds; ++round)
    for (Step& step : steps) {
      if (&step == &steps.front() && round % 5 != 0) continue;  // seconds long
      const auto start = Clock::now();
      step.run();
      step.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  float worst = 0;
  for (std::size_t i = 0; i < check.size(); ++i) worst = std::max(worst, std::fabs(check[i] - x.o[i]));
  if (!(worst < 1e-4f)) {
    fmt::print(stderr, "steps: the fused kernel is off by {} from the book\n", worst);
    return 1;
  }
  fmt::print("8 heads, 2,048 x 2,048, d = 128, forward; medians of {} rounds\n", kRounds);
  const double first = steps.front().median();
  double before = first;
  for (Step& step : steps) {
    const double now = step.median();
    fmt::print("{:<34} {:>9.1f} ms {:>8.1f} GF/s  x {:>6.2f} of the step before, x {:>6.1f} in all\n", step.name,
               now * 1e3, kFlops / now / 1e9, before / now, first / now);
    before = now;
  }
}
