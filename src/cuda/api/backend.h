// How the engine reaches the CUDA kernels. They live in a library of their own, librootdk_cuda, which is loaded when a
// GPU is first asked for, so that rootdk itself needs neither driver nor toolkit. Where rootdk was built without nvcc,
// no_cuda.cc answers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/call.h"

namespace rootdk::base {
struct BlockRecord;
}

namespace rootdk::cuda {

/// Which kernel takes a problem on a card: "hopper", "mma" or "plain", and why none that comes before it, by name:
/// "hopper: takes …".
struct Choice {
  std::string kernel;
  std::vector<std::string> passed_over;
};

/// From device to host: `height` runs of `width` bytes, each `pitch` bytes after the last, in both places.
struct Copy {
  void* to;
  const void* from;
  std::size_t pitch, width, height;
};

/// What the backend can do, declared here and nowhere else. Both sides are built together; `size` notices where they
/// were not.
struct Backend {
  std::size_t size = sizeof(Backend);

  /// Why the current device cannot be used; empty if it can.
  std::string (*missing)() = nullptr;
  Gpu (*current_card)() = nullptr;
  Choice (*choose)(const Problem& problem, const Shape& shape, Pass pass, const Gpu& card) = nullptr;
  /// Why no kernel takes a problem, named by its argument; empty if one does.
  std::string (*refusal)(const Problem& problem, const Shape& shape) = nullptr;

  /// Bytes of device memory for a call's own use, beside the records that statistics are made of.
  std::size_t (*forward_bytes)(const Plan& plan) = nullptr;
  std::size_t (*backward_bytes)(const Plan& plan) = nullptr;
  /// Enqueue on a cudaStream_t. Calls were checked; all pointers but spans of the problem's own arrays are of the
  /// device.
  void (*forward)(const base::ForwardCall& call, void* stream) = nullptr;
  void (*backward)(const base::BackwardCall& call, void* stream) = nullptr;
  /// Rows of records, by the block of 64 queries; `shift` queries of the first block come before this call's.
  void (*summarise)(const base::RowRecord* rows, base::BlockRecord* blocks, std::int64_t heads, std::int64_t len_q,
                    std::int64_t shift, void* stream) = nullptr;
  void (*to_host)(std::span<const Copy> copies, void* stream) = nullptr;  ///< waits for the stream
};

inline constexpr const char* kBackendSymbol = "rootdk_cuda_backend";

/// The table, or why there is none.
struct Loaded {
  const Backend* backend = nullptr;
  std::string why_not = {};
};
const Loaded& load_backend();

}  // namespace rootdk::cuda

/// What librootdk_cuda exports, under kBackendSymbol; tests of the kernels are linked with it.
extern "C" ROOTDK_API const rootdk::cuda::Backend* rootdk_cuda_backend();
