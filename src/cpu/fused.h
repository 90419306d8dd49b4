// The fused kernels: the same code compiled for every instruction set, one table entry each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call.h"

namespace rootdk::cpu {

struct FusedKernel {
  const char* isa;
  std::int64_t tile_rows, tile_keys;  ///< of one register tile and key block
  std::size_t (*workspace_bytes)(const Plan& plan);
  void (*forward)(const base::ForwardCall& call);
  void (*backward)(const base::BackwardCall& call);
};

/// Those this machine can run, best first.
const std::vector<FusedKernel>& fused_kernels();

}  // namespace rootdk::cpu
