// The fused kernels: the same code compiled for every instruction set, one table entry each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call.h"

namespace rootdk::cpu {

struct FusedForward {
  const char* isa;
  std::int64_t tile_rows, tile_keys;  ///< of one register tile and key block
  std::int64_t lanes;                 ///< of a vector
  std::size_t (*workspace_bytes)(const Plan& plan);
  void (*run)(const base::ForwardCall& call);
};

struct FusedBackward {
  std::size_t (*workspace_bytes)(const Plan& plan);
  void (*run)(const base::BackwardCall& call);
};

/// For the instruction sets this machine can run, best first; both lists go in step.
const std::vector<FusedForward>& fused_forward();
const std::vector<FusedBackward>& fused_backward();

}  // namespace rootdk::cpu
