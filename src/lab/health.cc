// Processor, memory, compiler and libraries looked up; a small problem run on each kernel against the double reference.
#include "rootdk/lab/health.h"

#include <fmt/format.h>
#include <hwy/highway.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "base/parallel.h"
#include "lab/normals.h"
#include "rootdk/attention.h"
#include "rootdk/plan.h"
#include "rootdk/version.h"

namespace rootdk::lab {

namespace {

// Odd sizes, so that tiles have edges.
constexpr std::int64_t kHeads = 2, kLength = 77, kDim = 32;
constexpr Extents kShape = {1, kHeads, kLength, kDim};
constexpr std::size_t kCount = kHeads * kLength * kDim;

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown";
}

std::int64_t memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<std::int64_t>(pages) * size : 0;
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::vector<std::string> libraries() {
  return {fmt::format("Highway {}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH),
          fmt::format("fmt {}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
          base::threads_by()};
}

/// Numbers as a dtype keeps them, and the same in double.
struct Array {
  std::vector<std::byte> memory;
  std::vector<double> exact;
  DType dtype;

  Array(DType type, std::uint64_t stream) : memory(kCount * static_cast<std::size_t>(size_of(type))), dtype(type) {
    for (const float x : normals(kCount, {1, stream})) put(exact.size(), x);
  }
  ConstTensor view() const { return {memory.data(), dtype, Device::kCpu, kShape, row_major(kShape)}; }
  double largest() const {
    double out = 0;
    for (const double x : exact) out = std::max(out, std::fabs(x));
    return out;
  }

 private:
  void put(std::size_t i, float x) {
    if (dtype == DType::kF16) {
      const Float16 y = to_float16(static_cast<double>(x));
      reinterpret_cast<Float16*>(memory.data())[i] = y, x = to_float(y);
    } else if (dtype == DType::kBF16) {
      const BFloat16 y = to_bfloat16(static_cast<double>(x));
      reinterpret_cast<BFloat16*>(memory.data())[i] = y, x = to_float(y);
    } else {
      reinterpret_cast<float*>(memory.data())[i] = x;
    }
    exact.push_back(static_cast<double>(x));
  }
};

double read(DType dtype, const std::vector<std::byte>& memory, std::size_t i) {
  if (dtype == DType::kF16) return static_cast<double>(to_float(reinterpret_cast<const Float16*>(memory.data())[i]));
  if (dtype == DType::kBF16) return static_cast<double>(to_float(reinterpret_cast<const BFloat16*>(memory.data())[i]));
  return static_cast<double>(reinterpret_cast<const float*>(memory.data())[i]);
}

double unit_roundoff(DType dtype) { return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24; }

// A plain method that stores S and P is wrong by at most u·(2·max|s| + 2)·max|v|: a score off by u|s| moves every p by
// a share of 2u|s|, P and O are rounded once each. Allowed is twice that, and the f32 sums, u₃₂·(2 + A)·max|v| with A =
// max c·Σ|q||k|.
KernelCheck check(DType dtype, const Machine& machine) {
  const Array q(dtype, 1), k(dtype, 2), v(dtype, 3);
  std::vector<double> exact(kCount);
  Problem problem;
  problem.mask.causal = true;
  const Stats stats = forward(problem,
                              {tensor<double>(q.exact.data(), kShape), tensor<double>(k.exact.data(), kShape),
                               tensor<double>(v.exact.data(), kShape)},
                              {tensor(exact.data(), kShape)});
  const Plan plan = make_plan(problem, shape_of({q.view(), k.view(), v.view()}), Pass::kForward, machine);
  std::vector<std::byte> output(kCount * static_cast<std::size_t>(size_of(dtype))),
      workspace(plan.workspace_bytes + 64);
  const auto start = (reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64 -
                     reinterpret_cast<std::uintptr_t>(workspace.data());
  forward(plan, {q.view(), k.view(), v.view()}, {{output.data(), dtype, Device::kCpu, kShape, row_major(kShape)}},
          std::span(workspace).subspan(start, plan.workspace_bytes));

  KernelCheck out;
  out.kernel = plan.kernel;
  out.isa = plan.isa;
  out.dtype = name_of(dtype);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double error = std::fabs(read(dtype, output, i) - exact[i]);
    if (!(error <= out.error)) out.error = error;  // and NaN
  }
  const double largest_score = std::max(std::fabs(static_cast<double>(stats.at(0, 0).score_max)),
                                        std::fabs(static_cast<double>(stats.at(0, 1).score_max)));
  const double sum = std::sqrt(static_cast<double>(kDim)) * q.largest() * k.largest();
  out.allowed = v.largest() * (2 * unit_roundoff(dtype) * (2 * largest_score + 2) + 0x1p-24 * (2 + sum));
  return out;
}

}  // namespace

// The problems that kernels are tried on are small.
MemoryNeed memory_to_examine() { return {0, Machine::here().threads, {}, {}}; }

Health examine() {
  Health out;
  out.version = ROOTDK_VERSION;
  out.compiler = compiler();
  out.libraries = libraries();
  out.processor = processor();
  out.memory_bytes = memory_bytes();
  out.free = free_memory();
  out.cores = base::processors();
  const Machine here = Machine::here();
  out.threads = here.threads;
  out.isas = here.isas;
  out.plan = make_plan({}, {1, 8, 8, 1024, 1024, 64, 64, DType::kF32}).explain();
  std::vector<std::string> isas = here.isas;
  isas.emplace_back();  // none: the reference kernel
  for (const std::string& isa : isas)
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      Machine machine = here;
      machine.isas = isa.empty() ? std::vector<std::string>{} : std::vector{isa};
      const KernelCheck done = check(dtype, machine);
      const auto same = [&](const KernelCheck& c) {
        return c.kernel == done.kernel && c.isa == done.isa && c.dtype == done.dtype;
      };
      if (std::none_of(out.checks.begin(), out.checks.end(), same)) out.checks.push_back(done);
    }
  return out;
}

}  // namespace rootdk::lab
