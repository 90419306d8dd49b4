// Blocks of tensors on their way in and out: any dtype and stride on the outside, f32 inside. The storage dtype ends
// here.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/call.h"
#include "base/element.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BLOCKS_INL_H_
#undef ROOTDK_CPU_BLOCKS_INL_H_
#else
#define ROOTDK_CPU_BLOCKS_INL_H_
#endif

#include "base/bits.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

// Written with integer operations and no branches so that compilers vectorise the loops below for every target.
HWY_INLINE float widen_f16(std::uint16_t h) {
  const std::uint32_t magnitude = (h & 0x7fffu) << 13;
  const std::uint32_t bits = base::bit_cast<std::uint32_t>(base::bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u | magnitude : 0;  // inf, NaN
  return base::bit_cast<float>(((h & 0x8000u) << 16) | bits | special);
}

HWY_INLINE float widen_bf16(std::uint16_t h) { return base::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

// Round to nearest, ties to even.
HWY_INLINE std::uint16_t narrow_f16(float value) {
  const std::uint32_t bits = base::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1)) >> 13;
  // Adding 1/2 lines the last bit up with f16's smallest step, 2^−24.
  const std::uint32_t subnormal = base::bit_cast<std::uint32_t>(base::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u  ? large
                                            : magnitude < 0x38800000u ? subnormal
                                                                      : normal));
}

HWY_INLINE std::uint16_t narrow_bf16(float value) {
  const std::uint32_t bits = base::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

HWY_INLINE float widen_f32(float x) { return x; }

#define ROOTDK_LOAD_LOOP(type, widen)                                                                    \
  {                                                                                                      \
    const type* HWY_RESTRICT from = static_cast<const type*>(data) + offset;                             \
    if (stride == 1) {                                                                                   \
      for (std::size_t i = 0; i < n; ++i) out[i] = widen(from[i]);                                       \
    } else {                                                                                             \
      for (std::size_t i = 0; i < n; ++i) out[i] = widen(from[static_cast<std::ptrdiff_t>(i) * stride]); \
    }                                                                                                    \
  }                                                                                                      \
  break

/// n elements, `stride` apart, as f32.
HWY_INLINE void load_row(DType dtype, const void* data, std::int64_t offset, std::int64_t stride, std::size_t n,
                         float* HWY_RESTRICT out) {
  switch (dtype) {
    case DType::kF32: ROOTDK_LOAD_LOOP(float, widen_f32);
    case DType::kF16: ROOTDK_LOAD_LOOP(std::uint16_t, widen_f16);
    case DType::kBF16: ROOTDK_LOAD_LOOP(std::uint16_t, widen_bf16);
    case DType::kBool:
    case DType::kF64: break;  // the reference's
  }
}
#undef ROOTDK_LOAD_LOOP

#define ROOTDK_STORE_LOOP(type, narrow)                                                                \
  {                                                                                                    \
    type* HWY_RESTRICT to = static_cast<type*>(data) + offset;                                         \
    if (stride == 1) {                                                                                 \
      for (std::size_t i = 0; i < n; ++i) to[i] = narrow(in[i]);                                       \
    } else {                                                                                           \
      for (std::size_t i = 0; i < n; ++i) to[static_cast<std::ptrdiff_t>(i) * stride] = narrow(in[i]); \
    }                                                                                                  \
  }                                                                                                    \
  break

HWY_INLINE void store_row(DType dtype, void* data, std::int64_t offset, std::int64_t stride, std::size_t n,
                          const float* HWY_RESTRICT in) {
  switch (dtype) {
    case DType::kF32: ROOTDK_STORE_LOOP(float, widen_f32);
    case DType::kF16: ROOTDK_STORE_LOOP(std::uint16_t, narrow_f16);
    case DType::kBF16: ROOTDK_STORE_LOOP(std::uint16_t, narrow_bf16);
    case DType::kBool:
    case DType::kF64: break;  // the reference's
  }
}
#undef ROOTDK_STORE_LOOP

/// Rows of f32, `stride` apart.
struct Matrix {
  const float* data;
  std::size_t stride;
};

/// Rows of any dtype whose elements lie side by side, `stride` elements apart; null if they do not lie like that.
struct StoredMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t stride = 0;
};

/// Keys key0 … of one head as they lie in memory.
HWY_INLINE StoredMatrix find_keys(const Problem& problem, const ConstTensor& t, std::int64_t batch, std::int64_t head,
                                  std::int64_t key0, std::size_t keys) {
  const base::KeyPlace first = base::place_of_key(problem, t, batch, key0);
  const bool consecutive = !problem.paged || first.row + static_cast<std::int64_t>(keys) <= t.shape[2];
  if (!consecutive || (t.strides[3] != 1 && t.shape[3] != 1) || t.strides[2] < 0) return {};
  const std::int64_t offset = base::offset_of(t, first.item, head, first.row, 0) * size_of(t.dtype);
  return {static_cast<const std::byte*>(t.data) + offset, t.dtype, static_cast<std::size_t>(t.strides[2])};
}

/// The same as f32: as they lie in memory where that is possible, else copied to `scratch` [keys, dim].
HWY_INLINE Matrix load_keys(const Problem& problem, const ConstTensor& t, std::int64_t batch, std::int64_t head,
                            std::int64_t key0, std::size_t keys, float* scratch) {
  const auto dim = static_cast<std::size_t>(t.shape[3]);
  const StoredMatrix stored = find_keys(problem, t, batch, head, key0, keys);
  if (stored.data && t.dtype == DType::kF32) return {static_cast<const float*>(stored.data), stored.stride};
  for (std::size_t k = 0; k < keys; ++k) {
    const base::KeyPlace place = base::place_of_key(problem, t, batch, key0 + static_cast<std::int64_t>(k));
    load_row(t.dtype, t.data, base::offset_of(t, place.item, head, place.row, 0), t.strides[3], dim, scratch + k * dim);
  }
  return {scratch, dim};
}

HWY_INLINE bool all_finite(Matrix x, std::size_t rows, std::size_t dim) {
  std::uint32_t bad = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t d = 0; d < dim; ++d)
      bad |= (base::bit_cast<std::uint32_t>(x.data[r * x.stride + d]) & 0x7f800000u) == 0x7f800000u;
  return bad == 0;
}

HWY_INLINE bool all_finite(const StoredMatrix& x, std::size_t rows, std::size_t dim) {
  if (x.dtype == DType::kF32) return all_finite(Matrix{static_cast<const float*>(x.data), x.stride}, rows, dim);
  const std::uint32_t exponent = x.dtype == DType::kF16 ? 0x7c00u : 0x7f80u;
  std::uint32_t bad = 0;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t d = 0; d < dim; ++d)
      bad |= (static_cast<const std::uint16_t*>(x.data)[r * x.stride + d] & exponent) == exponent;
  return bad == 0;
}

/// The tile's rows of t as f32, row-major with `stride`.
HWY_INLINE void load_tile_rows(const ConstTensor& t, const Lanes& lanes, float* out, std::size_t stride) {
  for (int r = 0; r < lanes.count; ++r)
    load_row(t.dtype, t.data, base::offset_of(t, lanes.batch, lanes.head[r], lanes.query[r], 0), t.strides[3],
             static_cast<std::size_t>(t.shape[3]), out + static_cast<std::size_t>(r) * stride);
}

/// And back.
HWY_INLINE void store_tile_rows(const Tensor& t, const Lanes& lanes, const float* in, std::size_t stride) {
  for (int r = 0; r < lanes.count; ++r)
    store_row(t.dtype, t.data, base::offset_of(t, lanes.batch, lanes.head[r], lanes.query[r], 0), t.strides[3],
              static_cast<std::size_t>(t.shape[3]), in + static_cast<std::size_t>(r) * stride);
}

/// The tile's rows where they lie, if that is as rows of f32 an even distance apart; else null.
template <class Void>
HWY_INLINE auto find_tile_rows(const BasicTensor<Void>& t, const Lanes& lanes) {
  using Float = std::conditional_t<std::is_const_v<Void>, const float, float>;
  struct Rows {
    Float* data;
    std::size_t stride;
  };
  const bool one_head = lanes.head[0] == lanes.head[lanes.count - 1];
  if (t.dtype != DType::kF32 || !one_head || (t.strides[3] != 1 && t.shape[3] != 1) || t.strides[2] < 0) return Rows{};
  return Rows{static_cast<Float*>(t.data) + base::offset_of(t, lanes.batch, lanes.head[0], lanes.query[0], 0),
              static_cast<std::size_t>(t.strides[2])};
}

/// in [count, dim] row-major → out [dim][width] with lanes beyond count zeroed.
HWY_INLINE void to_lanes(const float* in, std::size_t stride, std::size_t count, std::size_t dim, float* out,
                         std::size_t width) {
  if (count < width) std::memset(out, 0, dim * width * sizeof(float));
  transpose(in, stride, count, dim, out, width);
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
