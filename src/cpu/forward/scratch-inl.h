// What a thread works with: a task's rows and their states, a block of keys, room for a tile of scores.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "base/call.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_SCRATCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_SCRATCH_INL_H_
#undef ROOTDK_CPU_FORWARD_SCRATCH_INL_H_
#else
#define ROOTDK_CPU_FORWARD_SCRATCH_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/forward/state-inl.h"
#include "cpu/products/bf16_tiles-inl.h"
#include "cpu/products/wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// K and V of some keys, ready to use.
struct KeyBlock {
  std::int64_t key0;
  std::size_t keys;
  StoredMatrix k, v;             ///< f32 but for narrow tiles, which read some dtypes as stored, and products of bf16
  bool fresh = true;             ///< no tile has read it yet
  const void* packed = nullptr;  ///< the rows that scratch.packed was made of
  int v_finite = -1;             ///< unknown until a tile that hides keys asks
};

struct ForwardScratch {
  const Bf16Products* bf16;  ///< null: everything is multiplied in f32
  float* qt;  ///< [tiles][dim_qk][width], scaled by c (as load_bf16_queries leaves them for products of bf16)
  Lanes* lanes;
  TileState* states;
  float *s, *additive, *factor, *rows, *k, *v;
  float* turned;                   ///< a narrow tile's scores in the lanes
  float* best;                     ///< largest score that a task has met: rows that stay below it need no argmax
  std::uint16_t *packed, *finite;  ///< V for products of bf16: packed, and without what is not finite

  static ForwardScratch take(base::Arena& arena, const Plan& plan, const Bf16Products* bf16) {
    const Shape& s = plan.shape;
    const std::int64_t tiles = plan.rows_per_task / plan.tile_rows;
    const std::int64_t tile = plan.tile_keys * (plan.narrow ? kLanes : kTileRows);
    ForwardScratch scratch{};
    scratch.bf16 = bf16;
    scratch.qt = arena.take<float>(tiles * s.dim_qk * kTileRows);
    scratch.lanes = arena.take<Lanes>(tiles);
    scratch.states = arena.take<TileState>(tiles);
    for (std::int64_t t = 0; t < tiles && plan.key_splits <= 1; ++t) {  // else they outlive the task, and lie elsewhere
      const TileState state = TileState::take(arena, plan);
      if (scratch.states) scratch.states[t] = state;
    }
    scratch.s = arena.take<float>(tile);
    if (plan.narrow) scratch.turned = arena.take<float>(tile);
    scratch.best = arena.take<float>(1);
    scratch.additive = plan.problem.mask.has_dense_part() ? arena.take<float>(tile) : nullptr;
    scratch.factor = plan.problem.dropout.p > 0 ? arena.take<float>(tile) : nullptr;
    scratch.rows = arena.take<float>(std::max(kTileRows * std::max(s.dim_qk, s.dim_v), tile));
    scratch.k = arena.take<float>(plan.tile_keys * s.dim_qk);
    scratch.v = arena.take<float>(plan.tile_keys * s.dim_v);
    if (bf16) scratch.finite = arena.take<std::uint16_t>(plan.tile_keys * s.dim_v);
    if (bf16 && !plan.narrow)
      scratch.packed = arena.take<std::uint16_t>(static_cast<std::int64_t>(
          bf16->packed_values(static_cast<std::size_t>(plan.tile_keys), static_cast<std::size_t>(s.dim_v))));
    return scratch;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
