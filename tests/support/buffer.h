// Memory behind a tensor in a test: any dtype, in one of several layouts, with guard elements around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rootdk/tensor.h"
#include "support/rng.h"

namespace rootdk::test {

enum class Layout {
  kRowMajor,     ///< [batch, heads, length, dim]
  kTokensFirst,  ///< [batch, length, heads, dim]
  kPadded,       ///< rows longer than dim
  kStridedDim,   ///< every second element
  kReversed,     ///< negative stride on the length axis
  kCount
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, const Extents& shape, Layout layout = Layout::kRowMajor);

  Tensor tensor();
  ConstTensor tensor() const;
  bool empty() const { return bytes_.empty(); }

  double get(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d) const;
  void set(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d, double value);
  void fill_normal(Rng& rng, double scale);
  void fill(double value);

  /// All elements in row-major order of the shape.
  std::vector<double> values() const;
  /// The same numbers as f64, row-major.
  Buffer as_f64() const;
  /// Everything, guards included: to move it to another device and back.
  std::span<std::byte> memory() { return bytes_; }
  std::span<const std::byte> memory() const { return bytes_; }
  /// No byte outside the tensor's elements has changed.
  bool guards_intact() const;

 private:
  std::vector<std::byte> bytes_;
  Tensor view_;  ///< data is null; offset_ says where it starts
  std::int64_t offset_ = 0;
  /// Calls visit(element offset of the row) in row-major order.
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (std::int64_t b = 0; b < view_.shape[0]; ++b)
      for (std::int64_t h = 0; h < view_.shape[1]; ++h)
        for (std::int64_t l = 0; l < view_.shape[2]; ++l)
          visit(b * view_.strides[0] + h * view_.strides[1] + l * view_.strides[2]);
  }
  std::byte* data() const { return const_cast<std::byte*>(bytes_.data()) + offset_; }
};

}  // namespace rootdk::test
