// The largest score and where it is, as one number, so that maxima of such numbers find both.
#pragma once

namespace rootdk::cuda {

/// A score and the number of its row or key: the largest of such pairs is the first number of those that have the
/// largest score. Never 0.
__device__ __forceinline__ unsigned long long first_of_largest(float score, int number) {
  const unsigned bits = __float_as_uint(score),
                 order = bits >> 31 ? ~bits : bits | 0x80000000u;  // integers in the order of the floats
  return static_cast<unsigned long long>(order) << 32 | ~static_cast<unsigned>(number);
}
__device__ __forceinline__ int number_of(unsigned long long pair) {
  return static_cast<int>(~static_cast<unsigned>(pair));
}

}  // namespace rootdk::cuda
