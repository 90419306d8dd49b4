// Runs a case through a kernel, forward and backward, and collects everything it produced as doubles.
#pragma once

#include <string>
#include <vector>

#include "base/call.h"
#include "engine/kernel_table.h"
#include "support/case.h"

namespace rootdk::test {

struct Result {
  std::vector<double> o, lse, raw_max, score_max, p_max;
  std::vector<double> d_q, d_k, d_v, d_scale, d_bias, d_sink, d_log_n_gain, d_log_n_offset;
  Stats stats;
  GradientStats gradient_stats;
  std::vector<std::vector<double>> rows;  ///< at kFull, in the order of kFullRowTensors
  std::vector<double> key_mass;           ///< if the problem asks for it
  bool guards_intact = true;              ///< nothing was written outside the outputs
  bool rounded_weights = false;           ///< forward rounded its probabilities to the storage dtype
  bool rounded_backward = false;          ///< backward rounded probabilities and dS

  /// Bitwise comparison in effect: NaNs equal NaNs.
  bool same_as(const Result& other) const;
};

struct RunOptions {
  int threads = 2;
  bool backward = true;
};

Result run(const Case& c, const engine::Kernel& kernel, const RunOptions& options = {});

/// The double reference on f64 copies of the same numbers.
Result run_reference(const Case& c, const RunOptions& options = {});

/// The yardstick for rounding errors.
Result run_plain(const Case& c, const RunOptions& options = {});

/// Every fused kernel this machine has.
std::vector<engine::Kernel> fast_kernels();

/// How many random problems to try: ROOTDK_TEST_PROBLEMS, or this many.
int problem_count(int otherwise);

}  // namespace rootdk::test
