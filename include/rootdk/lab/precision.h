// Saturation and rounding, told apart: the same scores kept in f64, f32, f16 and bf16 under each rule.
//
// The product is exact (double), and softmax itself is computed in double; what a dtype touches is what a plain
// implementation stores: q·k, the score c·q·k, and the probability. So what f64 shows, too, is not rounding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"
#include "rootdk/scale.h"
#include "rootdk/tensor.h"

namespace rootdk::lab {

struct PrecisionOptions {
  std::vector<std::int64_t> dk = {64, 512};
  std::vector<Scale> rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  /// q·k times this: 1 is unit-variance q and k; thousands are a head whose scores have exploded.
  std::vector<double> gains = {1, 4096};
  std::int64_t keys = 1024;
  std::int64_t queries = 256;
  std::uint64_t seed = 1;
};

struct PrecisionPoint {
  std::string rule;
  DType dtype = DType::kF64;
  std::int64_t dk = 0;
  double gain = 1;
  // Saturation: a property of the scores, the same in every dtype that can hold them.
  double p_max = 0;                   ///< mean over rows
  double share_p_max_over_99pct = 0;  ///< share of rows with p_max > 0.99
  // Rounding: what the dtype did.
  double overflow_raw = 0;  ///< share of q·k beyond the dtype's largest number
  double overflow_rows =
      0;  ///< share of rows with such a score after scaling: softmax of them is no number; they are left out
  double score_error = 0;  ///< root mean square of (stored score − score), over the scores that did not overflow
  double p_error = 0;      ///< mean over rows of ½Σ|stored p − p|: 0 none, 1 all weight in the wrong place
  double signal_bits =
      0;  ///< log₂ of (spread of p within rows / root mean square error of the stored p): bits that tell keys apart
};

struct Precision {
  PrecisionOptions options;
  std::vector<PrecisionPoint> points;
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const PrecisionOptions& options);

ROOTDK_API Precision measure_precision(const PrecisionOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
