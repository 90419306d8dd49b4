// The Hopper backward's blocks: which keys they take in which order, what they load, and how dQ leaves them. The parts
// that are the same whatever the consumers do.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/backward/backward.h"
#include "cuda/hopper/bulk.cuh"
#include "cuda/hopper/clean.cuh"

namespace rootdk::cuda::back {

inline constexpr int kStepBytes = 48;

template <int kDim_>
struct KeyTile {
  static constexpr int kDim = kDim_, kRows = backward_rows(kDim), kKeys = backward_keys(kDim), kThreads = 384,
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
    return {index, index / a.key_tiles / heads, index / a.key_tiles % heads, index % a.key_tiles, 0, 0, false, 0};
  const int all = static_cast<int>(a.f.p.batch) * heads, per_set = a.key_tiles * a.near_heads;
  const int set = index / per_set, rest = index % per_set, near = min(a.near_heads, all - set * a.near_heads),
            head = set * a.near_heads + rest % near;
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

/// Of a block, in shared memory, since producers have no registers to spare.
struct Cleaning {
  std::uint64_t raw;    ///< the barrier on which what is cleaned arrives
  std::uint32_t count;  ///< how often it has, modulo 2
  int guarded;          ///< what is not finite becomes zero, in all that is loaded
};
static_assert(sizeof(Cleaning) == 16);

/// Keys that an item has: what lies behind them may be anything.
__device__ __forceinline__ int keys_of(const ProblemView& p, int batch) {
  int keys = static_cast<int>(p.len_kv);
  if (p.key_lengths) keys = min(keys, static_cast<int>(p.key_lengths[batch]));
  if (p.kv_starts) keys = min(keys, static_cast<int>(p.kv_starts[p.documents]));
  return keys;
}

/// Trouble that is known when a launch of main starts, or a later kernel does.
__device__ __forceinline__ bool is_guarded(const BackwardArguments& a, bool keys_too) {
  const int trouble = a.trouble ? load_acquire(a.trouble) : kNoTrouble;
  return trouble == kSickRows || (keys_too && trouble == kSickKeys);
}

/// What is not finite becomes zero. A warp's work.
template <int kPanels, int kRows>
__device__ __forceinline__ void clean_rows(const BackwardArguments& a, std::uint32_t tile) {
  change_pairs<kPanels, kRows>(tile, [&](int, unsigned& pair) { pair &= ~not_finite(pair, exponents(a.f.q.dtype)); });
}

/// The same of keys; the rows of those that had any are noted.
template <int kPanels, int kRows>
__device__ __forceinline__ void clean_keys(const BackwardArguments& a, std::uint32_t tile, int* sick) {
  for (int row = thread_again() % 32; row < kRows; row += 32) sick[row] = 0;
  __syncwarp();
  change_pairs<kPanels, kRows>(tile, [&](int row, unsigned& pair) {
    const unsigned bad = not_finite(pair, exponents(a.f.k.dtype));
    if (bad) sick[row] = 1;
    pair &= ~bad;
  });
}

/// Rows that see no key become zero.
template <int kPanels, int kRows>
__device__ __forceinline__ void clear_idle(std::uint32_t tile, const int2* ranges) {
  change_pairs<kPanels, kRows>(tile, [&](int row, unsigned& pair) {
    const int2 range = ranges[row];
    if (range.x >= range.y) pair = 0;
  });
}

/// Both panels of a tile, or the one.
template <class Tile>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const CUtensorMap* map, int rows, int row, int head,
                                          int batch, std::uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel)
    copy_box(to + panel * rows * 128, map, panel * 64, row, head, batch, barrier);
}

template <class Tile>
__device__ __forceinline__ volatile Step& step_in(std::uint8_t* memory, unsigned step) {
  return *reinterpret_cast<volatile Step*>(memory + Tile::kSteps + kStepBytes * (step % Tile::kQueryStages));
}

/// A step's Q, LSE and masks, in a place that is free; they complete on `full`. One thread's work; `at` is a Step, or
/// what is kept of one in shared memory.
template <class Tile, class At>
__device__ __forceinline__ void load_queries(const BackwardArguments& a, std::uint32_t base, int batch, const At& at,
                                             unsigned step, std::uint32_t full) {
  constexpr int kRows = Tile::kRows;
  const unsigned stage = step % Tile::kQueryStages;
  const bool masked = at.special & kMasked;
  barrier_expect(full, Tile::kRowBytes + kRows * 4 + (masked ? kRows * 8 : 0));
  copy_rows<Tile>(base + Tile::kQ + stage * Tile::kRowBytes, &a.q, kRows, at.m * kRows, at.head, batch, full);
  copy_run(base + Tile::kLse + stage * kRows * 4, a.lse + std::int64_t{at.tile} * kRows, kRows * 4, full);
  if (masked)
    copy_run(base + Tile::kRanges + stage * kRows * 8, a.rows + std::int64_t{batch * a.row_tiles + at.m} * kRows,
             kRows * 8, full);
}

/// The same of dO and D, when their place is free.
template <class Tile, class At>
__device__ __forceinline__ void load_gradients(const BackwardArguments& a, std::uint32_t base, int batch, const At& at,
                                               unsigned step, std::uint32_t full) {
  constexpr int kRows = Tile::kRows;
  const unsigned stage = step % Tile::kGradStages;
  barrier_wait(base + Tile::kEmptyDO + 8 * stage, step / Tile::kGradStages & 1 ^ 1);
  barrier_expect(full, Tile::kRowBytes + kRows * 4);
  copy_rows<Tile>(base + Tile::kDO + stage * Tile::kRowBytes, &a.d_o, kRows, at.m * kRows, at.head, batch, full);
  copy_run(base + Tile::kDelta + stage * kRows * 4, a.delta + std::int64_t{at.tile} * kRows, kRows * 4, full);
}

/// Copies what `load` issues, cleans it and hands it on: a warp's work.
template <class Load, class Clean>
__device__ __forceinline__ void load_cleaned(volatile Cleaning* cleaning, std::uint32_t full, const Load& load,
                                             const Clean& clean) {
  const std::uint32_t raw = shared_address(const_cast<Cleaning*>(cleaning));
  if (thread_again() % 32 == 0) load(raw);
  __syncwarp();
  barrier_wait(raw, cleaning->count);
  clean();
  __syncwarp();
  if (thread_again() % 32 == 0) cleaning->count = cleaning->count ^ 1, barrier_arrive(full);
  __syncwarp();
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

/// A step whose rows are cleaned: all of them, or those that see nothing.
template <class Tile>
__device__ __forceinline__ void load_cleaned_step(const BackwardArguments& a, std::uint8_t* memory, int batch,
                                                  unsigned step) {
  constexpr int kRows = Tile::kRows;
  const std::uint32_t base = shared_address(memory);
  auto* cleaning = reinterpret_cast<volatile Cleaning*>(memory + Tile::kCleaning);
  const auto clean = [&](std::uint32_t tile) {
    if (cleaning->guarded) clean_rows<Tile::kPanels, kRows>(a, tile);
    __syncwarp();
    if (step_in<Tile>(memory, step).special & kMasked)
      clear_idle<Tile::kPanels, kRows>(
          tile, reinterpret_cast<const int2*>(memory + Tile::kRanges + step % Tile::kQueryStages * kRows * 8));
  };
  load_cleaned(
      cleaning, base + Tile::kFullQ + 8 * (step % Tile::kQueryStages),
      [&](std::uint32_t full) { load_queries<Tile>(a, base, batch, step_in<Tile>(memory, step), step, full); },
      [&] { clean(base + Tile::kQ + step % Tile::kQueryStages * Tile::kRowBytes); });
  load_cleaned(
      cleaning, base + Tile::kFullDO + 8 * (step % Tile::kGradStages),
      [&](std::uint32_t full) { load_gradients<Tile>(a, base, batch, step_in<Tile>(memory, step), step, full); },
      [&] { clean(base + Tile::kDO + step % Tile::kGradStages * Tile::kRowBytes); });
}

/// Looks for keys that are not finite, beside the consumers, where there may be such as no row sees and prepare knows
/// nothing of. (Values need no look: of pairs that a mask hides dP does not count.) A warp's work.
template <class Tile>
__device__ __forceinline__ void inspect(const BackwardArguments& a, std::uint8_t* memory) {
  const std::uint32_t base = shared_address(memory);
  for (std::uint32_t parity = 0;; parity ^= 1) {
    barrier_wait(base + Tile::kFullK, parity);
    const auto& task = *reinterpret_cast<const volatile Task*>(memory + Tile::kTask);
    if (task.index < 0) return;
    if (task.steps > 0 && !reinterpret_cast<const Cleaning*>(memory + Tile::kCleaning)->guarded) {
      unsigned bad = 0;
#pragma unroll 2
      for (int x = thread_again() % 32; x < Tile::kKeyBytes / 16; x += 32) {
        const uint4 eight = *reinterpret_cast<const uint4*>(memory + Tile::kK + 16 * x);
        const unsigned exponent = exponents(a.f.k.dtype);
        bad |= not_finite(eight.x, exponent) | not_finite(eight.y, exponent) | not_finite(eight.z, exponent) |
               not_finite(eight.w, exponent);
      }
      if (bad) store_release(a.trouble, kSickKeys);
    }
    barrier_arrive(base + Tile::kEmptyK);
  }
}

/// The producer warp.
template <class Tile>
__device__ __forceinline__ void produce(const BackwardArguments& a, std::uint8_t* memory) {
  constexpr int kKeys = Tile::kKeys;
  const std::uint32_t base = shared_address(memory);
  const bool leader = threadIdx.x % 32 == 0;
  const volatile Task& shown = *reinterpret_cast<const volatile Task*>(memory + Tile::kTask);
  unsigned step = 0;  // of all tasks
  auto* cleaning = reinterpret_cast<volatile Cleaning*>(memory + Tile::kCleaning);
  for (;;) {
    int index = 0;
    if (leader) index = a.ring > 0 ? shown.index + static_cast<int>(gridDim.x) : atomicAdd(a.next_task, 1);
    if (leader && a.ring == 0 && index == a.tasks + static_cast<int>(gridDim.x) - 1)
      *a.next_task = 0;  // nobody else comes, until the next launch
    index = __shfl_sync(~0u, index, 0);
    Task task{-1, 0, 0, 0, 0, 0, false, 0};
    if (index < a.tasks) {
      task = place_task(a, index);
      if (a.ring == 0) count_steps(a, task);
      else
        task.steps = static_cast<int>(a.f.p.group) * a.row_tiles,
        task.start = Ring(a, task.key_tile).start(a, task.key_tile);
    }
    task.parity = shown.parity ^ 1;
    barrier_wait(base + Tile::kEmptyK, task.parity);
    __syncwarp();  // all have read the last one's parity
    if (leader) *reinterpret_cast<Task*>(memory + Tile::kTask) = task;
    __syncwarp();
    if (shown.index < 0) {
      if (leader) barrier_arrive(base + Tile::kFullK);
      return;
    }
    if (shown.steps == 0) {
      if (leader) {
        barrier_arrive(base + Tile::kFullK);
        barrier_wait(base + Tile::kEmptyV, shown.parity);
        barrier_arrive(base + Tile::kFullV);
      }
      continue;
    }
    const auto load_keys = [&](int to, const CUtensorMap* map, std::uint32_t full) {
      barrier_expect(full, Tile::kKeyBytes);
      copy_rows<Tile>(base + to, map, kKeys, shown.key_tile * kKeys, shown.head, shown.batch, full);
    };
    if (cleaning->guarded ||
        (keys_of(a.f.p, shown.batch) < a.f.p.len_kv && (shown.key_tile + 1) * kKeys > keys_of(a.f.p, shown.batch))) {
      const auto clean = [&](int tile, bool keys) {
        if (cleaning->guarded && keys)
          clean_keys<Tile::kPanels, kKeys>(a, base + tile, reinterpret_cast<int*>(memory + Tile::kSick));
        else if (cleaning->guarded) clean_rows<Tile::kPanels, kKeys>(a, base + tile);
        __syncwarp();
        clear_rows<Tile::kPanels, kKeys>(base + tile,
                                         max(0, min(kKeys, keys_of(a.f.p, shown.batch) - shown.key_tile * kKeys)));
      };
      load_cleaned(
          cleaning, base + Tile::kFullK, [&](std::uint32_t full) { load_keys(Tile::kK, &a.k, full); },
          [&] { clean(Tile::kK, true); });
      barrier_wait(base + Tile::kEmptyV, shown.parity);
      load_cleaned(
          cleaning, base + Tile::kFullV, [&](std::uint32_t full) { load_keys(Tile::kV, &a.v, full); },
          [&] { clean(Tile::kV, false); });
    } else if (leader) {
      load_keys(Tile::kK, &a.k, base + Tile::kFullK);
      barrier_wait(base + Tile::kEmptyV, shown.parity);
      load_keys(Tile::kV, &a.v, base + Tile::kFullV);
    }
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
          int turn = a.ring > 0        ? Ring(a, key_tile).turn(a, key_tile, m)
                     : shown.backwards ? key_tile - sees.first_block
                                       : sees.last_block - 1 - key_tile;
          if (turn == sees.last_block - sees.first_block - 1) turn += kLastTurn;
          const bool masked = key_tile * kKeys < sees.max_begin || (key_tile + 1) * kKeys > sees.min_end;
          const bool cleans = cleaning->guarded || sees.min_end == 0;
          if (leader) {
            const int head = shown.head * group + g;
            barrier_wait(base + Tile::kEmptyQ + 8 * (step % Tile::kQueryStages), step / Tile::kQueryStages & 1 ^ 1);
            const float ratio = a.heads ? a.heads[head].ratio : 1;
            const int special = (masked ? kMasked : 0) | (cleaning->guarded ? kGuarded : 0) |
                                (ratio != 1 ? kRatio : 0) | (a.score_squares ? kSquares : 0);
            const Step at{(shown.batch * static_cast<int>(a.f.p.heads_q) + head) * a.row_tiles + m,
                          turn,
                          special,
                          a.score_squares && end - step == static_cast<unsigned>(shown.steps / group),
                          a.heads ? a.heads[head].scale2 : a.scale2,
                          ratio,
                          m,
                          head};
            *reinterpret_cast<Step*>(memory + Tile::kSteps + kStepBytes * (step % Tile::kQueryStages)) = at;
            if (!cleans) {
              load_queries<Tile>(a, base, shown.batch, at, step, base + Tile::kFullQ + 8 * (step % Tile::kQueryStages));
              load_gradients<Tile>(a, base, shown.batch, at, step,
                                   base + Tile::kFullDO + 8 * (step % Tile::kGradStages));
            }
          }
          if (cleans) {
            __syncwarp();
            load_cleaned_step<Tile>(a, memory, shown.batch, step);
          }
          ++step;
        }
        m += shown.backwards ? -1 : 1;
        if (m == a.row_tiles) m = 0;
      }
    }
  }
}

/// The thread that adds dQ to the sums in memory, when it is this block's turn.
template <class Tile>
__device__ __forceinline__ void add_queries(const BackwardArguments& a, std::uint8_t* memory) {
  constexpr int kPart = Tile::kPartBytes;
  const std::uint32_t base = shared_address(memory);
  for (std::uint32_t odd = 0;; odd ^= 1) {
    barrier_wait(base + Tile::kFullDQ, odd);
    const Turn turn = *reinterpret_cast<const Turn*>(memory + Tile::kTurn + 8 * odd);
    if (turn.tile < 0) return;
    float* to = a.d_q + std::int64_t{turn.tile} * (2 * kPart / 4);
    const int own = turn.turn % kLastTurn;
    if (own > 0) {
      while (load_acquire(a.turns + turn.tile) != own) {
      }
      fence_global();
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      if (w > 0) barrier_wait(base + Tile::kFullDQ + 8 * w, odd);
      float* part = to + w * (kPart / 4);
      if (own > 0) add_run(part, base + Tile::kDQ + w * kPart, kPart);
      else write_run(part, base + Tile::kDQ + w * kPart, kPart);
      runs_commit();
      runs_wait_read<0>();
      barrier_arrive(base + Tile::kEmptyDQ + 8 * w);
    }
    runs_wait();
    fence_global();
    store_release(a.turns + turn.tile, own == turn.turn ? own + 1 : 0);  // after the last, as before the first
  }
}

}  // namespace rootdk::cuda::back
