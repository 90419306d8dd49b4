// CUDA's half on the host: stored as rootdk::Float16, computed with as float.
#pragma once

#include "cuda_runtime.h"
#include "rootdk/tensor.h"

struct __half {
  rootdk::Float16 value;

  __half() = default;
  explicit __half(float x) : value(rootdk::to_float16(static_cast<double>(x))) {}
  operator float() const { return rootdk::to_float(value); }
};

inline __half __float2half_rn(float x) { return __half(x); }
