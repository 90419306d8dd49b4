// Which key has the largest score of a row.
#pragma once

#include <cuda_runtime.h>

#include "cuda/common/view.h"

namespace rootdk::cuda {

/// What find_keys goes by.
struct KeySearch {
  const unsigned long long* largest = nullptr;  ///< of each head's warps; null: the key of each row is wanted
  int warps = 0;
  const int* ready =
      nullptr;  ///< if there, the search begins when it is not 0, instead of at the end of the kernel before
  int block_keys = 0;
};

/// The kernel only knows in which block of keys a row's maximum is: finds the key, of the row that has the head's, or
/// of all rows. Starts beside the kernel before it (programmatic dependent launch).
void find_keys(const ForwardView& view, const KeySearch& search, DType dtype, cudaStream_t stream);

}  // namespace rootdk::cuda
