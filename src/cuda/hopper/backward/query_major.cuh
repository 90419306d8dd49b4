// dQ of dims above 128 on Hopper, apart from dK and dV: a block owns 128 query rows, 64 for each of two warpgroups, and
// goes through the keys that they see. It computes scores and dP again, two products in seven, and in turn adds nothing
// up in memory.
//
//   in flight   meanwhile
//   S           –
//   dP          P = exp2(S·c − LSE)
//   –           dS = P∘(dP − D), in registers
//   dQ          S and dP of the next keys are issued
#pragma once

#include "cuda/common/launch.h"
#include "cuda/hopper/backward/consumer.cuh"

namespace rootdk::cuda::back {

template <int kHeadDim>
struct QueryTile {
  static constexpr int kDim = kHeadDim, kRows = backward_rows(kDim), kKeys = backward_keys(kDim), kPanels = kDim / 64,
                       kThreads = 384;  ///< rows: of a warpgroup
  static constexpr int kRowBytes = kRows * kDim * 2, kKeyBytes = kKeys * kDim * 2,
                       kKeyStages = 2;  ///< of K, which dQ needs longer than the scores do; one of V

  // Offsets in shared memory
  static constexpr int kQ = 0, kDO = kQ + 2 * kRowBytes, kK = kDO + 2 * kRowBytes, kV = kK + kKeyStages * kKeyBytes;
  static constexpr int kFullQ = kV + kKeyBytes, kFullDO = kFullQ + 16, kFullK = kFullDO + 16,
                       kEmptyK = kFullK + 8 * kKeyStages;
  static constexpr int kFullV = kEmptyK + 8 * kKeyStages, kEmptyV = kFullV + 8;
  static constexpr int kCleaning = kEmptyV + 8, kSick = kCleaning + 16,
                       kBytes = kSick + kKeyStages * kKeys * 4;  ///< which keys of a stage were not finite
  static_assert(kRows == 64 && kBytes <= 232448);
};

/// The rows of a block: of a head, two tiles as `prepare` has them, or the last one alone.
struct OwnedRows {
  int batch, head, first_tile, tiles;
  int first_block, last_block;  ///< of keys

  __device__ __forceinline__ OwnedRows(const BackwardArguments& a, int index) {
    const int pairs = (a.row_tiles + 1) / 2, heads = static_cast<int>(a.f.p.heads_q);
    first_tile = 2 * (pairs - 1 - index % pairs);  // below a causal mask the longest first
    batch = index / pairs / heads, head = index / pairs % heads;
    tiles = min(2, a.row_tiles - first_tile);
    const RowTile* sees = a.tiles + batch * a.row_tiles + first_tile;
    first_block = sees[0].first_block, last_block = sees[0].last_block;
    if (tiles == 2 && sees[1].first_block < sees[1].last_block) {
      const bool any = first_block < last_block;
      first_block = any ? min(first_block, sees[1].first_block) : sees[1].first_block;
      last_block = any ? max(last_block, sees[1].last_block) : sees[1].last_block;
    }
  }

  /// Blocks of keys are taken from different ones on, and round, so that those who read the same keys do not all read
  /// the same of them at a time.
  __device__ __forceinline__ int start(const BackwardArguments& a) const {
    return first_block + static_cast<int>(std::int64_t{first_tile} * (last_block - first_block) / a.row_tiles);
  }
  __device__ __forceinline__ int after(int block) const { return block + 1 == last_block ? first_block : block + 1; }
};

/// The warp that loads.
template <class Tile>
__device__ __forceinline__ void load_rows_and_keys(const BackwardArguments& a, std::uint8_t* memory,
                                                   const OwnedRows& rows, bool guarded) {
  constexpr int kRows = Tile::kRows, kKeys = Tile::kKeys;
  const std::uint32_t base = shared_address(memory);
  const bool leader = threadIdx.x % 32 == 0;
  auto* cleaning = reinterpret_cast<volatile Cleaning*>(memory + Tile::kCleaning);
  const auto load_tile = [&](std::uint32_t to, const CUtensorMap* map, int count, int first, int head,
                             std::uint32_t full) {
    barrier_expect(full, Tile::kRowBytes);
    copy_rows<Tile>(to, map, count, first, head, rows.batch, full);
  };
  const auto load_rows = [&](int to, const CUtensorMap* map, int full) {
#pragma unroll 1
    for (int g = 0; g < rows.tiles; ++g) {
      const int m = rows.first_tile + g;
      const std::uint32_t tile = base + to + g * Tile::kRowBytes;
      const auto load = [&](std::uint32_t barrier) { load_tile(tile, map, kRows, m * kRows, rows.head, barrier); };
      if (guarded || a.tiles[rows.batch * a.row_tiles + m].min_end == 0) {
        load_cleaned(cleaning, base + full + 8 * g, load, [&] {
          if (guarded) clean_rows<Tile::kPanels, kRows>(a, tile);
          __syncwarp();
          clear_idle<Tile::kPanels, kRows>(tile, a.rows + std::int64_t{rows.batch * a.row_tiles + m} * kRows);
        });
      } else if (leader) {
        load(base + full + 8 * g);
      }
    }
  };
  load_rows(Tile::kQ, &a.q, Tile::kFullQ);
  const int kv_head = rows.head / static_cast<int>(a.f.p.group), keys = keys_of(a.f.p, rows.batch);
  int block = rows.start(a);
#pragma unroll 1
  for (int n = 0; n < rows.last_block - rows.first_block; ++n, block = rows.after(block)) {
    const int key = block * kKeys, stage = n % Tile::kKeyStages;
    const bool cleans = guarded || (keys < a.f.p.len_kv && key + kKeys > keys);
    const std::uint32_t k = base + Tile::kK + stage * Tile::kKeyBytes, v = base + Tile::kV;
    const auto load_key = [&](std::uint32_t tile, const CUtensorMap* map, std::uint32_t full, bool notes) {
      const auto load = [&](std::uint32_t barrier) { load_tile(tile, map, kKeys, key, kv_head, barrier); };
      if (cleans) {
        load_cleaned(cleaning, full, load, [&] {
          if (guarded && notes)
            clean_keys<Tile::kPanels, kKeys>(a, tile, reinterpret_cast<int*>(memory + Tile::kSick) + stage * kKeys);
          else if (guarded) clean_rows<Tile::kPanels, kKeys>(a, tile);
          __syncwarp();
          clear_rows<Tile::kPanels, kKeys>(tile, max(0, min(kKeys, keys - key)));
        });
      } else if (leader) {
        load(full);
      }
    };
    barrier_wait(base + Tile::kEmptyK + 8 * stage, n / Tile::kKeyStages & 1 ^ 1);
    load_key(k, &a.k, base + Tile::kFullK + 8 * stage, true);
    if (n == 0) load_rows(Tile::kDO, &a.d_o, Tile::kFullDO);  // after the first K, which is wanted earlier
    barrier_wait(base + Tile::kEmptyV, n & 1 ^ 1);
    load_key(v, &a.v, base + Tile::kFullV, false);
  }
}

template <class Tile, class Element>
__device__ __forceinline__ void consume_keys(const BackwardArguments& a, const std::uint8_t* memory,
                                             const OwnedRows& rows, int group, bool guarded) {
  constexpr int kKeys = Tile::kKeys, kRows = Tile::kRows, kDim = Tile::kDim;
  const std::uint32_t base = shared_address(memory);
  const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  // Both warpgroups go through all keys of the block, and free them; a second one without rows computes what nobody
  // reads.
  const int m = rows.first_tile + min(group, rows.tiles - 1),
            tile = (rows.batch * static_cast<int>(a.f.p.heads_q) + rows.head) * a.row_tiles + m;
  const RowTile sees = a.tiles[rows.batch * a.row_tiles + m];
  const float scale2 = a.heads ? a.heads[rows.head].scale2 : a.scale2;
  float origin[2], shift[2];
  int begin[2], end[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int2 range = a.rows[std::int64_t{rows.batch * a.row_tiles + m} * kRows + row + 8 * r];
    begin[r] = range.x - lane % 4 * 2, end[r] = range.y - lane % 4 * 2;  // of the thread's first key of a block
    origin[r] = a.lse[std::int64_t{tile} * kRows + row + 8 * r],
    shift[r] = a.delta[std::int64_t{tile} * kRows + row + 8 * r];
  }

  const auto scores = [&](float(&s)[kKeys / 2], std::uint32_t own, std::uint32_t keys) {
    const std::uint64_t first_a = operand(own), first_b = operand(keys);
#pragma unroll
    for (int x = 0; x < kDim / 16; ++x) {
      const int panel = x / 4, offset = x % 4 * 32;
      const std::uint64_t next_a = first_a + (panel * kRows * 128 + offset) / 16,
                          next_b = first_b + (panel * kKeys * 128 + offset) / 16;
      if (x == 0) FirstScores<kKeys, Element>::mma(s, next_a, next_b);
      else Scores<kKeys, Element>::mma(s, next_a, next_b, 1);
    }
    products_commit();
  };

  float d_q[kDim / 2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) d_q[i] = 0;
  std::uint32_t d_scores[kKeys / 4];
  if (group < rows.tiles) barrier_wait(base + Tile::kFullQ + 8 * group, 0);
  hold(d_q);
  int stage = 0;
  std::uint32_t parities = 0;  // of the rounds of the rings: 1 for V, 2 for K
  const int blocks = rows.last_block - rows.first_block;
#pragma unroll 1
  for (int left = blocks, n = rows.start(a); left > 0; --left, n = rows.after(n)) {
    float s[kKeys / 2], d_p[kKeys / 2];
    barrier_wait(base + Tile::kFullK + 8 * stage, parities >> 1);
    products_begin();
    scores(s, base + Tile::kQ + group * Tile::kRowBytes, base + Tile::kK + stage * Tile::kKeyBytes);
    if (left == blocks && group < rows.tiles) barrier_wait(base + Tile::kFullDO + 8 * group, 0);
    barrier_wait(base + Tile::kFullV, parities & 1);
    products_begin();
    scores(d_p, base + Tile::kDO + group * Tile::kRowBytes, base + Tile::kV);
    products_wait<1>();  // S, and dQ of the step before
    hold(s), hold(d_q), hold(d_scores);
    if (left < blocks) release(base + Tile::kEmptyK + 8 * (stage ^ 1));
#pragma unroll
    for (int x = 0; x < kKeys / 2; ++x) s[x] = exp2_approx(fmaf(s[x], scale2, origin[x / 2 % 2]));
    if (guarded) [[unlikely]] {
      const int* sick = reinterpret_cast<const int*>(memory + Tile::kSick) + again(stage) * kKeys + lane % 4 * 2;
#pragma unroll
      for (int x = 0; x < kKeys / 2; ++x)
        if (sick[x / 4 * 8 + x % 2]) s[x] = kNanF;
    }
    const bool masked = n * kKeys < sees.max_begin || (n + 1) * kKeys > sees.min_end;
    if (masked) {
#pragma unroll
      for (int x = 0; x < kKeys / 2; ++x) {
        const int key = n * kKeys + x / 4 * 8 + x % 2, r = x / 2 % 2;
        if (key < begin[r] || key >= end[r]) s[x] = 0;
      }
    }
    products_wait<0>();
    hold(d_p);
    release(base + Tile::kEmptyV);
#pragma unroll
    for (int x = 0; x < kKeys / 2; ++x) d_p[x] = s[x] * (d_p[x] - shift[x / 2 % 2]);
    if (masked) {
#pragma unroll
      for (int x = 0; x < kKeys / 2; ++x)
        if (s[x] == 0) d_p[x] = 0;
    }
#pragma unroll
    for (int x = 0; x < kKeys / 4; ++x) d_scores[x] = pack2<Element>(d_p[2 * x], d_p[2 * x + 1]);
    hold(d_scores), hold(d_q);
    products_begin();
    const std::uint64_t keys = operand(base + Tile::kK + again(stage) * Tile::kKeyBytes, kKeys * 128);
#pragma unroll
    for (int x = 0; x < kKeys / 16; ++x) Values<kDim, Element>::mma(d_q, d_scores + 4 * x, keys + x * 16 * 128 / 16);
    products_commit();
    parities ^= 1 | stage << 1, stage ^= 1;
  }
  products_wait<0>();
  hold(d_q), hold(d_scores);
  if (group >= rows.tiles) return;
  if (a.heads) {  // as if it had come with dS
#pragma unroll
    for (int x = 0; x < kDim / 2; ++x) d_q[x] *= a.heads[rows.head].ratio;
  }
  if (a.d_q) {
    auto* to = reinterpret_cast<float4*>(a.d_q + std::int64_t{tile} * kRows * kDim) + thread;
#pragma unroll
    for (int x = 0; x < kDim / 8; ++x) to[128 * x] = {d_q[4 * x], d_q[4 * x + 1], d_q[4 * x + 2], d_q[4 * x + 3]};
  } else {
    write_rows<Element>(a.f.d_q, static_cast<int>(a.f.p.dim_qk), a.f.p.len_q, rows.batch, rows.head, m * kRows + row,
                        d_q, a.heads ? a.heads[rows.head].last : a.scale);
  }
}

template <class Tile, class Element>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hopper_backward_rows_kernel(const __grid_constant__ BackwardArguments a) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t base = shared_address(memory);
  const OwnedRows rows(a, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    for (const int barrier :
         {Tile::kFullQ, Tile::kFullQ + 8, Tile::kFullDO, Tile::kFullDO + 8, Tile::kFullV, Tile::kCleaning})
      barrier_init(base + barrier, 1);
    reinterpret_cast<Cleaning*>(memory + Tile::kCleaning)->count = 0;
    barrier_init(base + Tile::kEmptyV, kReleases);
    for (int x = 0; x < Tile::kKeyStages; ++x)
      barrier_init(base + Tile::kFullK + 8 * x, 1), barrier_init(base + Tile::kEmptyK + 8 * x, kReleases);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  const bool guarded = is_guarded(a, true);
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < 32) load_rows_and_keys<Tile>(a, memory, rows, guarded);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume_keys<Tile, Element>(a, memory, rows, same_in_warp(warpgroup - 1), guarded);
  }
}

template <class Tile, class Element>
void launch_rows(const BackwardArguments& a, cudaStream_t stream) {
  allow_shared(hopper_backward_rows_kernel<Tile, Element>, Tile::kBytes);
  const auto blocks = static_cast<unsigned>(a.f.p.batch * a.f.p.heads_q * ((a.row_tiles + 1) / 2));
  launch_kernel("hopper backward, dQ", hopper_backward_rows_kernel<Tile, Element>, blocks, Tile::kThreads, Tile::kBytes,
                stream, a);
}

}  // namespace rootdk::cuda::back
