#include "rootdk/lab/timing.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "lab/multiply_add.h"
#include "lab/normals.h"
#include "lab/want.h"
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

/// A problem ready to run.
class Runner {
 public:
  Runner(const TimingOptions::Case& c, std::uint32_t stream)
      : shape_{1, c.heads, c.len, c.dim}, q_(normals(c.heads * c.len * c.dim, {1, stream})), o_(q_.size()) {
    Problem problem;
    problem.mask.causal = c.causal;
    plan_ = make_plan(problem, shape_of(inputs()));
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
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread)
      kept[static_cast<std::size_t>(thread)] = kernel.run(kPeakRounds, static_cast<float>(thread) * 1e-3f);
  });
  return kernel.operations * static_cast<double>(kPeakRounds) * threads / time;
}

}  // namespace

Timing time_forward(const TimingOptions& o, const Watch& watch) {
  want_some("cases", o.cases);
  want_between("rounds", o.rounds, 1, 100000);
  for (const TimingOptions::Case& c : o.cases) {
    want_between("heads", c.heads, 1, 4096);
    want_between("len", c.len, 1, kMostKeys);
    want_between("dim", c.dim, 1, 4096);
  }
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
    peaks.push_back(peak_flops(out.threads));
    for (std::size_t i = 0; i < runners.size(); ++i) times[i].push_back(runners[i].run());
    watch.report(static_cast<double>(round + 1) / o.rounds);
  }
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
