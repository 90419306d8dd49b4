// Arrays of any framework as tensor views: zero copy, through DLPack or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string_view>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk::python {

namespace nb = nanobind;

using InArray = nb::ndarray<nb::ro>;
using OutArray = nb::ndarray<>;

/// Keeps the memory alive as long as the view is used.
struct Input {
  InArray array;
  ConstTensor view;
};
struct Output {
  OutArray array;
  Tensor view;
};

/// Raises TypeError if it is no array, ValueError if it does not have four axes or is of a dtype rootdk has no name
/// for. If it lives on a GPU, the view says so, and the engine refuses it.
Input input(std::string_view name, nb::handle object);
Output output(std::string_view name, nb::handle object);
std::optional<Input> optional_input(std::string_view name, nb::handle object);  ///< None: absent
std::optional<Output> optional_output(std::string_view name, nb::handle object);

inline ConstTensor view_of(const std::optional<Input>& array) { return array ? array->view : ConstTensor{}; }
inline Tensor view_of(const std::optional<Output>& array) { return array ? array->view : Tensor{}; }

/// New memory that Python owns, for frameworks that numpy cannot allocate for: an object with __dlpack__.
nb::object empty(const std::vector<std::int64_t>& shape, const std::string& dtype);

/// [batch, heads] as a numpy array of its own.
template <class T>
nb::object numpy_array(std::vector<T> values, std::vector<std::size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), shape.size(), shape.data(), owner));
}

}  // namespace rootdk::python
