// How a problem will be computed: a pure value, made from the problem, its sizes and the machine. explain() says it in
// words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/problem.h"

namespace rootdk {

enum class Pass : std::uint8_t { kForward, kBackward };

/// A GPU, as far as plans care: cuda::machine() (rootdk/cuda.h) fills it in.
struct Gpu {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
};

/// What the machine has. Take Machine::here() and change what you like: fewer threads, fewer instruction sets.
struct Machine {
  int threads = 1;
  std::vector<std::string> isas;  ///< instruction sets compiled in and supported here, best first: "AVX3", "AVX2", …
  std::optional<Gpu> gpu = {};    ///< present: plan for it and not for the CPU

  /// This machine: OpenMP's thread count (1 inside a parallel region) and every usable instruction set.
  ROOTDK_API static Machine here();
};

struct Plan {
  Pass pass = Pass::kForward;
  Problem problem;
  Shape shape;
  Device device = Device::kCpu;  ///< where tensors and workspace lie

  std::string kernel;              ///< "fused" or "reference"; on a GPU "hopper", "mma" or "plain"
  std::string isa;                 ///< of the fused kernel
  int threads = 1;                 ///< fewer than the machine's for small problems; never changes a bit of the result
  std::int64_t rows_per_task = 0;  ///< query rows a thread takes at a time
  std::int64_t tile_rows = 0;      ///< query rows in the lanes of one register tile
  std::int64_t tile_keys = 0;      ///< keys per block
  std::int64_t key_splits = 1;     ///< a row's keys are cut in so many parts, merged in order; depends on lengths only
  bool pack_group = false;         ///< rows of the query heads that share a key head lie side by side in a tile
  bool narrow = false;             ///< so few queries that vectors lie along d, and all rows share one read of K and V
  bool two_sweeps = false;         ///< backward: one sweep for dK, dV and one for dQ, to occupy more threads
  std::vector<std::string> passed_over;  ///< faster kernels that did not fit, and why

  std::size_t workspace_bytes = 0;  ///< scratch the call needs beside its tensors

  /// In words: kernel, tiles, threads, what is skipped, and why nothing faster was taken.
  ROOTDK_API std::string explain() const;
};

/// Throws Error if problem and shape do not fit each other.
ROOTDK_API Plan make_plan(const Problem& problem, const Shape& shape, Pass pass = Pass::kForward,
                          const Machine& machine = Machine::here());

}  // namespace rootdk
