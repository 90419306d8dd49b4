// Rows reduced by the block of 64 queries.
#pragma once

#include <cstdint>

#include "base/block_record.h"

namespace rootdk::cuda {

/// A block's record from its rows'; `shift` queries of the first block come before this call's. `stream` is a
/// cudaStream_t.
void summarise(const base::RowRecord* rows, base::BlockRecord* blocks, std::int64_t heads, std::int64_t len_q,
               std::int64_t shift, void* stream);

}  // namespace rootdk::cuda
