// Random pairs of vectors and their products, many pairs at a time. A component is a pure function of (seed, kind,
// pair, place): Philox4x32-10 and a few exactly rounded operations, so it has the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/lab/variance.h"

namespace rootdk::lab {

/// q = mean + σ_q·(√(1−ρ)·a + √ρ·a₀) with independent a of the kind, a₀ shared by the components of a vector; k
/// likewise.
struct PairLaw {
  Component kind = Component::kNormal;
  float sigma_q = 1, sigma_k = 1, mean = 0, correlation = 0;
  std::uint64_t seed = 0;
};

/// Pairs come in blocks; a block starts at a multiple of its size.
inline constexpr std::size_t kPairsPerBlock = 256;

struct DrawKernel {
  const char* isa;
  /// out [dims.size(), kPairsPerBlock]: q·k over the first dims[t] components of every pair. `dims` ascends.
  void (*products)(const PairLaw& law, std::uint64_t first_pair, std::span<const std::int64_t> dims, float* out);
  /// q and k, each [dim, kPairsPerBlock].
  void (*components)(const PairLaw& law, std::uint64_t first_pair, std::int64_t dim, float* q, float* k);
};

/// For the instruction sets this machine can run, best first.
const std::vector<DrawKernel>& draw_kernels();

}  // namespace rootdk::lab
