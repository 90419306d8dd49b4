// One table of kernels, best first; the first row that fits is taken. The reference is the last and fits everything, so
// nothing is unsupported, only slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/call.h"

namespace rootdk::engine {

struct Kernel {
  std::string name;  ///< "fused" or "reference"
  std::string isa;
  std::string base_isa;  ///< that it extends, or the same
  std::int64_t tile_rows, tile_keys, lanes;
  std::int64_t bf16_step;                          ///< not 0: takes bf16 only, and dim_qk must be a multiple
  std::size_t (*forward_bytes)(const Plan& plan);  ///< of workspace
  std::size_t (*backward_bytes)(const Plan& plan);
  void (*forward)(const base::ForwardCall& call);
  void (*backward)(const base::BackwardCall& call);

  std::string label() const { return isa.empty() ? name : name + " (" + isa + ")"; }
};

/// Every kernel that was compiled in and can run here.
const std::vector<Kernel>& kernel_table();

/// Why a kernel cannot take a problem on a machine; empty if it can.
std::string misfit(const Kernel& kernel, const Shape& shape, const Machine& machine);

/// The row that a plan names.
const Kernel& kernel_of(const Plan& plan);

}  // namespace rootdk::engine
