// Memory beyond the tensors never grows as len_q × len_kv: forward and backward over 32768 × 32768 scores in an address
// space that could not hold them, in a child process with a limit.
//
// Not under a sanitizer: its shadow memory reserves terabytes of address space, so no such limit can be set. There this
// file holds no test at all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROOTDK_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ROOTDK_TEST_SANITIZED 1
#endif
#endif

#if !defined(ROOTDK_TEST_SANITIZED) && defined(__linux__)

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "support/rng.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kLength = 32768, kDim = 64;
constexpr auto kCount = static_cast<std::size_t>(kLength * kDim);
constexpr std::size_t kScoresBytes = std::size_t{4} * kLength * kLength;  // what must not be allocated
constexpr std::size_t kAllowance = std::size_t{1} << 30;                  // beyond the process as it is
static_assert(kAllowance < kScoresBytes);
constexpr double kU = 0x1p-24;

std::size_t address_space_in_use() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Everything the two passes read and write; row i of a matrix begins at i·kDim. Causal, one head.
struct Tensors {
  std::vector<float> q, k, v, d_o, o, lse, d_q, d_k, d_v;

  Tensors()
      : q(kCount), k(kCount), v(kCount), d_o(kCount), o(kCount), lse(kLength), d_q(kCount), d_k(kCount), d_v(kCount) {
    Rng rng(1);
    for (auto* x : {&q, &k, &v, &d_o})
      for (float& value : *x) value = static_cast<float>(rng.normal());
  }
};

template <class Real>
Real dot(const float* a, const float* b) {
  Real sum = 0;
  for (std::int64_t d = 0; d < kDim; ++d) sum += static_cast<Real>(a[d]) * static_cast<Real>(b[d]);
  return sum;
}

/// Row i of O and its lse at [kDim], from nothing but q, k and v.
template <class Real>
std::vector<Real> output_row(const Tensors& t, std::int64_t i) {
  const Real c = 1 / std::sqrt(static_cast<Real>(kDim));
  std::vector<Real> s, row(kDim + 1);
  const float* q = &t.q[static_cast<std::size_t>(i * kDim)];
  for (std::int64_t j = 0; j <= i; ++j) s.push_back(c * dot<Real>(q, &t.k[static_cast<std::size_t>(j * kDim)]));
  const Real max = *std::max_element(s.begin(), s.end());
  Real sum = 0;
  for (const Real x : s) sum += std::exp(x - max);
  row[kDim] = max + std::log(sum);
  for (std::int64_t j = 0; j <= i; ++j) {
    const Real p = std::exp(s[static_cast<std::size_t>(j)] - row[kDim]);
    const float* v = &t.v[static_cast<std::size_t>(j * kDim)];
    for (std::size_t d = 0; d < kDim; ++d) row[d] += p * static_cast<Real>(v[d]);
  }
  return row;
}

/// p and dS of one pair, from what backward is given: o and lse too.
template <class Real>
std::pair<Real, Real> pair_gradient(const Tensors& t, std::int64_t i, std::int64_t j) {
  const auto row = static_cast<std::size_t>(i * kDim), key = static_cast<std::size_t>(j * kDim);
  const Real c = 1 / std::sqrt(static_cast<Real>(kDim));
  const Real p = std::exp(c * dot<Real>(&t.q[row], &t.k[key]) - static_cast<Real>(t.lse[static_cast<std::size_t>(i)]));
  return {p, p * (dot<Real>(&t.d_o[row], &t.v[key]) - dot<Real>(&t.d_o[row], &t.o[row]))};
}

/// Row i of dQ.
template <class Real>
std::vector<Real> query_gradient(const Tensors& t, std::int64_t i) {
  const Real c = 1 / std::sqrt(static_cast<Real>(kDim));
  std::vector<Real> row(kDim);
  for (std::int64_t j = 0; j <= i; ++j) {
    const Real d_s = pair_gradient<Real>(t, i, j).second;
    const float* k = &t.k[static_cast<std::size_t>(j * kDim)];
    for (std::size_t d = 0; d < kDim; ++d) row[d] += c * d_s * static_cast<Real>(k[d]);
  }
  return row;
}

/// Rows j of dK and dV, one after the other, and at the end Σ p of the key.
template <class Real>
std::vector<Real> key_gradients(const Tensors& t, std::int64_t j) {
  const Real c = 1 / std::sqrt(static_cast<Real>(kDim));
  std::vector<Real> row(2 * kDim + 1);
  for (std::int64_t i = j; i < kLength; ++i) {
    const auto [p, d_s] = pair_gradient<Real>(t, i, j);
    for (std::int64_t d = 0; d < kDim; ++d) {
      const auto at = static_cast<std::size_t>(i * kDim + d);
      row[static_cast<std::size_t>(d)] += c * d_s * static_cast<Real>(t.q[at]);
      row[static_cast<std::size_t>(kDim + d)] += p * static_cast<Real>(t.d_o[at]);
    }
    row[2 * kDim] += p;
  }
  return row;
}

double largest(const std::vector<float>& x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::fabs(value));
  return static_cast<double>(most);
}

double largest_row_norm(const std::vector<float>& x) {
  double most = 0;
  for (std::size_t row = 0; row < kCount; row += kDim) most = std::max(most, dot<double>(&x[row], &x[row]));
  return std::sqrt(most);
}

/// The error rule: at most twice as wrong as the plain method in f32, plus what rounding cannot avoid.
struct Check {
  const char* name;
  double fast = 0, plain = 0, floor = 0;  ///< largest errors over the rows looked at

  void see(double fast_value, double plain_value, double exact) {
    fast = std::max(fast, std::isfinite(fast_value) ? std::fabs(fast_value - exact) : HUGE_VAL);
    plain = std::max(plain, std::fabs(plain_value - exact));
  }
  bool wrong() const { return !(fast <= 2 * plain + floor); }
};

/// Looks at a few rows of every result; empty if they are right.
std::string compare(const Tensors& t) {
  Check o{"o"}, lse{"lse"}, d_q{"d_q"}, d_k{"d_k"}, d_v{"d_v"};
  double column = 0, most_lse = 0, most_d_q = 0, most_d_k = 0, most_d_v = 0;
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, std::int64_t{777}, std::int64_t{16384}, kLength - 1}) {
    const auto row = static_cast<std::size_t>(i * kDim);
    const std::vector<double> exact = output_row<double>(t, i), exact_d_q = query_gradient<double>(t, i);
    const std::vector<float> plain = output_row<float>(t, i), plain_d_q = query_gradient<float>(t, i);
    for (std::size_t d = 0; d < kDim; ++d) {
      o.see(static_cast<double>(t.o[row + d]), static_cast<double>(plain[d]), exact[d]);
      d_q.see(static_cast<double>(t.d_q[row + d]), static_cast<double>(plain_d_q[d]), exact_d_q[d]);
      most_d_q = std::max(most_d_q, std::fabs(exact_d_q[d]));
    }
    lse.see(static_cast<double>(t.lse[static_cast<std::size_t>(i)]), static_cast<double>(plain[kDim]), exact[kDim]);
    most_lse = std::max(most_lse, std::fabs(exact[kDim]));
  }
  for (const std::int64_t j : {std::int64_t{0}, std::int64_t{1000}, std::int64_t{20000}, kLength - 50, kLength - 1}) {
    const auto row = static_cast<std::size_t>(j * kDim);
    const std::vector<double> exact = key_gradients<double>(t, j);
    const std::vector<float> plain = key_gradients<float>(t, j);
    for (std::size_t d = 0; d < kDim; ++d) {
      d_k.see(static_cast<double>(t.d_k[row + d]), static_cast<double>(plain[d]), exact[d]);
      d_v.see(static_cast<double>(t.d_v[row + d]), static_cast<double>(plain[kDim + d]), exact[kDim + d]);
      most_d_k = std::max(most_d_k, std::fabs(exact[d])), most_d_v = std::max(most_d_v, std::fabs(exact[kDim + d]));
    }
    column = std::max(column, exact[2 * kDim]);
  }
  // The floors of tests/support/tolerance.cc, with Σ|a||b| bounded by the norms of the rows (A = c·max Σ|q||k| and
  // E = max Σ|dO||v|), each with the rounding of its result to f32. Backward is given o, so no error of o comes in.
  const double c = 1 / std::sqrt(static_cast<double>(kDim));
  const double a = c * largest_row_norm(t.q) * largest_row_norm(t.k),
               e = largest_row_norm(t.d_o) * largest_row_norm(t.v);
  const double d_s = kU * (4 + a) * 2 * e;
  o.floor = kU * (2 + a) * largest(t.v) + kU * largest(t.o);
  lse.floor = kU * (2 + a + 2 * most_lse);
  d_q.floor = c * largest(t.k) * d_s + kU * most_d_q;
  d_k.floor = c * largest(t.q) * column * d_s + kU * most_d_k;
  d_v.floor = kU * (2 + a) * largest(t.d_o) * column + kU * most_d_v;
  std::string wrong;
  for (const Check& check : {o, lse, d_q, d_k, d_v})
    if (check.wrong())
      wrong += std::string(check.name) + ": error " + std::to_string(check.fast) + ", plain " +
               std::to_string(check.plain) + ", floor " + std::to_string(check.floor) + "\n";
  return wrong;
}

/// In the child: what went wrong, or nothing.
std::string run_with_little_memory() {
  const auto limit = static_cast<rlim_t>(address_space_in_use() + kAllowance);
  const rlimit limits{limit, limit};
  if (setrlimit(RLIMIT_AS, &limits) != 0) return "the limit could not be set\n";
  if (void* scores =
          mmap(nullptr, kScoresBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      scores != MAP_FAILED)
    return "the limit does not hold: the scores would fit\n";

  Tensors t;
  const Extents matrix = {1, 1, kLength, kDim}, rows = {1, 1, kLength, 1};
  const auto in = [&](const std::vector<float>& x, const Extents& shape) { return tensor(x.data(), shape); };
  const auto out = [&](std::vector<float>& x, const Extents& shape) { return tensor(x.data(), shape); };
  Problem problem;
  problem.mask = Mask::make_causal();
  Machine machine = Machine::here();
  machine.threads = std::min(machine.threads, 2);  // each has a stack and a workspace
  const Inputs inputs{in(t.q, matrix), in(t.k, matrix), in(t.v, matrix)};
  const auto run = [&](Pass pass) {
    const Plan plan = make_plan(problem, shape_of(inputs, problem), pass, machine);
    const std::align_val_t aligned{64};
    auto* memory = static_cast<std::byte*>(::operator new(plan.workspace_bytes, aligned));
    const std::span<std::byte> workspace(memory, plan.workspace_bytes);
    if (pass == Pass::kForward) forward(plan, inputs, {out(t.o, matrix), out(t.lse, rows)}, workspace);
    else
      backward(plan, {inputs.q, inputs.k, inputs.v, in(t.o, matrix), in(t.lse, rows), in(t.d_o, matrix)},
               {out(t.d_q, matrix), out(t.d_k, matrix), out(t.d_v, matrix)}, workspace);
    ::operator delete(memory, aligned);
  };
  run(Pass::kForward);
  run(Pass::kBackward);
  return compare(t);
}

// The parent starts no threads before the fork: OpenMP's pool would not survive it.
TEST(Memory, LongSequencesNeedNoSquareOfScores) {
  int channel[2];
  ASSERT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(channel[0]);
    std::string wrong;
    try {
      wrong = run_with_little_memory();
    } catch (const std::exception& error) {
      wrong = std::string("threw ") + error.what() + "\n";
    }
    const bool written = write(channel[1], wrong.data(), wrong.size()) == static_cast<ssize_t>(wrong.size());
    _exit(written && wrong.empty() ? 0 : 1);
  }
  close(channel[1]);
  std::string wrong;
  char text[4096];
  for (ssize_t n; (n = read(channel[0], text, sizeof(text))) > 0;) wrong.append(text, static_cast<std::size_t>(n));
  close(channel[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(wrong, "");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace rootdk::test

#endif  // not sanitized, Linux
