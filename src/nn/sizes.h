// Arrays against the sizes that a layer wants of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/refuse.h"
#include "nn/linear.h"

namespace rootdk::nn {

/// Rows in an array of rows of `width`; `name` is the array.
inline std::int64_t rows_in(std::string_view name, std::size_t size, std::int64_t width) {
  const auto count = static_cast<std::int64_t>(size);
  if (count % width != 0) base::refuse("{}: {} values, which is not a whole number of rows of {}", name, count, width);
  if (count / width > kMaxExtent)
    base::refuse("{}: {} rows, but at most {} are supported", name, count / width, kMaxExtent);
  return count / width;
}

inline void check_rows(std::string_view name, std::size_t size, std::int64_t rows, std::int64_t width) {
  if (static_cast<std::int64_t>(size) != rows * width)
    base::refuse("{}: {} values, but {} rows of {} are wanted", name, size, rows, width);
}

inline void check_size(std::string_view name, std::int64_t value) {
  if (value < 1 || value > kMaxExtent) base::refuse("{}: {}, but 1 to {} is wanted", name, value, kMaxExtent);
}

}  // namespace rootdk::nn
