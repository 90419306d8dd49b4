// Rows over threads in chunks of a fixed size: what is summed chunk by chunk, in order, has the same bits at any thread
// count.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"

namespace rootdk::nn {

inline constexpr std::int64_t kChunkRows = 64;

constexpr std::int64_t chunks_in(std::int64_t rows, std::int64_t chunk_rows = kChunkRows) {
  return (rows + chunk_rows - 1) / chunk_rows;
}

/// call(chunk, first, last) for rows first … last−1 of every chunk, on whichever thread is free.
template <class Call>
void for_each_chunk(std::int64_t rows, const Call& call, std::int64_t chunk_rows = kChunkRows) {
  base::parallel_tasks(chunks_in(rows, chunk_rows), base::free_threads(), [&](std::int64_t chunk, int) {
    const std::int64_t first = chunk * chunk_rows;
    call(chunk, first, std::min(rows, first + chunk_rows));
  });
}

}  // namespace rootdk::nn
