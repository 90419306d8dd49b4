// All checking of what a caller passes, in one place, before anything is computed or written. Below this nothing checks
// again.
#pragma once

#include <string_view>

#include "rootdk/attention.h"

namespace rootdk::base {

/// Limits that let kernels hold positions and distances in int32.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 29;
inline constexpr std::int64_t kMaxOffset = std::int64_t{1} << 29;
inline constexpr std::int64_t kMaxDim = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 40;  ///< batch × heads × length

/// `device` is where tensors must lie.
void check_problem(const Problem& problem, const Shape& shape, Device device = Device::kCpu);
void check_forward(const Problem& problem, const Shape& shape, const Inputs& inputs, const Outputs& outputs,
                   Device device = Device::kCpu);
void check_backward(const Problem& problem, const Shape& shape, const BackwardInputs& inputs,
                    const Gradients& gradients, Device device = Device::kCpu);
/// q and k alone.
void check_keys(const Problem& problem, const Shape& shape, const ConstTensor& q, const ConstTensor& k);
void check_stats_options(const StatsOptions& options);

/// Every row tensor is there and shaped as lse; `whose` goes before their names.
void check_rows(const RowTensors& rows, const ConstTensor& lse, std::string_view whose);
void check_merge_rows(const Outputs& into, const Outputs& other);
void check_merge(const Tensor& o, const Tensor& lse, const ConstTensor& other_o, const ConstTensor& other_lse);

}  // namespace rootdk::base
