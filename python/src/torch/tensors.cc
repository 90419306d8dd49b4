// Sizes, strides and addresses of torch's tensors by its stable ABI.
#include "tensors.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "base/refuse.h"

namespace rootdk::torch_operators {

namespace {

using base::refuse;

struct NamedDType {
  std::int32_t torch;
  DType ours;
};

/// torch's numbers for its dtypes may change from version to version, so they are asked for.
const std::array<NamedDType, 5>& dtypes() {
  static const std::array<NamedDType, 5> table = {{{aoti_torch_dtype_float32(), DType::kF32},
                                                   {aoti_torch_dtype_float16(), DType::kF16},
                                                   {aoti_torch_dtype_bfloat16(), DType::kBF16},
                                                   {aoti_torch_dtype_float64(), DType::kF64},
                                                   {aoti_torch_dtype_bool(), DType::kBool}}};
  return table;
}

DType dtype_of(std::string_view name, AtenTensorHandle tensor) {
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  for (const NamedDType& known : dtypes())
    if (known.torch == dtype) return known.ours;
  refuse("{}: its dtype is none of float32, float16, bfloat16, float64 (or bool for masks)", name);
}

std::int32_t torch_dtype(DType dtype) {
  for (const NamedDType& known : dtypes())
    if (known.ours == dtype) return known.torch;
  return 0;
}

void check_device(std::string_view name, AtenTensorHandle tensor) {
  std::int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &device));
  static const std::int32_t cpu = aoti_torch_device_type_cpu();
  if (device != cpu) refuse("{}: lies elsewhere, but q on the CPU", name);
}

// An empty tensor may come without an address, which would mean "absent".
template <class Void>
Void* address(Void* data, std::int64_t count) {
  static std::max_align_t nothing;
  return data == nullptr && count == 0 ? &nothing : data;
}

ConstTensor view(std::string_view name, const TorchTensor& tensor, std::int64_t axes, const char* wanted) {
  AtenTensorHandle handle = tensor.get();
  check_device(name, handle);
  std::int64_t dim = 0, *sizes = nullptr, *strides = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
  if (dim != axes) refuse("{}: {} axes, but the {} of {} are wanted", name, dim, axes, wanted);
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
  ConstTensor out;
  out.dtype = dtype_of(name, handle);
  out.shape = {1, 1, 1, 1};
  out.strides = {1, 1, 1, 1};
  for (std::int64_t axis = 0; axis < axes; ++axis) {
    out.shape[static_cast<std::size_t>(axis)] = sizes[axis];
    out.strides[static_cast<std::size_t>(axis)] = strides[axis];
  }
  const void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(handle, &data));
  out.data = address(data, out.count());
  return out;
}

/// With the first `axes` of shape and strides; the others are 1.
Fresh fresh(std::int64_t axes, const Extents& shape, const Extents& strides, DType dtype) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(axes, shape.data(), strides.data(), torch_dtype(dtype),
                                                  aoti_torch_device_type_cpu(), -1, &handle));
  Fresh out{TorchTensor(handle), {nullptr, dtype, Device::kCpu, shape, strides}};
  void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(handle, &data));
  out.view.data = address(data, out.view.count());
  return out;
}

// As torch has it: an axis without elements does not make the outer ones share an address.
Extents strides_of(const Extents& shape, const std::array<std::size_t, 4>& outermost_first) {
  Extents strides = {};
  std::int64_t step = 1;
  for (std::size_t i = 4; i-- > 0;) {
    const std::size_t axis = outermost_first[i];
    strides[axis] = step;
    step *= std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

}  // namespace

ConstTensor view_of(std::string_view name, const TorchTensor& tensor) {
  return view(name, tensor, 4, "[batch, heads, length, dim]");
}

ConstTensor view_of(std::string_view name, const MaybeTensor& tensor) {
  return tensor ? view_of(name, *tensor) : ConstTensor{};
}

ConstTensor rows_of(std::string_view name, const TorchTensor& tensor) {
  return view(name, tensor, 3, "[batch, heads, length]");
}

Fresh fresh_like(const ConstTensor& like, const Extents& shape) {
  const bool heads_inside = like.strides[1] < like.strides[2];
  using Order = std::array<std::size_t, 4>;
  return fresh(4, shape, strides_of(shape, heads_inside ? Order{0, 2, 1, 3} : Order{0, 1, 2, 3}), like.dtype);
}

Fresh fresh_rows(const Extents& shape, DType dtype) { return fresh(3, shape, strides_of(shape, {0, 1, 2, 3}), dtype); }

Fresh fresh_per_head(std::int64_t heads) {
  Fresh out = fresh(1, {heads, 1, 1, 1}, {1, 1, 1, 1}, DType::kF32);
  out.view.shape = {1, 1, 1, heads};
  return out;
}

}  // namespace rootdk::torch_operators
