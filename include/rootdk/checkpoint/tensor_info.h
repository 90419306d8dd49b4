// Where a tensor of a checkpoint lies, and what it is. Plain data; changing a copy changes nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/checkpoint/encoding.h"

namespace rootdk::checkpoint {

enum class ByteOrder : std::uint8_t { kLittle, kBig };

enum class Order : std::uint8_t {
  kRowMajor,     ///< the last axis runs fastest ("C order")
  kColumnMajor,  ///< the first axis runs fastest ("Fortran order"); .npy only
};

struct TensorInfo {
  std::string name;  ///< UTF-8 without control characters
  Encoding encoding = Encoding::kF32;
  /// Outermost axis first, also where the file counts from the inside (GGUF); may hold 0
  std::vector<std::int64_t> shape;
  std::size_t file = 0;      ///< which of Checkpoint::files()
  std::uint64_t offset = 0;  ///< of its first byte in that file
  std::uint64_t bytes = 0;   ///< of its numbers; a compressed tensor takes fewer in the file
  ByteOrder byte_order = ByteOrder::kLittle;
  Order order = Order::kRowMajor;
  bool compressed = false;  ///< a deflated entry of an .npz: no view, and reading begins at its start every time

  /// A row is the last axis: [4096, 11008] has 4096 rows, [8, 4096, 11008] has 32768, a vector or a single number has
  /// one.
  std::int64_t rows() const {
    std::int64_t count = 1;
    for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) count *= shape[axis];
    return count;
  }
  std::int64_t width() const { return shape.empty() ? 1 : shape.back(); }
};

}  // namespace rootdk::checkpoint
