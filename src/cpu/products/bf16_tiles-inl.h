// A key block on its way through the products of bf16.h: what forward-inl.h calls in place of the f32 tiles.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/call.h"
#include "cpu/products/bf16.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_PRODUCTS_BF16_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_PRODUCTS_BF16_TILES_INL_H_
#undef ROOTDK_CPU_PRODUCTS_BF16_TILES_INL_H_
#else
#define ROOTDK_CPU_PRODUCTS_BF16_TILES_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/products/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

HWY_INLINE Bf16Rows bf16_rows(const StoredMatrix& x) { return {static_cast<const std::uint16_t*>(x.data), x.stride}; }

HWY_INLINE void copy_bf16(const ConstTensor& t, std::int64_t offset, std::uint16_t* out) {
  const std::uint16_t* from = static_cast<const std::uint16_t*>(t.data) + offset;
  for (std::int64_t d = 0; d < t.shape[3]; ++d) out[d] = from[d * t.strides[3]];
}

/// Keys as they lie in memory where that is possible and their number needs no padding, else a copy in `scratch`.
HWY_INLINE StoredMatrix bring_bf16(const Problem& problem, const ConstTensor& t, const RowGroup& group,
                                   std::int64_t key0, std::size_t keys, std::size_t step, void* scratch) {
  const auto dim = static_cast<std::size_t>(t.shape[3]);
  const StoredMatrix stored = find_keys(problem, t, group.batch, group.kv_head, key0, keys);
  if (stored.data && keys % step == 0) return stored;
  auto* rows = static_cast<std::uint16_t*>(scratch);
  for (std::size_t k = 0; k < keys; ++k) {
    const base::KeyPlace place = base::place_of_key(problem, t, group.batch, key0 + static_cast<std::int64_t>(k));
    copy_bf16(t, base::offset_of(t, place.item, group.kv_head, place.row, 0), rows + k * dim);
  }
  std::memset(rows + keys * dim, 0, (round_up(keys, step) - keys) * dim * sizeof(std::uint16_t));
  return {rows, DType::kBF16, dim};
}

/// Queries, not scaled: [dim/2][width] pairs, or [row][dim] in a narrow plan.
HWY_INLINE void load_bf16_queries(const ConstTensor& q, const Lanes& lanes, bool narrow, float* scratch, float* out) {
  const auto dim = static_cast<std::size_t>(q.shape[3]), count = static_cast<std::size_t>(lanes.count);
  auto* rows = reinterpret_cast<std::uint16_t*>(narrow ? out : scratch);
  for (std::size_t r = 0; r < count; ++r)
    copy_bf16(q, base::offset_of(q, lanes.batch, lanes.head[r], lanes.query[r], 0), rows + r * dim);
  // A pair travels as the f32 of the same bits.
  if (!narrow) to_lanes(scratch, dim / 2, count, dim / 2, out, static_cast<std::size_t>(width_of(lanes.count)));
}

HWY_INLINE bool is_finite_bf16(std::uint16_t x) { return (x & 0x7f80u) != 0x7f80u; }

/// A copy with 0 in place of what is not finite.
HWY_INLINE Bf16Rows finite_part(Bf16Rows v, std::size_t keys, std::size_t dim, std::uint16_t* out) {
  for (std::size_t k = 0; k < keys; ++k)
    for (std::size_t d = 0; d < dim; ++d) {
      const std::uint16_t x = v.data[k * v.stride + d];
      out[k * dim + d] = is_finite_bf16(x) ? x : std::uint16_t{0};
    }
  return {out, dim};
}

/// Where things of a row are: a pair of weights at row·p_row + pair·p_pair, element d of the output at row·o_row +
/// d·o_dim.
struct RowSteps {
  std::size_t p_row, p_pair, o_row, o_dim;
};

/// o += p·v for every v that is not finite, where p is not 0. Rare, so simple.
HWY_INLINE void add_not_finite(const std::uint32_t* p, std::size_t rows, Bf16Rows v, std::size_t keys, std::size_t dim,
                               RowSteps at, float* o) {
  for (std::size_t k = 0; k < keys; ++k)
    for (std::size_t d = 0; d < dim; ++d) {
      const std::uint16_t x = v.data[k * v.stride + d];
      if (is_finite_bf16(x)) continue;
      for (std::size_t r = 0; r < rows; ++r) {
        const std::uint32_t pair = p[r * at.p_row + k / 2 * at.p_pair];
        const float weight = widen_bf16(static_cast<std::uint16_t>(k % 2 == 0 ? pair : pair >> 16));
        if (weight != 0) o[r * at.o_row + d * at.o_dim] += weight * widen_bf16(x);
      }
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
