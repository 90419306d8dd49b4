// CUDA's bf16 on the host: stored as rootdk::BFloat16, computed with as float.
#pragma once

#include "cuda_runtime.h"
#include "rootdk/tensor.h"

struct __nv_bfloat16 {
  rootdk::BFloat16 value;

  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float x) : value(rootdk::to_bfloat16(static_cast<double>(x))) {}
  operator float() const { return rootdk::to_float(value); }
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
