// Real projections: normalised inputs through W_q and W_k as initialisers make them, what the scores then spread by,
// and the divisor that would have been right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/estimate.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"
#include "rootdk/nn/init.h"

namespace rootdk::lab {

/// A way to initialise a D→D projection that is cut into heads.
struct NamedInit {
  std::string name;
  nn::Init init;
  bool packed = false;  ///< W_q, W_k, W_v drawn as one 3D×D matrix: fan_out is 3D

  nn::Fans fans(std::int64_t width) const { return {width, packed ? 3 * width : width}; }
};

/// Xavier (square and packed), LeCun, He, N(0, 0.02).
ROOTDK_API std::vector<NamedInit> usual_initialisations();

struct InitialisationOptions {
  std::vector<std::int64_t> widths = {256, 768, 1024};  ///< D
  std::vector<std::int64_t> dk = {64, 128};
  std::vector<NamedInit> inits = usual_initialisations();
  std::int64_t tokens = 64;   ///< queries, and as many keys, in a batch
  std::int64_t heads = 4;     ///< in a batch
  std::int64_t batches = 12;  ///< each with weights and tokens of its own; more of them narrow the interval
  std::uint64_t seed = 1;
};

struct InitialisationRow {
  std::string init;
  std::int64_t width = 0, dk = 0;
  double weight_std = 0;
  double predicted = 0;     ///< standard deviation of q·k, from weight_std alone: the divisor that gives unit variance
  double from_weights = 0;  ///< root of the mean over heads of what rootdk::theory computes from the very weights
  Estimate variance;        ///< of q·k within rows, as measured
  double measured = 0;      ///< its root
  double after_sqrt_dk = 0;  ///< measured/√d_k: the spread softmax sees under 1/√d_k; 1 where that rule is right
};

struct Initialisation {
  InitialisationOptions options;
  std::vector<InitialisationRow> rows;
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const InitialisationOptions& options);

ROOTDK_API Initialisation measure_initialisation(const InitialisationOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
