// Rows of a tensor, row-major, whatever order, byte order or packing the file has.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/contents.h"

namespace rootdk::checkpoint {

struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The arguments have been checked: the rows exist, `out` has their size, the encoding can be read as Out.
template <class Out>
void read_rows(const Source& source, const TensorInfo& info, const Deflated* deflated, Rows rows, std::span<Out> out);

extern template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<float>);
extern template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<double>);
extern template void read_rows(const Source&, const TensorInfo&, const Deflated*, Rows, std::span<std::int64_t>);

}  // namespace rootdk::checkpoint
