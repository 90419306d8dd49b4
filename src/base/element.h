// Reading and writing single tensor elements in double, whatever their dtype. For the reference and for edges of
// tensors; kernels convert whole blocks.
#pragma once

#include <cstdint>

#include "rootdk/tensor.h"

namespace rootdk::base {

/// Element index of [b, h, l, d]; an axis of size 1 is broadcast.
template <class Void>
inline std::int64_t offset_of(const BasicTensor<Void>& t, std::int64_t b, std::int64_t h, std::int64_t l,
                              std::int64_t d) {
  return (t.shape[0] == 1 ? 0 : b * t.strides[0]) + (t.shape[1] == 1 ? 0 : h * t.strides[1]) +
         (t.shape[2] == 1 ? 0 : l * t.strides[2]) + (t.shape[3] == 1 ? 0 : d * t.strides[3]);
}

inline double read(DType dtype, const void* data, std::int64_t offset) {
  switch (dtype) {
    case DType::kF32: return static_cast<double>(static_cast<const float*>(data)[offset]);
    case DType::kF64: return static_cast<const double*>(data)[offset];
    case DType::kF16: return static_cast<double>(to_float(static_cast<const Float16*>(data)[offset]));
    case DType::kBF16: return static_cast<double>(to_float(static_cast<const BFloat16*>(data)[offset]));
    case DType::kBool: return static_cast<const std::uint8_t*>(data)[offset] != 0 ? 1.0 : 0.0;
  }
  return 0;
}

inline void write(DType dtype, void* data, std::int64_t offset, double value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(data)[offset] = static_cast<float>(value); break;
    case DType::kF64: static_cast<double*>(data)[offset] = value; break;
    case DType::kF16: static_cast<Float16*>(data)[offset] = to_float16(value); break;
    case DType::kBF16: static_cast<BFloat16*>(data)[offset] = to_bfloat16(value); break;
    case DType::kBool: static_cast<std::uint8_t*>(data)[offset] = value != 0; break;
  }
}

inline double read(const ConstTensor& t, std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d) {
  return read(t.dtype, t.data, offset_of(t, b, h, l, d));
}

inline void write(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d, double value) {
  write(t.dtype, t.data, offset_of(t, b, h, l, d), value);
}

}  // namespace rootdk::base
