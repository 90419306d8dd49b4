// Rounds of timed calls, medians and quartiles, over the peak that multiply_add.cc measures.
#include "rootdk/lab/timing.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "base/parallel.h"
#include "lab/multiply_add.h"
#include "engine/call_bytes.h"
#include "lab/need.h"
#include "lab/normals.h"
#include "rootdk/attention.h"

namespace rootdk::lab {

namespace {

constexpr std::int64_t kPeakRounds = 2'000'000;  // some tens of milliseconds

template <class Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double at_share(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

Problem problem_of(const TimingOptions::Case& c) {
  Problem problem;
  problem.mask.causal = c.causal;
  return problem;
}

/// A problem ready to run.
class Runner {
 public:
  Runner(const TimingOptions::Case& c, std::uint32_t stream)
      : shape_{1, c.heads, c.len, c.dim}, q_(normals(c.heads * c.len * c.dim, {1, stream})), o_(q_.size()) {
    plan_ = make_plan(problem_of(c), shape_of(inputs()));
    workspace_.resize(plan_.workspace_bytes + 64);
    flops_ = 4.0 * static_cast<double>(c.heads * c.len) * static_cast<double>(c.len * c.dim) * (c.causal ? 0.5 : 1);
  }

  double run() {
    const auto at = reinterpret_cast<std::uintptr_t>(workspace_.data());
    const std::span workspace = std::span(workspace_).subspan((64 - at % 64) % 64, plan_.workspace_bytes);
    return seconds([&] { forward(plan_, inputs(), {tensor(o_.data(), shape_)}, workspace); });
  }

  double flops() const { return flops_; }
  const Plan& plan() const { return plan_; }

 private:
  // One array three times: the time does not depend on the values.
  Inputs inputs() const {
    const ConstTensor x = tensor(q_.data(), shape_);
    return {x, x, x};
  }

  Extents shape_;
  std::vector<float> q_, o_;
  Plan plan_;
  std::vector<std::byte> workspace_;
  double flops_ = 0;
};

double peak_flops(int threads) {
  const MultiplyAdd& kernel = multiply_add_kernels().front();
  std::vector<float> kept(static_cast<std::size_t>(threads));
  const double time = seconds([&] {
    base::parallel_for(threads, threads, [&](std::int64_t thread) {  // one for each thread
      kept[static_cast<std::size_t>(thread)] = kernel.run(kPeakRounds, static_cast<float>(thread) * 1e-3f);
    });
  });
  return kernel.operations * static_cast<double>(kPeakRounds) * threads / time;
}

// All cases at once: an array that is q, k and v, the output, and a call.
double bytes_of(const TimingOptions& o) {
  double bytes = 0;
  for (const TimingOptions::Case& c : o.cases)
    bytes += 2 * sizeof(float) * real(c.heads) * real(c.len) * real(c.dim) +
             engine::bytes_of_call(problem_of(c), {1, c.heads, c.heads, c.len, c.len, c.dim, c.dim, DType::kF32});
  return bytes + real(o.cases.size() + 1) * o.rounds * sizeof(double);
}

}  // namespace

MemoryNeed memory_of(const TimingOptions& o) {
  want_some("cases", o.cases);
  want_between("rounds", o.rounds, 1, 100000);
  for (const TimingOptions::Case& c : o.cases) {
    want_between("heads", c.heads, 1, 4096);
    want_between("len", c.len, 1, kMostKeys);
    want_between("dim", c.dim, 1, 4096);
  }
  return {base::saturated(bytes_of(o)), Machine::here().threads, {}, {}};
}

Timing time_forward(const TimingOptions& o, const Watch& watch) {
  want_memory(memory_of(o));
  Timing out;
  out.threads = Machine::here().threads;
  std::vector<Runner> runners;
  for (std::size_t i = 0; i < o.cases.size(); ++i) {
    runners.emplace_back(o.cases[i], static_cast<std::uint32_t>(i));
    runners.back().run();  // pages and caches
  }
  out.isa = runners.front().plan().isa;
  peak_flops(out.threads);
  std::vector<double> peaks;
  std::vector<std::vector<double>> times(runners.size());
  for (int round = 0; round < o.rounds; ++round) {
    if (watch.stopped()) {
      out.complete = false;
      break;
    }
    watch.report(static_cast<double>(round) / o.rounds, fmt::format("round {} of {}", round + 1, o.rounds));
    peaks.push_back(peak_flops(out.threads));
    for (std::size_t i = 0; i < runners.size(); ++i) times[i].push_back(runners[i].run());
  }
  if (out.complete) watch.report(1);
  if (peaks.empty()) return out;
  out.peak_gflops = at_share(peaks, 0.5) / 1e9;
  for (std::size_t i = 0; i < runners.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t r = 0; r < peaks.size(); ++r) ratios.push_back(runners[i].flops() / times[i][r] / peaks[r]);
    const double median = at_share(times[i], 0.5);
    out.rows.push_back({o.cases[i], median * 1e3, (at_share(times[i], 0.75) - at_share(times[i], 0.25)) / median,
                        runners[i].flops() / median / 1e9, at_share(ratios, 0.5)});
  }
  return out;
}

}  // namespace rootdk::lab
