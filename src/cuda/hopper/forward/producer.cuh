// The producer warp: which tile comes next, and TMA copies (bulk tensor copies) of its Q, K and V into rings of stages.
// Rows that are packed for decoding are gathered by the consumers themselves.
#pragma once

#include "cuda/hopper/forward/guard.cuh"
#include "cuda/hopper/forward/scheduler.cuh"
#include "cuda/hopper/pack.cuh"

namespace rootdk::cuda {

/// The producer warp: tile after tile, Q of each warpgroup once it is free, K and V as their stages become free.
template <class Tile, bool kParts>
__device__ __forceinline__ void produce(const HopperArguments& a, const HopperShared<Tile>& shared, Work* slots) {
  constexpr int kKeys = Tile::kKeys, kStages = Tile::kStages, kDim = Tile::kDim;
  constexpr bool kScarce = Tile::kProducerRegisters < 32;  // registers: what can be asked anew is not kept
  const auto leader = [] { return thread_again() % 32 == 0; };
  const auto write_work = [&](int round, const Work& before) {
    Work& slot = slots[round % Tile::kSlots];
    if (leader()) {
      Guard guard = Guard::kNone;
      const int index = round == 0 ? static_cast<int>(blockIdx.x) * a.run : next_index<Tile>(a, before, guard);
      slot.guard = guard;
      place_work<Tile, kParts>(a, index, slot);
    }
    __syncwarp();
    if (slot.index >= 0) find_blocks<Tile>(a, slot);
    __syncwarp();
  };

  int ring = 0;
  std::uint32_t cleaned = 0;  // how many blocks, modulo 2
#pragma unroll 1
  for (int round = -1;; ++round) {  // from −1 on: the first tile is found as any other
    const Work& work = slots[round & (Tile::kSlots - 1)];
    bool live = round >= 0;
    if (a.again && work.guard == Guard::kNone && round > 0 && work.index < 0) {
      // What is suspect is on the list once all tiles are written, and this slot gets the first of it.
      wait_written<Tile>(round);
      live = false, --round;
    }
    const int kept_head = work.kv_head, kept_batch = work.batch,
              last = work.clean_from;  // from there on blocks are cleaned
    int block = work.first_block;
    const auto copy_to = [&](std::uint32_t full, std::uint32_t empty, std::uint32_t to, const CUtensorMap& map,
                             int block) {  // `full` is the stage's own
      const RingPlace<kStages> place{ring};
      const int stage = place.stage(), head = kScarce ? work.kv_head : kept_head,
                batch = kScarce ? work.batch : kept_batch;
      barrier_wait(empty + 8 * stage, place.parity() ^ 1);
      barrier_expect(full, Tile::kStageBytes);
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        const std::uint32_t panel_to = to + stage * Tile::kStageBytes + panel * kKeys * 128;
        if constexpr (Tile::kPacked) copy_box_once(panel_to, &map, panel * 64, block * kKeys, head, batch, full);
        else copy_box(panel_to, &map, panel * 64, block * kKeys, head, batch, full);
      }
    };
    const auto copy = [&](std::uint32_t full, std::uint32_t empty, std::uint32_t to, const CUtensorMap& map,
                          int block) { copy_to(full + 8 * RingPlace<kStages>{ring}.stage(), empty, to, map, block); };
    const bool some = work.first_block < work.last_block;
    const auto give_queries = [&](int g) {
      const RingPlace<Tile::kQueries> queries{round};
      const int place = queries.stage() * Tile::kGroups + g;
      const std::uint32_t full = shared.full_q + 8 * place;
      barrier_wait(shared.empty_q + 8 * place, queries.parity() ^ 1);
      if (!some || Tile::kPacked || work.group_first[g] >= work.group_last[g]) return barrier_arrive(full);
      barrier_expect(full, Tile::kQueryBytes / Tile::kGroups);
      for (int panel = 0; panel < Tile::kPanels; ++panel)
        copy_box(shared.q + place * 64 * kDim * 2 + panel * 64 * 128, &a.q, panel * 64, work.group_row[g], work.head,
                 work.batch, full);
    };
    const int full = min(last, block + kStages);
    if (live && leader()) {
      // Where rows are packed memory is what counts: keys first. Else queries come before what needs them.
      const bool at_once = block < last;
      if (at_once) copy(shared.full_k, shared.empty_k, shared.k, a.k, block);
#pragma unroll 1
      for (int g = 0; g < Tile::kGroups && !Tile::kPacked; ++g) give_queries(g);
      if (at_once) copy(shared.full_v, shared.empty_v, shared.v, a.v, block), ++ring, ++block;
#pragma unroll 1
      for (; block < full; ++block, ++ring)
        copy(shared.full_k, shared.empty_k, shared.k, a.k, block),
            copy(shared.full_v, shared.empty_v, shared.v, a.v, block);
      if (Tile::kPacked) give_queries(0);
    }
    __syncwarp();
    if (live && work.index < 0) break;
    write_work(round + 1, work);  // the rings are full: there is time
    if (live && leader()) {
#pragma unroll 1
      for (; block < last; ++block, ++ring)
        copy(shared.full_k, shared.empty_k, shared.k, a.k, block),
            copy(shared.full_v, shared.empty_v, shared.v, a.v, block);
    }
    __syncwarp();
    if (!live || work.clean_from >= work.last_block) continue;
    ring = __shfl_sync(~0u, ring, 0);
#pragma unroll 1
    for (block = work.clean_from; block < work.last_block; ++block, ++ring, cleaned ^= 1) {
      if (leader()) {
        copy(shared.full_k, shared.empty_k, shared.k, a.k, block);
        copy_to(shared.raw_v, shared.empty_v, shared.v, a.v, block);
      }
      __syncwarp();
      barrier_wait(shared.raw_v, cleaned);
      const int stage = RingPlace<kStages>{ring}.stage();
      clean_values<Tile>(shared.v + stage * Tile::kStageBytes, max(0, min(work.keys - block * kKeys, kKeys)),
                         work.guard, a.f.v.dtype);
      __syncwarp();
      if (leader()) barrier_arrive(shared.full_v + 8 * stage);
    }
  }
  if (!a.beside) return;
  next_kernel_wait();
  if (leader()) store_release(a.before_done, 1);
}

/// Packed rows are gathered by hand, in the layout that TMA would have made. Rows of padding are zero, from the first
/// tile on.
template <class Tile, class T>
__device__ __forceinline__ void gather_queries(const HopperArguments& a, const HopperShared<Tile>& shared,
                                               const Work& work, bool first) {
  constexpr int kDim = Tile::kDim, kChunks = kDim / 8;
  const int dim = static_cast<int>(a.f.p.dim_qk), rows = static_cast<int>(a.f.p.group * a.f.p.len_q);
  for (int x = threadIdx.x % 128; x < (first ? 64 : rows) * kChunks; x += 128) {
    const int r = x / kChunks, chunk = x % kChunks;
    uint4 value = {0, 0, 0, 0};
    if (r < rows && chunk * 8 < dim) {
      const PlacedRow place = place_row<Tile>(a, work, r);
      const T* from = reinterpret_cast<const T*>(a.f.q.data) + at(a.f.q, work.batch, place.h, place.i) + chunk * 8;
      if (chunk * 8 + 8 <= dim) {
        value = *reinterpret_cast<const uint4*>(from);
      } else {
        const auto pair = [&](int d) {
          return chunk * 8 + d >= dim ? 0
                                      : pack2<T>(widen(from[d]), chunk * 8 + d + 1 < dim ? widen(from[d + 1]) : 0.0f);
        };
        value = {pair(0), pair(2), pair(4), pair(6)};
      }
    }
    const std::uint32_t to = shared.q + chunk / 8 * 64 * 128 + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
  }
  fence_async_proxy();
}

}  // namespace rootdk::cuda
