// The Hopper backward's blocks: which keys they take in which order, what they load, and how dQ leaves them. The parts that are the same whatever
// the consumers do.
#pragma once

#include "cuda/hopper_backward.h"
#include "cuda/ptx.cuh"
#include "cuda/ptx_bulk.cuh"
#include "cuda/rows.cuh"

namespace rootdk::gpu::back {

template <int kDim_>
struct Tile {
  static constexpr int kDim = kDim_, kRows = backward_rows(kDim), kKeys = backward_keys(kDim), kThreads = 384, kPanels = kDim / 64;
  static constexpr bool kWide = kDim == 256;
  static constexpr int kQueryStages = kWide ? 2 : 3, kGradStages = 2;  ///< of Q, which the next scores need before dK is done with the last; of dO
  static constexpr bool kKeepsWeights = kRows == 64;  ///< in f32 until dS is made of them; else there is room for the rounded ones only
  static constexpr int kProducerRegisters = kDim == 64 ? 40 : 24, kConsumerRegisters = kDim == 64 ? 232 : 240;
  static constexpr int kKeyBytes = kKeys * kDim * 2, kRowBytes = kRows * kDim * 2, kScoreBytes = kKeys * kRows * 2;
  static constexpr int kPartBytes = kWide ? 0 : 64 * 64 * 4;  ///< each warpgroup hands over 64 × 64 of dQᵀ

  // Offsets in shared memory
  static constexpr int kK = 0, kV = kK + kKeyBytes, kQ = kV + kKeyBytes, kDO = kQ + kQueryStages * kRowBytes, kDS = kDO + kGradStages * kRowBytes;
  static constexpr int kDQ = kDS + 2 * kScoreBytes, kRanges = kDQ + 2 * kPartBytes, kLse = kRanges + kQueryStages * kRows * 8, kDelta = kLse + kQueryStages * kRows * 4;
  static constexpr int kSteps = kDelta + kGradStages * kRows * 4, kTask = kSteps + kQueryStages * 32, kTurn = kTask + 32;
  static constexpr int kFullK = kTurn + 16, kFullV = kFullK + 8, kEmptyK = kFullV + 8, kEmptyV = kEmptyK + 8;
  static constexpr int kFullQ = kEmptyV + 8, kEmptyQ = kFullQ + 8 * kQueryStages, kFullDO = kEmptyQ + 8 * kQueryStages, kEmptyDO = kFullDO + 8 * kGradStages;
  static constexpr int kFullDQ = kEmptyDO + 8 * kGradStages, kEmptyDQ = kFullDQ + 16;
  static constexpr int kShown = kEmptyDQ + 16, kSeen = kShown + 16, kBytes = kSeen + 16;  ///< P, where one warpgroup computes it for the other
  static_assert(kBytes <= 232448);
};

/// 128 keys of one key head.
struct Task {
  int index;  ///< −1: no more
  int batch, head, key_tile, steps;
  int start;  ///< the first tile of rows
  bool backwards;
  std::uint32_t parity;  ///< of the task's number in the block; the producer's, which is short of registers
};

/// A tile of query rows of one head, as far as consumers care.
struct Step {
  int tile;  ///< [batch, heads_q, row_tiles]
  int turn;  ///< how many add to its dQ before
  int masked;
  float scale2, ratio;  ///< see HeadScale
};
static_assert(sizeof(Task) <= 32 && sizeof(Step) <= 32);

/// What is added to dQ next.
struct Turn {
  int tile, turn;  ///< tile −1: no more
};

/// Tasks in the order in which they are taken. A block waits for its turn at a tile only behind tasks that were taken before its own, so one of them
/// can always go on.
///
/// Mostly the last keys go first, and each block goes through its rows from the first it sees: blocks that start together are then at different tiles, each
/// a little behind the one before it. Below a causal mask that would leave the longest tasks to the end, so every other set of heads is taken the
/// other way round: longest first, from the last row backwards. As the blocks of one set end one after another, those of the next
/// start one after another, and end together.
///
/// Without a mask all see everything, and there is no such order. Then `ring` blocks start together, spread over the rows, and go round: the first at a
/// tile is the one that starts there. They wait for each other, so all must be running: the launch sees to that. And no block may have two tasks of a ring, or it
/// would wait for itself, so each takes every gridDim-th: a ring is never larger than that. (From a counter, a block with few steps takes its second before others have a first.)
///
/// Above dim 128 nothing is added up, and the longest tasks of a causal mask simply come first.
__device__ __forceinline__ Task place_task(const BackwardArguments& a, int index) {
  const int heads = static_cast<int>(a.f.p.heads_kv);
  if (a.ring > 0) return {index, index / a.key_tiles / heads, index / a.key_tiles % heads, index % a.key_tiles, 0, 0, false, 0};
  const int all = static_cast<int>(a.f.p.batch) * heads, per_set = a.key_tiles * a.near_heads;
  const int set = index / per_set, rest = index % per_set, near = min(a.near_heads, all - set * a.near_heads), head = set * a.near_heads + rest % near;
  Task task{index, head / heads, head % heads, rest / near, 0, 0, a.turns_alternate && set % 2 == 1, 0};
  if (!task.backwards && !a.first_keys_first) task.key_tile = a.key_tiles - 1 - task.key_tile;
  return task;
}

/// Which of 32 tiles of rows see the task's keys, as bits.
__device__ __forceinline__ unsigned visiting(const BackwardArguments& a, int batch, int key_tile, int first) {
  const int m = first + static_cast<int>(threadIdx.x % 32);
  const int2 blocks = m < a.row_tiles ? *reinterpret_cast<const int2*>(a.tiles + batch * a.row_tiles + m) : int2{0, 0};
  return __ballot_sync(~0u, blocks.x <= key_tile && key_tile < blocks.y);
}

/// The ring that a tile of keys belongs to.
struct Ring {
  int first, size;  ///< of its tiles of keys
  __device__ __forceinline__ Ring(const BackwardArguments& a, int key_tile) {
    first = key_tile / a.ring * a.ring;
    size = min(a.ring, a.key_tiles - first);
  }
  __device__ __forceinline__ int start(const BackwardArguments& a, int key_tile) const { return (key_tile - first) * a.row_tiles / size; }
  /// Of the ring, those that start at or before row tile m come first, the nearest of them first of all; then the others, which come round.
  __device__ __forceinline__ int turn(const BackwardArguments& a, int key_tile, int m) const {
    const int before = ((m + 1) * size + a.row_tiles - 1) / a.row_tiles, own = key_tile - first;
    return first + before - 1 - own + (own < before ? 0 : size);
  }
};

/// Both panels of a tile, or the one.
template <class T_>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const CUtensorMap* map, int rows, int row, int head, int batch, std::uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < T_::kPanels; ++panel) copy_box(to + panel * rows * 128, map, panel * 64, row, head, batch, barrier);
}

/// One step's Q, LSE, masks, dO and D, when their places are free.
template <class T_>
__device__ __forceinline__ void load_step(const BackwardArguments& a, std::uint8_t* memory, const volatile Task& task, int m, int head, int turn, bool masked,
                                          unsigned step) {
  constexpr int kRows = T_::kRows;
  const std::uint32_t base = shared_address(memory);
  const int batch = task.batch, tile = (batch * static_cast<int>(a.f.p.heads_q) + head) * a.row_tiles + m;
  {
    const unsigned stage = step % T_::kQueryStages;
    const std::uint32_t full = base + T_::kFullQ + 8 * stage;
    barrier_wait(base + T_::kEmptyQ + 8 * stage, step / T_::kQueryStages & 1 ^ 1);
    *reinterpret_cast<Step*>(memory + T_::kSteps + 32 * stage) = {tile, turn, masked, a.heads ? a.heads[head].scale2 : a.scale2, a.heads ? a.heads[head].ratio : 1};
    barrier_expect(full, T_::kRowBytes + kRows * 4 + (masked ? kRows * 8 : 0));
    copy_rows<T_>(base + T_::kQ + stage * T_::kRowBytes, &a.q, kRows, m * kRows, head, batch, full);
    copy_run(base + T_::kLse + stage * kRows * 4, a.lse + std::int64_t{tile} * kRows, kRows * 4, full);
    if (masked) copy_run(base + T_::kRanges + stage * kRows * 8, a.rows + std::int64_t{batch * a.row_tiles + m} * kRows, kRows * 8, full);
  }
  {
    const unsigned stage = step % T_::kGradStages;
    const std::uint32_t full = base + T_::kFullDO + 8 * stage;
    barrier_wait(base + T_::kEmptyDO + 8 * stage, step / T_::kGradStages & 1 ^ 1);
    barrier_expect(full, T_::kRowBytes + kRows * 4);
    copy_rows<T_>(base + T_::kDO + stage * T_::kRowBytes, &a.d_o, kRows, m * kRows, head, batch, full);
    copy_run(base + T_::kDelta + stage * kRows * 4, a.delta + std::int64_t{tile} * kRows, kRows * 4, full);
  }
}

/// How many tiles of rows see the task's keys, and the first of them: a warp's work.
__device__ __forceinline__ void count_steps(const BackwardArguments& a, Task& task) {
  int first = -1, last = 0, count = 0;
#pragma unroll 1
  for (int m = 0; m < a.row_tiles; m += 32) {
    const unsigned bits = visiting(a, task.batch, task.key_tile, m);
    if (!bits) continue;
    if (first < 0) first = m + __ffs(static_cast<int>(bits)) - 1;
    last = m + 31 - __clz(static_cast<int>(bits)), count += __popc(bits);
  }
  task.steps = count * static_cast<int>(a.f.p.group), task.start = task.backwards ? last : first;
}

/// The producer warp.
template <class T_>
__device__ __forceinline__ void produce(const BackwardArguments& a, std::uint8_t* memory) {
  constexpr int kKeys = T_::kKeys;
  const std::uint32_t base = shared_address(memory);
  const bool leader = threadIdx.x % 32 == 0;
  const volatile Task& shown = *reinterpret_cast<const volatile Task*>(memory + T_::kTask);
  unsigned step = 0;  // of all tasks
  for (;;) {
    int index = 0;
    if (leader) index = a.ring > 0 ? shown.index + static_cast<int>(gridDim.x) : atomicAdd(a.next_task, 1);
    index = __shfl_sync(~0u, index, 0);
    Task task{-1, 0, 0, 0, 0, 0, false, 0};
    if (index < a.tasks) {
      task = place_task(a, index);
      if (a.ring == 0) count_steps(a, task);
      else task.steps = static_cast<int>(a.f.p.group) * a.row_tiles, task.start = Ring(a, task.key_tile).start(a, task.key_tile);
    }
    task.parity = shown.parity ^ 1;
    barrier_wait(base + T_::kEmptyK, task.parity);
    __syncwarp();  // all have read the last one's parity
    if (leader) *reinterpret_cast<Task*>(memory + T_::kTask) = task;
    __syncwarp();
    if (shown.index < 0) {
      if (leader) barrier_arrive(base + T_::kFullK);
      return;
    }
    if (!leader) continue;
    if (shown.steps == 0) {
      barrier_arrive(base + T_::kFullK);
      barrier_wait(base + T_::kEmptyV, shown.parity);
      barrier_arrive(base + T_::kFullV);
      continue;
    }
    barrier_expect(base + T_::kFullK, T_::kKeyBytes);
    copy_rows<T_>(base + T_::kK, &a.k, kKeys, shown.key_tile * kKeys, shown.head, shown.batch, base + T_::kFullK);
    barrier_wait(base + T_::kEmptyV, shown.parity);
    barrier_expect(base + T_::kFullV, T_::kKeyBytes);
    copy_rows<T_>(base + T_::kV, &a.v, kKeys, shown.key_tile * kKeys, shown.head, shown.batch, base + T_::kFullV);
    // Head after head: their blocks are then at the same one, whose Q, dO and dQ stay in the cache.
    const int group = static_cast<int>(a.f.p.group);
#pragma unroll 1
    for (int g = 0; g < group; ++g) {
      int m = shown.start;
#pragma unroll 1
      for (const unsigned end = step + shown.steps / group; step != end;) {
        const RowTile sees = a.tiles[shown.batch * a.row_tiles + m];
        const int key_tile = shown.key_tile;
        if (sees.first_block <= key_tile && key_tile < sees.last_block) {
          const int turn = a.ring > 0 ? Ring(a, key_tile).turn(a, key_tile, m) : shown.backwards ? key_tile - sees.first_block : sees.last_block - 1 - key_tile;
          const bool masked = key_tile * kKeys < sees.max_begin || (key_tile + 1) * kKeys > sees.min_end;
          load_step<T_>(a, memory, shown, m, shown.head * group + g, turn, masked, step++);
        }
        m += shown.backwards ? -1 : 1;
        if (m == a.row_tiles) m = 0;
      }
    }
  }
}

/// The thread that adds dQ to the sums in memory, when it is this block's turn.
template <class T_>
__device__ __forceinline__ void add_queries(const BackwardArguments& a, std::uint8_t* memory) {
  constexpr int kPart = T_::kPartBytes;
  const std::uint32_t base = shared_address(memory);
  for (std::uint32_t odd = 0;; odd ^= 1) {
    barrier_wait(base + T_::kFullDQ, odd);
    const Turn turn = *reinterpret_cast<const Turn*>(memory + T_::kTurn + 8 * odd);
    if (turn.tile < 0) return;
    float* to = a.d_q + std::int64_t{turn.tile} * (2 * kPart / 4);
    if (turn.turn > 0) {
      while (load_acquire(a.turns + turn.tile) != turn.turn) {}
      fence_global();
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      if (w > 0) barrier_wait(base + T_::kFullDQ + 8 * w, odd);
      float* part = to + w * (kPart / 4);
      if (turn.turn > 0) add_run(part, base + T_::kDQ + w * kPart, kPart);
      else write_run(part, base + T_::kDQ + w * kPart, kPart);
      runs_commit();
      runs_wait_read<0>();
      barrier_arrive(base + T_::kEmptyDQ + 8 * w);
    }
    runs_wait();
    fence_global();
    store_release(a.turns + turn.tile, turn.turn + 1);
  }
}

}  // namespace rootdk::gpu::back
