// Strides for each layout, guard elements, and conversion of every dtype to double and back.
#include "support/buffer.h"

#include <algorithm>

#include "base/element.h"

namespace rootdk::test {

namespace {
constexpr std::int64_t kGuard = 64;  // elements on either side
constexpr std::byte kGuardByte{0xA5};
}  // namespace

Buffer::Buffer(DType dtype, const Extents& shape, Layout layout) {
  const auto [b, h, l, d] = shape;
  view_.dtype = dtype;
  view_.shape = shape;
  std::int64_t count = b * h * l * d, first = 0;
  switch (layout) {
    case Layout::kRowMajor:
    case Layout::kCount: view_.strides = row_major(shape); break;
    case Layout::kTokensFirst: view_.strides = {l * h * d, d, h * d, 1}; break;
    case Layout::kPadded:
      view_.strides = {h * l * (d + 3), l * (d + 3), d + 3, 1};
      count = b * h * l * (d + 3);
      break;
    case Layout::kStridedDim:
      view_.strides = {h * l * d * 2, l * d * 2, d * 2, 2};
      count *= 2;
      break;
    case Layout::kReversed:
      view_.strides = {h * l * d, l * d, -d, 1};
      first = l > 0 ? (l - 1) * d : 0;
      break;
  }
  bytes_.assign(static_cast<std::size_t>((count + 2 * kGuard) * size_of(dtype)), kGuardByte);
  offset_ = (kGuard + first) * size_of(dtype);
}

Tensor Buffer::tensor() {
  Tensor t = view_;
  if (!bytes_.empty()) t.data = data();
  return t;
}

ConstTensor Buffer::tensor() const {
  Tensor t = view_;
  if (!bytes_.empty()) t.data = data();
  return t;
}

double Buffer::get(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d) const {
  return base::read(tensor(), b, h, l, d);
}

void Buffer::set(std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d, double value) {
  base::write(tensor(), b, h, l, d, value);
}

void Buffer::fill_normal(Rng& rng, double scale) {
  const Tensor t = tensor();
  for_each_row([&](std::int64_t offset) {
    for (std::int64_t d = 0; d < view_.shape[3]; ++d)
      base::write(t.dtype, t.data, offset + d * view_.strides[3], scale * rng.normal());
  });
}

void Buffer::fill(double value) {
  const Tensor t = tensor();
  for_each_row([&](std::int64_t offset) {
    for (std::int64_t d = 0; d < view_.shape[3]; ++d)
      base::write(t.dtype, t.data, offset + d * view_.strides[3], value);
  });
}

std::vector<double> Buffer::values() const {
  std::vector<double> out(static_cast<std::size_t>(view_.count()));
  const ConstTensor t = tensor();
  double* to = out.data();
  for_each_row([&](std::int64_t offset) {
    for (std::int64_t d = 0; d < view_.shape[3]; ++d)
      *to++ = base::read(t.dtype, t.data, offset + d * view_.strides[3]);
  });
  return out;
}

Buffer Buffer::as_f64() const {
  if (empty()) return {};
  Buffer out(DType::kF64, view_.shape);
  const std::vector<double> all = values();
  std::copy(all.begin(), all.end(), reinterpret_cast<double*>(out.data()));
  return out;
}

bool Buffer::guards_intact() const {
  // With every element painted over as a guard, only guards are left.
  std::vector<std::byte> painted = bytes_;
  const std::int64_t size = size_of(view_.dtype), dim = view_.shape[3], stride = view_.strides[3];
  for_each_row([&](std::int64_t offset) {
    std::byte* row = painted.data() + offset_ + offset * size;
    if (stride == 1) std::fill_n(row, dim * size, kGuardByte);
    else
      for (std::int64_t d = 0; d < dim; ++d) std::fill_n(row + d * stride * size, size, kGuardByte);
  });
  return std::all_of(painted.begin(), painted.end(), [](std::byte b) { return b == kGuardByte; });
}

}  // namespace rootdk::test
