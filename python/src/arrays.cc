// Arrays of Python, by DLPack, as tensor views, and aligned memory for new ones.
#include "arrays.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/refuse.h"

namespace rootdk::python {

namespace {

std::optional<DType> dtype_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return {};
  const auto code = static_cast<Code>(dtype.code);
  if (code == Code::Float && dtype.bits == 32) return DType::kF32;
  if (code == Code::Float && dtype.bits == 64) return DType::kF64;
  if (code == Code::Float && dtype.bits == 16) return DType::kF16;
  if (code == Code::Bfloat && dtype.bits == 16) return DType::kBF16;
  if (code == Code::Bool && dtype.bits == 8) return DType::kBool;
  return {};
}

std::string name_of_type(nb::handle object) { return nb::str(object.type().attr("__name__")).c_str(); }

template <class Array>
Array array_of(std::string_view name, nb::handle object) {
  Array array;
  if (!nb::try_cast<Array>(object, array))
    throw nb::type_error(
        fmt::format("{}: {}, but an array that can be {} is wanted (numpy, torch, jax, or with __dlpack__)", name,
                    name_of_type(object), std::is_same_v<Array, OutArray> ? "written" : "read")
            .c_str());
  return array;
}

template <class View, class Array>
View view(std::string_view name, const Array& array) {
  const std::optional<DType> dtype = dtype_of(array.dtype());
  if (!dtype)
    base::refuse(
        "{}: dtype has code {} and {} bits, but float32, float16, bfloat16, float64 (or bool for masks) is wanted",
        name, static_cast<int>(array.dtype().code), static_cast<int>(array.dtype().bits));
  if (array.ndim() != 4)
    base::refuse("{}: {} axes, but the 4 of [batch, heads, length, dim] are wanted", name, array.ndim());
  View out;
  out.data = array.data();
  out.dtype = *dtype;
  out.device = array.device_type() == nb::device::cpu::value ? Device::kCpu : Device::kCuda;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    out.shape[axis] = static_cast<std::int64_t>(array.shape(axis));
    out.strides[axis] = array.stride(axis);
  }
  // An empty array may come without an address, which would mean "absent".
  static std::max_align_t nothing;
  if (out.data == nullptr && out.count() == 0) out.data = &nothing;
  return out;
}

}  // namespace

Input input(std::string_view name, nb::handle object) {
  InArray array = array_of<InArray>(name, object);
  const ConstTensor tensor = view<ConstTensor>(name, array);
  return {std::move(array), tensor};
}

Output output(std::string_view name, nb::handle object) {
  OutArray array = array_of<OutArray>(name, object);
  const Tensor tensor = view<Tensor>(name, array);
  return {std::move(array), tensor};
}

std::optional<Input> optional_input(std::string_view name, nb::handle object) {
  if (object.is_none()) return {};
  return input(name, object);
}

std::optional<Output> optional_output(std::string_view name, nb::handle object) {
  if (object.is_none()) return {};
  return output(name, object);
}

nb::object empty(const std::vector<std::int64_t>& shape, const std::string& dtype) {
  using Code = nb::dlpack::dtype_code;
  nb::dlpack::dtype type = {static_cast<std::uint8_t>(Code::Float), 32, 1};
  if (dtype == "bf16") type = {static_cast<std::uint8_t>(Code::Bfloat), 16, 1};
  else if (dtype == "f16") type.bits = 16;
  else if (dtype == "f64") type.bits = 64;
  else if (dtype != "f32") base::refuse("dtype: {}, but f32, f16, bf16 or f64 is wanted", dtype);
  std::size_t count = 1;
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : shape) {
    if (size < 0) base::refuse("shape: {}, but sizes cannot be negative", size);
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(size), &count)) throw std::bad_alloc();
    sizes.push_back(static_cast<std::size_t>(size));
  }
  constexpr std::size_t kLine = 64;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, std::size_t{type.bits} / 8, &bytes) || bytes > SIZE_MAX / 2) throw std::bad_alloc();
  void* data = std::aligned_alloc(kLine, (bytes / kLine + 1) * kLine);
  if (data == nullptr) throw std::bad_alloc();
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return nb::cast(nb::ndarray<nb::array_api>(data, sizes.size(), sizes.data(), owner, nullptr, type));
}

}  // namespace rootdk::python
