// The Hopper backward's first warpgroup: the producer warp, which takes tasks and loads what consumers need; the thread
// that adds dQ to its sums; the warp that looks for keys that are not finite.
#pragma once

#include "cuda/hopper/backward/loads.cuh"

namespace rootdk::cuda::back {

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
    Task task{-1, 0, 0, 0, 0, 0, false, false, 0};
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
    // Most steps are one thread's work; cleaning is the warp's.
    const bool cleans = cleaning->guarded || shown.idle_rows;
    if (!leader && !cleans) {
      step += shown.steps;
      continue;
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
