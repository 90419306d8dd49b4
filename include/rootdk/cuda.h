// Attention on a GPU: the same problems, plans and statistics as on the CPU.
//
//   if (rootdk::cuda::missing().empty()) {
//     const rootdk::Plan plan = rootdk::make_plan(problem, shape, rootdk::Pass::kForward, rootdk::cuda::machine());
//     rootdk::cuda::forward(plan, inputs, outputs, workspace, stream);   // plan.workspace_bytes of device memory
//     const rootdk::Stats stats = rootdk::cuda::read_stats(plan, workspace, stream);
//   }
//
// Tensors (q, k, v, o, lse, mask.bias, mask.allowed and so on) have Device::kCuda and lie on the current device, and so
// do the spans of Gradients; the arrays of a Problem stay on the host and are read before the call returns. A call
// checks, enqueues and returns: it neither allocates device memory nor waits, and a stream capture may record it. A
// score function of your own is code of the host, so it is refused; f64 too.
#pragma once

#include <span>
#include <string>

#include "rootdk/attention.h"

namespace rootdk::cuda {

/// Why there is no GPU to use: rootdk was built without CUDA, or there is no driver, or no device since compute
/// capability 8.0. Empty if there is one.
ROOTDK_API std::string missing();

/// The current device, to make plans for. Throws if there is none.
ROOTDK_API Machine machine();

/// Whether a kernel with tensor cores will run, whatever the strides.
ROOTDK_API bool is_fast(const Plan& plan, const Inputs& inputs);

/// Where none will: a line that says why, and what to change. Plan::explain begins with it.
ROOTDK_API std::string why_slow(const Plan& plan, const Inputs& inputs);

using Stream = void*;  ///< a cudaStream_t; null is the default stream

/// Of a plan for a GPU, in device memory of at least plan.workspace_bytes, aligned to 64.
ROOTDK_API void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, std::span<std::byte> workspace,
                        Stream stream = nullptr);
ROOTDK_API void backward(const Plan& plan, const BackwardInputs& inputs, const Gradients& gradients,
                         std::span<std::byte> workspace, Stream stream = nullptr);

/// What the last call in this workspace learned; it can be read again. These wait for the stream, which may be another
/// than the call's once the call is done.
ROOTDK_API Stats read_stats(const Plan& plan, std::span<std::byte> workspace, Stream stream = nullptr);
ROOTDK_API GradientStats read_gradient_stats(const Plan& plan, std::span<const std::byte> workspace,
                                             Stream stream = nullptr);

}  // namespace rootdk::cuda
