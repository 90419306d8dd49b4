// Runs a case on the GPU, and on the CPU's naive kernel without the engine: what a machine with nothing but the CUDA
// toolkit can build.
#pragma once

#include <string>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

struct DeviceOptions {
  bool backward = true;
  bool rows = true;         ///< want full statistics of each row, too; else only of heads, which other kernels do
  bool sums = true;         ///< want the gradients that are sums over rows, too: of the scale, of sinks
  bool graph = false;       ///< capture both passes, replay the graph twice
  bool seed_there = false;  ///< dropout's seed lies in device memory
  std::string kernel = {}, back_kernel = {};  ///< instead of those the backend would choose
};

Result run_on_device(const Case& c, const DeviceOptions& options = {});

/// The double reference on f64 copies, and the plain method.
Result run_exactly(const Case& c, bool backward = true);
Result run_plainly(const Case& c, bool backward = true);

/// What the backend would take for forward.
std::string chosen_kernel(const Case& c);

}  // namespace rootdk::test
