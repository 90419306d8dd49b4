// Tensors of torch as views of the engine, and new ones in the layout of those that came.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string_view>

#include "rootdk/tensor.h"

namespace rootdk::torch_operators {

using TorchTensor = ::torch::stable::Tensor;
using MaybeTensor = std::optional<TorchTensor>;

/// [batch, heads, length, dim] of the CPU, in a dtype that rootdk has a name for; else refused by this name.
ConstTensor view_of(std::string_view name, const TorchTensor& tensor);
/// Absent stays absent.
ConstTensor view_of(std::string_view name, const MaybeTensor& tensor);
/// [batch, heads, length] as [batch, heads, length, 1].
ConstTensor rows_of(std::string_view name, const TorchTensor& tensor);

/// Uninitialised memory of torch's allocator and the view through which it is written.
struct Fresh {
  TorchTensor tensor;
  Tensor view;
};

/// Of this shape, row-major; or [batch, length, heads, dim] in memory where `like` has it so, as models do that split
/// heads by a view and join them by one.
Fresh fresh_like(const ConstTensor& like, const Extents& shape);
/// [batch, heads, length], seen as [batch, heads, length, 1].
Fresh fresh_rows(const Extents& shape, DType dtype);
/// [heads] in f32, seen as [1, 1, 1, heads].
Fresh fresh_per_head(std::int64_t heads);

}  // namespace rootdk::torch_operators
