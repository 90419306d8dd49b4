// Tensor maps: how TMA sees a tensor.
#pragma once

#include <cuda.h>

#include "rootdk/tensor.h"

namespace rootdk::cuda {

/// Whether it can read this one at all.
bool can_map(const ConstTensor& t);

/// Boxes of `rows` rows by 64 elements, swizzled by 128 bytes. The cache fetches lines of 128 bytes: pairs of them
/// cost a tenth of the memory's bandwidth (H200).
CUtensorMap tensor_map(const ConstTensor& t, int rows);

}  // namespace rootdk::cuda
