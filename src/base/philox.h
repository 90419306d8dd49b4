// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter-based generator, so a
// dropout decision is a pure function of where it is made. Constants are the paper's.
#pragma once

#include <array>
#include <cstdint>

#include "base/on_both.h"

namespace rootdk::base {

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

/// A seed's halves.
struct PhiloxKey {
  std::uint32_t low, high;
};

/// The high half of a product.
ROOTDK_ON_BOTH inline std::uint32_t high_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);
#else
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32);
#endif
}

/// The counter becomes four numbers.
ROOTDK_ON_BOTH inline void philox(const PhiloxKey& key, std::uint32_t (&x)[4]) {
  std::uint32_t key0 = key.low, key1 = key.high;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint32_t low0 = kPhiloxMultiplier0 * x[0], high0 = high_product(kPhiloxMultiplier0, x[0]);
    const std::uint32_t low1 = kPhiloxMultiplier1 * x[2], high1 = high_product(kPhiloxMultiplier1, x[2]);
    x[0] = high1 ^ x[1] ^ key0, x[1] = low1, x[2] = high0 ^ x[3] ^ key1, x[3] = low0;
    key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1;
  }
}

inline std::array<std::uint32_t, 4> philox4x32(const std::array<std::uint32_t, 4>& counter, std::uint32_t key0,
                                               std::uint32_t key1) {
  std::uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox({key0, key1}, x);
  return {x[0], x[1], x[2], x[3]};
}

}  // namespace rootdk::base
