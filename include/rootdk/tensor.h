// Tensor views: non-owning, up to four axes, any strides. Everything rootdk reads or writes is described by one of
// these.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "rootdk/export.h"

namespace rootdk {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kF64, kBool };

enum class Device : std::uint8_t { kCpu, kCuda };

/// Storage types: 16 bits and a name. Arithmetic happens in f32.
struct Float16 {
  std::uint16_t bits = 0;
};
struct BFloat16 {
  std::uint16_t bits = 0;
};

ROOTDK_API Float16 to_float16(double value);    ///< round to nearest, ties to even
ROOTDK_API BFloat16 to_bfloat16(double value);  ///< round to nearest, ties to even
ROOTDK_API float to_float(Float16 value);
ROOTDK_API float to_float(BFloat16 value);

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 8;
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kBool: return 1;
  }
  return 0;
}

ROOTDK_API const char* name_of(DType dtype);

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<bool> = DType::kBool;
template <>
inline constexpr DType kDTypeOf<std::uint8_t> = DType::kBool;

using Extents = std::array<std::int64_t, 4>;

/// Strides, in elements, of a row-major tensor of this shape.
constexpr Extents row_major(const Extents& shape) {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
}

/// A view of [batch, heads, length, dim]. `Void` is `void` (may be written) or `const void`.
/// A null `data` means "absent" wherever a tensor is optional.
template <class Void>
struct BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kCpu;
  Extents shape = {0, 0, 0, 0};
  Extents strides = {0, 0, 0, 0};  ///< in elements; 0 repeats an axis

  constexpr bool present() const { return data != nullptr; }
  constexpr std::int64_t count() const { return shape[0] * shape[1] * shape[2] * shape[3]; }

  /// A tensor that may be written can be read.
  constexpr operator BasicTensor<const void>() const { return {data, dtype, device, shape, strides}; }
};

using Tensor = BasicTensor<void>;
using ConstTensor = BasicTensor<const void>;

/// View of row-major memory laid out [batch, heads, length, dim].
template <class T>
constexpr Tensor tensor(T* data, const Extents& shape) {
  return {data, kDTypeOf<T>, Device::kCpu, shape, row_major(shape)};
}
template <class T>
constexpr ConstTensor tensor(const T* data, const Extents& shape) {
  return {data, kDTypeOf<T>, Device::kCpu, shape, row_major(shape)};
}

/// The same with strides of your own, in elements: [batch, length, heads, dim] storage, packed QKV, and the like.
template <class T>
constexpr Tensor tensor(T* data, const Extents& shape, const Extents& strides) {
  return {data, kDTypeOf<T>, Device::kCpu, shape, strides};
}
template <class T>
constexpr ConstTensor tensor(const T* data, const Extents& shape, const Extents& strides) {
  return {data, kDTypeOf<T>, Device::kCpu, shape, strides};
}

}  // namespace rootdk
