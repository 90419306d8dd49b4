// The CUDA backend, seen from where it is linked: a library of its own, librootdk_cuda, which the engine loads
// (cuda/backend.h).
#pragma once

#include <cstddef>
#include <string>

#include "base/call.h"
#include "cuda/backend.h"

namespace rootdk::gpu {

/// Why no GPU can be used here; empty if one can.
std::string missing();

/// The current device. Throws where missing() is not empty.
Gpu current_card();

Choice choose(const Problem& problem, const Shape& shape, Pass pass, const Gpu& card);

/// Why no kernel takes a problem; empty if one does.
std::string refusal(const Problem& problem, const Shape& shape);

/// Bytes of device memory that a call needs.
std::size_t forward_bytes(const Plan& plan);
std::size_t backward_bytes(const Plan& plan);

/// As the kernels of the CPU, but that everything lies on the device (the problem's arrays aside) and that work is only
/// enqueued: no allocation, no waiting. `stream` is a cudaStream_t. Spans of gradients are device memory, too.
void forward(const base::ForwardCall& call, void* stream);
void backward(const base::BackwardCall& call, void* stream);

/// Whether the fast kernels can read tensors of these strides.
bool takes(const Inputs& inputs);

/// Rows of [heads, len_q] by the block of 64 queries, of which the first lacks `shift`.
void summarise(const base::RowRecord* rows, base::BlockRecord* blocks, std::int64_t heads, std::int64_t len_q,
               std::int64_t shift, void* stream);

/// Copies, then waits for the stream.
void to_host(std::span<const Copy> copies, void* stream);

}  // namespace rootdk::gpu
