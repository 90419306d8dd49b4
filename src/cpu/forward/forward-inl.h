// The fused forward kernel: FlashAttention-2's loop (Dao 2023) for the CPU. A task is a run of query rows; it walks
// over the key blocks those rows can see:
//
//   S = K·Qᵀ  →  passes (cap, transform, bias, mask)  →  softmax step (moves the maximum)  →  O = O·r + V·P
//
// Several tiles of rows share each block of K and V while it is in cache (and converted to f32). Long key lists with
// few queries are split; parts are merged in order.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/arena.h"
#include "base/call.h"
#include "base/parallel.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_FORWARD_INL_H_
#undef ROOTDK_CPU_FORWARD_FORWARD_INL_H_
#else
#define ROOTDK_CPU_FORWARD_FORWARD_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/forward/block-inl.h"
#include "cpu/forward/finish-inl.h"
#include "cpu/forward/scratch-inl.h"
#include "cpu/forward/state-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/products/bf16_tiles-inl.h"
#include "cpu/products/narrow-inl.h"
#include "cpu/statistics/causes-inl.h"
#include "cpu/statistics/second_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Keys as the plan's tiles read them; products of bf16 may want a multiple of `bf16_step` (0: they are not used).
HWY_INLINE StoredMatrix bring_keys(const Plan& plan, std::size_t bf16_step, const ConstTensor& t, const RowGroup& group,
                                   std::int64_t key0, std::size_t keys, float* scratch) {
  if (bf16_step != 0) return bring_bf16(plan.problem, t, group, key0, keys, bf16_step, scratch);
  if (plan.narrow && narrow_reads(t.dtype)) {
    const StoredMatrix stored = find_keys(plan.problem, t, group.batch, group.kv_head, key0, keys);
    if (stored.data) return stored;
  }
  const Matrix matrix = load_keys(plan.problem, t, group.batch, group.kv_head, key0, keys, scratch);
  return {matrix.data, DType::kF32, matrix.stride};
}

/// Keys [key_from, key_to) for every tile of a task.
HWY_INLINE void walk_keys(const base::ForwardCall& call, const RowGroup& group, std::int64_t key_from,
                          std::int64_t key_to, std::int64_t tiles, const ForwardScratch& scratch) {
  const Shape& shape = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const Passes passes(problem);
  std::int64_t first = key_to, last = key_from;
  for (std::int64_t t = 0; t < tiles; ++t) {
    first = std::min(first, scratch.lanes[t].first_key);
    last = std::max(last, scratch.lanes[t].last_key);
  }
  const std::int64_t tile_keys = call.plan.tile_keys;
  *scratch.best = -std::numeric_limits<float>::infinity();
  first = std::max(first, key_from) / tile_keys * tile_keys;  // the grid of blocks does not depend on who looks
  last = std::min(last, key_to);
  for (std::int64_t key0 = first; key0 < last; key0 += tile_keys) {
    KeyBlock block{key0, static_cast<std::size_t>(std::min(tile_keys, last - key0)), {}, {}};
    bool loaded = false;
    for (std::int64_t t = 0; t < tiles; ++t) {
      const Lanes& lanes = scratch.lanes[t];
      if (!lanes.sees_block(key0, static_cast<std::int64_t>(block.keys))) continue;
      if (!loaded) {
        const std::size_t any = scratch.bf16 ? 1 : 0,
                          step = scratch.bf16 && !call.plan.narrow ? scratch.bf16->key_step : any;
        block.k = bring_keys(call.plan, step, call.in.k, group, key0, block.keys, scratch.k);
        block.v =
            bring_keys(call.plan, any, call.in.v, group, key0, block.keys, scratch.v);  // padded when it is packed
        loaded = true;
      }
      const float* qt = scratch.qt + t * shape.dim_qk * kTileRows;
      if (call.plan.narrow) {
        forward_narrow_block(call, passes, lanes, qt, scratch.states[t], block, scratch);
        continue;
      }
      switch (width_of(lanes.count) / kLanes) {
        case 1: forward_block<1>(call, passes, lanes, qt, scratch.states[t], block, scratch); break;
        case 2: forward_block<2>(call, passes, lanes, qt, scratch.states[t], block, scratch); break;
        case 3:
          if constexpr (kMr > 2) forward_block<3>(call, passes, lanes, qt, scratch.states[t], block, scratch);
          break;
        case 4:
          if constexpr (kMr > 3) forward_block<4>(call, passes, lanes, qt, scratch.states[t], block, scratch);
          break;
      }
      block.fresh = false;
    }
  }
}

/// Brings the queries of a tile into the lanes, scaled.
HWY_INLINE void load_queries(const base::ForwardCall& call, const ForwardScratch& scratch, std::int64_t t) {
  const Shape& shape = call.plan.shape;
  const Lanes& lanes = scratch.lanes[t];
  const int count = lanes.count, width = width_of(count);
  const auto dim = static_cast<std::size_t>(shape.dim_qk);
  float* qt = scratch.qt + t * shape.dim_qk * kTileRows;
  if (scratch.bf16) return load_bf16_queries(call.in.q, lanes, call.plan.narrow, scratch.rows, qt);
  if (call.plan.narrow) {
    load_tile_rows(call.in.q, lanes, qt, dim);
    for (int r = 0; r < count; ++r)
      for (std::size_t d = 0; d < dim; ++d) qt[static_cast<std::size_t>(r) * dim + d] *= lanes.scale[r];
    return;
  }
  const auto found = find_tile_rows(call.in.q, lanes);
  if (!found.data) load_tile_rows(call.in.q, lanes, scratch.rows, dim);
  to_lanes(found.data ? found.data : scratch.rows, found.data ? found.stride : dim, static_cast<std::size_t>(count),
           dim, qt, static_cast<std::size_t>(width));
  scale_lanes(lanes.scale, static_cast<std::size_t>(width), dim, qt);
}

/// How a problem falls into tasks: row groups × runs of rows × key splits.
struct ForwardTasks {
  std::int64_t runs_per_group, splits, keys_per_split, tiles_per_run, total;

  explicit ForwardTasks(const Plan& plan) {
    const std::int64_t rows = plan.pack_group ? plan.shape.group() * plan.shape.len_q : plan.shape.len_q;
    runs_per_group = (rows + plan.rows_per_task - 1) / plan.rows_per_task;
    splits = plan.key_splits;
    tiles_per_run = plan.rows_per_task / plan.tile_rows;
    const std::int64_t blocks = (plan.shape.len_kv + plan.tile_keys - 1) / plan.tile_keys;
    keys_per_split = (blocks + splits - 1) / splits * plan.tile_keys;
    total = row_group_count(plan) * runs_per_group;
  }

  std::int64_t state_index(std::int64_t task, std::int64_t split, std::int64_t tile) const {
    return (task * splits + split) * tiles_per_run + tile;
  }
};

/// Finds out which rows a task has; returns how many tiles they fill.
HWY_INLINE std::int64_t seat_rows(const Plan& plan, const ForwardTasks& tasks, const RowGroup& group, std::int64_t task,
                                  const ForwardScratch& scratch) {
  // Under a causal mask later rows see more: longest first keeps the threads level to the end.
  const std::int64_t run = tasks.runs_per_group - 1 - task % tasks.runs_per_group;
  const std::int64_t first_row = run * plan.rows_per_task;
  const std::int64_t rows = std::min(plan.rows_per_task, group.rows - first_row);
  const std::int64_t tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const int count = static_cast<int>(std::min(plan.tile_rows, rows - t * plan.tile_rows));
    scratch.lanes[t].fill(plan, group, first_row + t * plan.tile_rows, count, width_of(count));
  }
  return tiles;
}

/// One run of rows over all its keys.
HWY_NOINLINE void forward_task(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                               const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const RowGroup group = row_group(plan, task / tasks.runs_per_group);
  const std::int64_t tiles = seat_rows(plan, tasks, group, task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    load_queries(call, scratch, t);
    scratch.states[t].seat(plan, scratch.lanes[t]);
    scratch.states[t].clear(plan);
  }
  walk_keys(call, group, 0, plan.shape.len_kv, tiles, scratch);
  const Passes passes(plan.problem);
  for (std::int64_t t = 0; t < tiles; ++t) finish_tile(call, passes, scratch.lanes[t], scratch.states[t], scratch.rows);
}

/// The same over one split of the keys, into states that outlive the task: [tasks][splits][tiles] at `states`.
HWY_NOINLINE void forward_split(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                                std::int64_t split, std::byte* states, const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const RowGroup group = row_group(plan, task / tasks.runs_per_group);
  const std::int64_t tiles = seat_rows(plan, tasks, group, task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    load_queries(call, scratch, t);
    scratch.states[t] = TileState::at(states, tasks.state_index(task, split, t), plan);
    scratch.states[t].seat(plan, scratch.lanes[t]);
    scratch.states[t].clear(plan);
  }
  const std::int64_t from = split * tasks.keys_per_split;
  walk_keys(call, group, from, std::min(from + tasks.keys_per_split, plan.shape.len_kv), tiles, scratch);
}

HWY_NOINLINE void merge_splits(const base::ForwardCall& call, const ForwardTasks& tasks, std::int64_t task,
                               std::byte* states, const ForwardScratch& scratch) {
  const Plan& plan = call.plan;
  const std::int64_t tiles = seat_rows(plan, tasks, row_group(plan, task / tasks.runs_per_group), task, scratch);
  for (std::int64_t t = 0; t < tiles; ++t) {
    TileState total = TileState::at(states, tasks.state_index(task, 0, t), plan);
    total.seat(plan, scratch.lanes[t]);
    for (std::int64_t split = 1; split < tasks.splits; ++split)
      merge_states(plan, scratch.lanes[t], total, TileState::at(states, tasks.state_index(task, split, t), plan));
    finish_tile(call, Passes(plan.problem), scratch.lanes[t], total, scratch.rows);
  }
}

struct ForwardWorkspace {
  ForwardScratch* scratch;  ///< one a thread
  CausesScratch* causes;    ///< likewise, where they are wanted
  SecondScratch* second;    ///< likewise
  std::byte* states;        ///< TileState [tasks][splits][tiles], when keys are split

  static ForwardWorkspace take(base::Arena& arena, const Plan& plan, const Bf16Products* bf16) {
    const ForwardTasks tasks(plan);
    ForwardWorkspace workspace{};
    workspace.scratch = arena.take<ForwardScratch>(plan.threads);
    for (int t = 0; t < plan.threads; ++t) {
      const ForwardScratch scratch = ForwardScratch::take(arena, plan, bf16);
      if (workspace.scratch) workspace.scratch[t] = scratch;
    }
    if (wants_causes(plan.problem)) {
      workspace.causes = arena.take<CausesScratch>(plan.threads);
      for (int t = 0; t < plan.threads; ++t) {
        const CausesScratch scratch = CausesScratch::take(arena, plan.shape);
        if (workspace.causes) workspace.causes[t] = scratch;
      }
    }
    if (SecondPass::wanted(plan.problem)) {
      workspace.second = arena.take<SecondScratch>(plan.threads);
      for (int t = 0; t < plan.threads; ++t) {
        const SecondScratch scratch = SecondScratch::take(arena, plan);
        if (workspace.second) workspace.second[t] = scratch;
      }
    }
    if (tasks.splits <= 1) return workspace;
    workspace.states = arena.take<std::byte>(tasks.state_index(tasks.total, 0, 0) * TileState::bytes(plan));
    return workspace;
  }
};

/// The kernel with products of bf16, or in f32 where kProducts() is null.
template <const Bf16Products* (*kProducts)()>
std::size_t forward_workspace_bytes(const Plan& plan) {
  base::Arena arena;
  ForwardWorkspace::take(arena, plan, kProducts());
  return arena.used();
}

template <const Bf16Products* (*kProducts)()>
void forward(const base::ForwardCall& call) {
  const Plan& plan = call.plan;
  const ForwardTasks tasks(plan);
  base::Arena arena(call.workspace);
  const ForwardWorkspace workspace = ForwardWorkspace::take(arena, plan, kProducts());
  const Shape& s = plan.shape;
  if (tasks.splits <= 1) {
    base::parallel_tasks(tasks.total, plan.threads, [&](std::int64_t task, int thread) {
      forward_task(call, tasks, task, workspace.scratch[thread]);
    });
  } else {
    base::parallel_tasks(tasks.total * tasks.splits, plan.threads, [&](std::int64_t index, int thread) {
      forward_split(call, tasks, index / tasks.splits, index % tasks.splits, workspace.states,
                    workspace.scratch[thread]);
    });
    base::parallel_tasks(tasks.total, plan.threads, [&](std::int64_t task, int thread) {
      merge_splits(call, tasks, task, workspace.states, workspace.scratch[thread]);
    });
  }
  if (call.causes)
    base::parallel_tasks(s.batch * s.heads_kv, plan.threads, [&](std::int64_t task, int thread) {
      find_causes(call, task / s.heads_kv, task % s.heads_kv, workspace.causes[thread]);
    });
  if (!SecondPass::wanted(plan.problem)) return;
  const SecondPass second(call);
  const std::int64_t blocks = second.blocks();
  base::parallel_tasks(s.batch * s.heads_q * blocks, plan.threads, [&](std::int64_t task, int thread) {
    second.look_at(task / blocks / s.heads_q, task / blocks % s.heads_q, task % blocks, workspace.second[thread]);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
