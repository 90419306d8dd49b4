// What the machine can do at most: multiply-adds on the widest vectors, reading memory, copying memory; on every
// thread. Compiled for the machine it runs on.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// Enough independent chains to cover latency times ports, few enough for registers beside the two operands.
constexpr int kChains = HWY_TARGET <= HWY_AVX3 ? 24 : 12;

float multiply_add(std::int64_t rounds, float x) {
  const D d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, x);
  hn::Vec<D> sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, x * static_cast<float>(i));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], a, b);
  }
  auto all = sum[0];
  for (int i = 1; i < kChains; ++i) all = hn::Add(all, sum[i]);
  return hn::GetLane(hn::SumOfLanes(d, all));
}

std::uint64_t read_all(const std::uint64_t* x, std::int64_t n) {
  const hn::ScalableTag<std::uint64_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kSums = 4;  // so that the latency of an addition does not matter
  hn::Vec<decltype(d)> sum[kSums];
  for (auto& s : sum) s = hn::Zero(d);
  for (std::int64_t i = 0; i + kSums * lanes <= n; i += kSums * lanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) sum[s] = hn::Add(sum[s], hn::LoadU(d, x + i + s * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

void copy_all(const float* from, float* to, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i + lanes <= n; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
}

}  // namespace

extern "C" {

// Floating-point operations done.
double limits_multiply_add(std::int64_t rounds, int threads, float* sink) {
  float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  total += multiply_add(rounds, *sink);
  *sink = total * 0;
  return 2.0 * kChains * static_cast<double>(hn::Lanes(D())) * static_cast<double>(rounds) * threads;
}

// Reads the whole pages of k and of v, `bytes` each; thread i its part of k, then that of v. As integers: pairs of
// 16-bit numbers may look like NaN or denormals. The sum keeps the compiler from leaving it all out.
std::uint64_t limits_read(const std::uint64_t* k, const std::uint64_t* v, std::int64_t bytes, int threads) {
  constexpr std::int64_t kPageBytes = 4096, kPageWords = kPageBytes / sizeof(*k);
  const std::int64_t pages = bytes / kPageBytes;
  std::uint64_t total = 0;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : total)
  for (int part = 0; part < threads; ++part) {
    const std::int64_t first = pages * part / threads * kPageWords, end = pages * (part + 1) / threads * kPageWords;
    for (const std::uint64_t* x : {k, v}) total += read_all(x + first, end - first);
  }
  return total;
}

// from and to are [parts, n], aligned to a vector.
void limits_copy(const float* from, float* to, std::int64_t n, int parts) {
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) copy_all(from + part * n, to + part * n, n);
}

}  // extern "C"
