// The Hopper backward's tasks: the tiles of keys that blocks own, in which order they are taken, which tiles of rows
// each goes through, and how a block's shared memory is laid out for it.
#pragma once

#include "cuda/common/rows.cuh"
#include "cuda/hopper/backward/backward.h"

namespace rootdk::cuda::back {

inline constexpr int kStepBytes = 48;

template <int kHeadDim>
struct KeyTile {
  static constexpr int kDim = kHeadDim, kRows = backward_rows(kDim), kKeys = backward_keys(kDim), kThreads = 384,
                       kPanels = kDim / 64;
  static constexpr bool kWide = kDim == 256;
  static constexpr int kQueryStages = kWide ? 2 : 3,
                       kGradStages = 2;  ///< of Q, which the next scores need before dK is done with the last; of dO
  static constexpr bool kKeepsWeights =
      kRows == 64;  ///< in f32 until dS is made of them; else there is room for the rounded ones only
  static constexpr int kProducerRegisters = kDim == 128 ? 24 : 40, kConsumerRegisters = kDim == 128 ? 240 : 232;
  static constexpr int kKeyBytes = kKeys * kDim * 2, kRowBytes = kRows * kDim * 2, kScoreBytes = kKeys * kRows * 2;
  static constexpr int kPartBytes = kWide ? 0 : 64 * 64 * 4;  ///< each warpgroup hands over 64 × 64 of dQᵀ

  // Offsets in shared memory
  static constexpr int kK = 0, kV = kK + kKeyBytes, kQ = kV + kKeyBytes, kDO = kQ + kQueryStages * kRowBytes,
                       kDS = kDO + kGradStages * kRowBytes;
  static constexpr int kDQ = kDS + 2 * kScoreBytes, kRanges = kDQ + 2 * kPartBytes,
                       kLse = kRanges + kQueryStages * kRows * 8, kDelta = kLse + kQueryStages * kRows * 4;
  static constexpr int kSteps = kDelta + kGradStages * kRows * 4, kTask = kSteps + kQueryStages * kStepBytes,
                       kTurn = kTask + 32;
  static constexpr int kFullK = kTurn + 16, kFullV = kFullK + 8, kEmptyK = kFullV + 8, kEmptyV = kEmptyK + 8;
  static constexpr int kFullQ = kEmptyV + 8, kEmptyQ = kFullQ + 8 * kQueryStages, kFullDO = kEmptyQ + 8 * kQueryStages,
                       kEmptyDO = kFullDO + 8 * kGradStages;
  static constexpr int kFullDQ = kEmptyDO + 8 * kGradStages, kEmptyDQ = kFullDQ + 16;
  static constexpr int kShown = kEmptyDQ + 16,
                       kSeen = kShown + 16;  ///< P, where one warpgroup computes it for the other
  static constexpr int kCleaning = kSeen + 16, kSick = kCleaning + 16,
                       kBytes = kSick + kKeys * 4;  ///< which keys were not finite
  static_assert(kBytes <= 232448);
};

/// 128 keys of one key head.
struct Task {
  int index;  ///< −1: no more
  int batch, head, key_tile, steps;
  int start;  ///< the first tile of rows
  bool backwards;
  bool idle_rows;        ///< some of its rows see nothing, and are cleared as they arrive
  std::uint32_t parity;  ///< of the task's number in the block; the producer's, which is short of registers
};

/// What a step needs beyond products and softmax: most need nothing, and find that out at once.
enum Special : int {
  kMasked = 1,
  kGuarded = 2,  ///< what is not finite was made zero
  kRatio = 4,    ///< dS is to be multiplied
  kSquares = 8,  ///< dS² is to be added up
};

/// A tile of query rows of one head, as far as consumers care.
struct Step {
  int tile;             ///< [batch, heads_q, row_tiles]
  int turn;             ///< how many add to its dQ before; kLastTurn more where it is the last
  int special;          ///< bits: see Special
  int first;            ///< of the task's steps with this head
  float scale2, ratio;  ///< see HeadScale
  int m, head;          ///< which tile it is
};
static_assert(sizeof(Task) <= 32 && sizeof(Step) <= kStepBytes);

inline constexpr int kLastTurn = 1 << 30;

/// What is added to dQ next.
struct Turn {
  int tile, turn;  ///< tile −1: no more
};

/// Tasks in the order in which they are taken. A block waits for its turn at a tile only behind tasks that were taken
/// before its own, so one of them can always go on.
///
/// Mostly the last keys go first, and each block goes through its rows from the first it sees: blocks that start
/// together are then at different tiles, each a little behind the one before it. Below a causal mask that would leave
/// the longest tasks to the end, so every other set of heads is taken the other way round: longest first, from the last
/// row backwards. As the blocks of one set end one after another, those of the next start one after another, and end
/// together.
///
/// Without a mask all see everything, and there is no such order. Then `ring` blocks start together, spread over the
/// rows, and go round: the first at a tile is the one that starts there. They wait for each other, so all must be
/// running: the launch sees to that. And no block may have two tasks of a ring, or it would wait for itself, so each
/// takes every gridDim-th: a ring is never larger than that. (From a counter, a block with few steps takes its second
/// before others have a first.)
///
/// Above dim 128 nothing is added up, and the longest tasks of a causal mask simply come first.
__device__ __forceinline__ Task place_task(const BackwardArguments& a, int index) {
  const int heads = static_cast<int>(a.f.p.heads_kv);
  if (a.ring > 0)
    return {index, index / a.key_tiles / heads, index / a.key_tiles % heads, index % a.key_tiles, 0, 0, false, false,
            0};
  const int all = static_cast<int>(a.f.p.batch) * heads, per_set = a.key_tiles * a.near_heads;
  const int set = index / per_set, rest = index % per_set, near = min(a.near_heads, all - set * a.near_heads),
            head = set * a.near_heads + rest % near;
  Task task{index, head / heads, head % heads, rest / near, 0, 0, a.turns_alternate && set % 2 == 1, false, 0};
  if (!task.backwards && !a.first_keys_first) task.key_tile = a.key_tiles - 1 - task.key_tile;
  return task;
}

/// Which of 32 tiles of rows see the task's keys, as bits.
struct Visits {
  unsigned all, idle;  ///< idle: those with rows that see nothing
};
__device__ __forceinline__ Visits visiting(const BackwardArguments& a, int batch, int key_tile, int first) {
  const int m = first + static_cast<int>(threadIdx.x % 32);
  const RowTile tile = m < a.row_tiles ? a.tiles[batch * a.row_tiles + m] : RowTile{};
  const bool sees = tile.first_block <= key_tile && key_tile < tile.last_block;
  return {__ballot_sync(~0u, sees), __ballot_sync(~0u, sees && tile.min_end == 0)};
}

/// The ring that a tile of keys belongs to.
struct Ring {
  int first, size;  ///< of its tiles of keys
  __device__ __forceinline__ Ring(const BackwardArguments& a, int key_tile) {
    first = key_tile / a.ring * a.ring;
    size = min(a.ring, a.key_tiles - first);
  }
  __device__ __forceinline__ int start(const BackwardArguments& a, int key_tile) const {
    return (key_tile - first) * a.row_tiles / size;
  }
  /// Of the ring, those that start at or before row tile m come first, the nearest of them first of all; then the
  /// others, which come round.
  __device__ __forceinline__ int turn(const BackwardArguments& a, int key_tile, int m) const {
    const int before = ((m + 1) * size + a.row_tiles - 1) / a.row_tiles, own = key_tile - first;
    return first + before - 1 - own + (own < before ? 0 : size);
  }
};

/// How many tiles of rows see the task's keys, and the first of them: a warp's work.
__device__ __forceinline__ void count_steps(const BackwardArguments& a, Task& task) {
  int first = -1, last = 0, count = 0;
#pragma unroll 1
  for (int m = 0; m < a.row_tiles; m += 32) {
    const auto [bits, idle] = visiting(a, task.batch, task.key_tile, m);
    if (!bits) continue;
    if (idle) task.idle_rows = true;
    if (first < 0) first = m + __ffs(static_cast<int>(bits)) - 1;
    last = m + 31 - __clz(static_cast<int>(bits)), count += __popc(bits);
  }
  task.steps = count * static_cast<int>(a.f.p.group), task.start = task.backwards ? last : first;
}

}  // namespace rootdk::cuda::back
