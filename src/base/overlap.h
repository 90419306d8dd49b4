// Whether two strided tensors share a byte. Interleaved views (packed QKV gradients) overlap in extent but not in
// elements, so extents alone would refuse what is legal.
#pragma once

#include "rootdk/tensor.h"

namespace rootdk::base {

bool overlaps(const ConstTensor& a, const ConstTensor& b);

/// Two different indices of one tensor reach the same element.
bool overlaps_itself(const ConstTensor& t);

}  // namespace rootdk::base
