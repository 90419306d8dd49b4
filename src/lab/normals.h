// Standard normal data for the experiments, and how a rule's c is fixed for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "rootdk/nn/init.h"
#include "rootdk/scale.h"

namespace rootdk::lab {

/// Every array of an experiment is a stream of its own: no two share numbers, whatever the sizes.
struct Stream {
  std::uint64_t seed = 0;
  std::uint32_t experiment = 0;  ///< one of the tags below
  std::uint32_t point = 0;       ///< of its grid
  std::uint32_t batch = 0;

  nn::Seed array(std::uint32_t which) const {
    return {seed, std::uint64_t{experiment} << 56 | std::uint64_t{point} << 24 | std::uint64_t{batch} << 4 | which};
  }
};
enum StreamTag : std::uint32_t { kPhaseStream = 1, kGradientStream, kPrecisionStream, kInitialisationStream };

inline std::vector<float> normals(std::int64_t count, const nn::Seed& seed, double std = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  nn::fill(values, nn::Init::normal(std), {}, seed);
  return values;
}

/// c for queries that all see `keys` keys and stand on the last: a length rule is then one number.
inline double fixed_factor(const Scale& scale, std::int64_t dk, std::int64_t keys) {
  return scale.factor(0, dk, {keys, keys - 1});
}

}  // namespace rootdk::lab
