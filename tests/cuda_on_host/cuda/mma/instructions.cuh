// In place of src/cuda/mma/instructions.cuh: lanes exchange what they have of a matrix, and each works out its part of
// the result. Asynchronous copies happen when they are waited for, so that a wait that is missing shows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda_on_host/fibers.h"

namespace rootdk::cuda::mma {

namespace on_host = rootdk::test::fibers;

using SharedAddress = std::uintptr_t;

inline unsigned char* shared_memory() { return static_cast<unsigned char*>(on_host::dynamic_shared()); }
inline SharedAddress address_of(const void* shared) { return reinterpret_cast<SharedAddress>(shared); }
inline void store_shared(SharedAddress to, const uint4& x) { std::memcpy(reinterpret_cast<void*>(to), &x, sizeof x); }
inline void store_shared(SharedAddress to, std::uint32_t x) { std::memcpy(reinterpret_cast<void*>(to), &x, sizeof x); }
inline std::uint32_t load_shared(SharedAddress from) {
  std::uint32_t x;
  std::memcpy(&x, reinterpret_cast<const void*>(from), sizeof x);
  return x;
}

// Asynchronous copies ------------------------------------------------------------------------------------------------
struct Copy {
  SharedAddress to;
  const void* from;
  int bytes, all;
};
/// Of each of a block's threads, the groups that have not arrived; the last is not committed yet.
inline std::vector<std::vector<Copy>>& copies_of_thread() {
  static thread_local std::vector<std::vector<std::vector<Copy>>> all(1024, std::vector<std::vector<Copy>>(1));
  return all[threadIdx.x];
}

template <int kBytes>
void copy_async(SharedAddress to, const void* from, int bytes) {
  if (to % kBytes != 0 || reinterpret_cast<std::uintptr_t>(from) % (bytes > 0 ? kBytes : 1) != 0 || bytes > kBytes)
    std::abort();
  copies_of_thread().back().push_back({to, from, bytes, kBytes});
}
inline void copies_commit() { copies_of_thread().emplace_back(); }
template <int kPending>
void copies_wait() {
  auto& groups = copies_of_thread();
  while (groups.size() > kPending + 1) {
    for (const Copy& copy : groups.front()) {
      auto* to = reinterpret_cast<unsigned char*>(copy.to);
      if (copy.bytes > 0) std::memcpy(to, copy.from, static_cast<std::size_t>(copy.bytes));
      std::memset(to + copy.bytes, 0, static_cast<std::size_t>(copy.all - copy.bytes));
    }
    groups.erase(groups.begin());
  }
}

// Matrices -----------------------------------------------------------------------------------------------------------
inline std::uint16_t element_at(SharedAddress row, unsigned column) {
  std::uint16_t x;
  std::memcpy(&x, reinterpret_cast<const void*>(row + 2 * column), sizeof x);
  return x;
}
template <bool kTransposed>
void load_four(std::uint32_t (&x)[4], SharedAddress row) {
  if (row % 16 != 0) std::abort();
  const unsigned lane = threadIdx.x % 32;
  const std::byte(*all)[on_host::kMostBytes] = on_host::meet_warp(&row, sizeof row);
  const auto of = [&](unsigned m, unsigned r) {
    SharedAddress there;
    std::memcpy(&there, all[8 * m + r], sizeof there);
    return there;
  };
  for (unsigned m = 0; m < 4; ++m) {
    const unsigned a = lane / 4, b = 2 * (lane % 4);
    const std::uint16_t low = kTransposed ? element_at(of(m, b), a) : element_at(of(m, a), b),
                        high = kTransposed ? element_at(of(m, b + 1), a) : element_at(of(m, a), b + 1);
    x[m] = low | std::uint32_t{high} << 16;
  }
}
inline void load_matrices(std::uint32_t (&x)[4], SharedAddress row) { load_four<false>(x, row); }
inline void load_matrices_transposed(std::uint32_t (&x)[4], SharedAddress row) { load_four<true>(x, row); }

/// The number that 16 bits are, without a call: this is what emulation spends its time on.
template <class T>
float number(std::uint32_t bits) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return std::bit_cast<float>(bits << 16);
  } else {
    const std::uint32_t sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
    const float x = rest < 0x0f800000 ? std::bit_cast<float>(rest) * 0x1p112f  // the exponents of f16 begin 112 higher
                                      : std::bit_cast<float>(rest | 0x7f800000);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | sign);
  }
}

template <class T>
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const std::byte(*all)[on_host::kMostBytes] = on_host::meet_warp(mine, sizeof mine);
  const auto word = [&](unsigned lane, unsigned n) {
    std::uint32_t x;
    std::memcpy(&x, all[lane] + 4 * n, sizeof x);
    return x;
  };
  const unsigned lane = threadIdx.x % 32;
  float sums[4] = {};
  for (unsigned k = 0; k < 16; k += 2) {
    const unsigned quad = k % 8 / 2;
    const std::uint32_t rows[2] = {word(lane / 4 * 4 + quad, k / 8 * 2), word(lane / 4 * 4 + quad, 1 + k / 8 * 2)},
                        columns[2] = {word(lane % 4 * 8 + quad, 4 + k / 8), word(lane % 4 * 8 + 4 + quad, 4 + k / 8)};
    for (unsigned which = 0; which < 32; which += 16)
      for (unsigned x = 0; x < 4; ++x)  // products of two numbers of 16 bits are exact
        sums[x] += number<T>(rows[x / 2] >> which & 0xffff) * number<T>(columns[x % 2] >> which & 0xffff);
  }
  for (unsigned x = 0; x < 4; ++x) c[x] += sums[x];
}

template <class T>
std::uint32_t pack2(float low, float high) {
  const T pair[2] = {static_cast<T>(low), static_cast<T>(high)};
  std::uint32_t out;
  static_assert(sizeof pair == sizeof out);
  std::memcpy(&out, pair, sizeof out);
  return out;
}

inline float exp2_fast(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
inline float reciprocal_fast(float x) { return 1 / x; }
inline int thread_now() { return static_cast<int>(threadIdx.x); }

inline std::uint32_t not_finite_pair(std::uint32_t pair, std::uint32_t all_ones) {
  const std::uint32_t both = pair & all_ones;
  return ((both & 0xffff) == (all_ones & 0xffff) ? 0xffffu : 0) | ((both >> 16) == (all_ones >> 16) ? 0xffff0000u : 0);
}

}  // namespace rootdk::cuda::mma
