// The fused kernels: the same code compiled for every instruction set, one table entry each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call.h"
#include "cpu/products/bf16.h"

namespace rootdk::cpu {

struct FusedForward {
  const char* isa;
  const char* backward_isa;           ///< whose backward goes with it
  const Bf16Products* bf16;           ///< null: multiplies in f32, takes any dtype but f64
  std::int64_t tile_rows, tile_keys;  ///< of one register tile and key block
  std::int64_t lanes;                 ///< of a vector
  std::size_t (*workspace_bytes)(const Plan& plan);
  void (*run)(const base::ForwardCall& call);
};

struct FusedBackward {
  const char* isa;
  std::size_t (*workspace_bytes)(const Plan& plan);
  void (*run)(const base::BackwardCall& call);
};

/// For the instruction sets this machine can run, best first.
const std::vector<FusedForward>& fused_forward();
const std::vector<FusedBackward>& fused_backward();

}  // namespace rootdk::cpu
