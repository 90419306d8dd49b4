// Soft or frozen: entropy, largest probability and tr J over d_k × keys under each rule, measured by the fused kernel
// and computed by quadrature, with the line d_k = 2 ln n between the two phases of unscaled attention.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/estimate.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"
#include "rootdk/scale.h"

namespace rootdk::lab {

struct PhaseOptions {
  std::vector<std::int64_t> dk = {4, 16, 64, 256};
  std::vector<std::int64_t> keys = {16, 64, 256, 1024, 4096};
  std::vector<Scale> rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  std::int64_t queries = 128;  ///< in a batch; they share its keys
  std::int64_t batches = 8;    ///< independent; intervals come from how they differ
  std::uint64_t seed = 1;
};

/// What was measured beside what theory says.
struct Compared {
  Estimate measured;
  double theory = 0;
};

struct PhasePoint {
  std::string rule;
  std::int64_t dk = 0, keys = 0;
  double sigma = 0;           ///< √d_k·c: the spread of the scores
  double critical_sigma = 0;  ///< √(2 ln n)
  bool frozen = false;        ///< σ > σ_c
  Compared entropy, p_max, trace_j;
};

/// Where unscaled attention freezes.
struct CriticalPoint {
  std::int64_t keys = 0;
  double dk = 0;  ///< 2 ln n
};

struct Phase {
  PhaseOptions options;
  std::vector<PhasePoint> points;
  std::vector<CriticalPoint> critical;
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const PhaseOptions& options);

ROOTDK_API Phase measure_phase(const PhaseOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
