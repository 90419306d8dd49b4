// The mma backward's main kernel: FlashAttention-2's five products (Dao 2023) for blocks that own keys.
//
//   for each query head that reads the keys, for each tile of rows that sees any of them, from the last on:
//     S = Q·Kᵀ, dP = dO·Vᵀ           → P and dS in registers (gradients.cuh), rounded to shared memory
//     dV += Pᵀ·dO, dK += dSᵀ·Q       in registers
//     dQ += dS·K                     on top of what is in the workspace, when it is the block's turn
//
// The next rows are copied meanwhile. Blocks take tiles of keys in ascending order from a counter, and a tile of rows
// takes what they add in that order: a block waits only for blocks that have started before it, so all of them end.
// Rows from the last on: below a causal mask all blocks then begin where all tiles of keys have something to add.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/quad.cuh"
#include "cuda/mma/backward/gradients.cuh"
#include "cuda/mma/backward/loads.cuh"
#include "cuda/mma/backward/products.cuh"
#include "cuda/mma/backward/writes.cuh"

namespace rootdk::cuda::mma::back {

/// What a block is about. In shared memory: read where it is needed, it takes no registers through the products.
struct Task {
  int b, kv_head, key_tile;
  int low, high;          ///< tiles of rows that may see the keys: low … high − 1
  bool guarded;           ///< all that is loaded is cleaned
  int* volatile passing;  ///< whose turn ends at the next barrier, if any: thread 0's, and nobody else looks at it
  int passed;             ///< what it is then
};

/// A tile of rows of a head. No more: head −1.
struct Step {
  int h, m;
};

__device__ __forceinline__ bool visits(const RowTile& tile, int key_tile) {
  return tile.first_block <= key_tile && key_tile < tile.last_block;
}

__device__ __forceinline__ RowTile tile_of(const Arguments& a, int b, int m) {
  return a.tiles[std::int64_t{b} * a.row_tiles + m];
}

/// Takes the next task. Synchronises.
template <class Tile>
__device__ __forceinline__ void begin_task(const Arguments& a, Task& task) {
  if (threadIdx.x == 0) {
    const int index = atomicAdd(a.next_task, 1), heads = static_cast<int>(a.f.p.heads_kv);
    task.b = index / a.key_tiles / heads, task.kv_head = index / a.key_tiles % heads;
    task.key_tile = index % a.key_tiles;
    task.low = a.row_tiles, task.high = 0;
    task.passing = nullptr;
    task.guarded = a.trouble && *a.trouble != 0;
  }
  __syncthreads();
  for (int m = static_cast<int>(threadIdx.x); m < a.row_tiles; m += Tile::kThreads)
    if (visits(tile_of(a, task.b, m), task.key_tile)) atomicMin(&task.low, m), atomicMax(&task.high, m + 1);
  __syncthreads();
}

/// The step after this one.
__device__ __forceinline__ Step next_step(const Arguments& a, const Task& task, Step at) {
  for (;;) {
    if (at.m == task.low) {
      if (++at.h == (task.kv_head + 1) * static_cast<int>(a.f.p.group)) return {-1, 0};
      at.m = task.high;
    }
    if (visits(tile_of(a, task.b, --at.m), task.key_tile)) return at;
  }
}
__device__ __forceinline__ Step first_step(const Arguments& a, const Task& task) {
  if (task.low >= task.high) return {-1, 0};
  return next_step(a, task, {task.kv_head * static_cast<int>(a.f.p.group), task.high});
}

/// The block's turn at a tile of dQ, counted from the first tile of keys that adds to it. One thread's work; a barrier
/// hands on what was waited for, and comes between the block's last access and the end of its turn.
__device__ __forceinline__ void wait_for_turn(const int* turns, int turn) {
  while (load_acquire(turns) != turn) {
  }
}
__device__ __forceinline__ void pass_turn(Task& task) {
  if (threadIdx.x != 0 || !task.passing) return;
  store_release(task.passing, task.passed);
  task.passing = nullptr;
}

/// dQ of a tile in the workspace: the thread's part.
template <class Tile, int kM, int kN>
__device__ __forceinline__ void read_queries(const float* tile, float (&d_q)[kM][kN][4]) {
  const auto* from = reinterpret_cast<const float4*>(tile) + threadIdx.x;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float4 four = __ldcg(from + (m * kN + j) * Tile::kThreads);
      d_q[m][j][0] = four.x, d_q[m][j][1] = four.y, d_q[m][j][2] = four.z, d_q[m][j][3] = four.w;
    }
}
template <class Tile, int kM, int kN>
__device__ __forceinline__ void write_queries(float* tile, const float (&d_q)[kM][kN][4]) {
  auto* to = reinterpret_cast<float4*>(tile) + threadIdx.x;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int j = 0; j < kN; ++j)
      to[(m * kN + j) * Tile::kThreads] = {d_q[m][j][0], d_q[m][j][1], d_q[m][j][2], d_q[m][j][3]};
}

/// Adds what warps found of their rows, d_c and d_scores, to what other tiles of keys found, in turn.
template <class Tile>
__device__ __forceinline__ void add_totals(const Arguments& a, const unsigned char* memory, int b, Step at,
                                           bool first) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= Tile::kRows || at.m * Tile::kRows + row >= a.f.p.len_q) return;
  const auto* sums = reinterpret_cast<const float2*>(memory + Tile::kSums) + row;
  double d_c = 0, squares = 0;
  for (int w = 0; w < Tile::Scores::kColumns; ++w)
    d_c += static_cast<double>(sums[w * Tile::kRows].x), squares += static_cast<double>(sums[w * Tile::kRows].y);
  RowSums* to = a.f.rows + (b * a.f.p.heads_q + at.h) * a.f.p.len_q + at.m * Tile::kRows + row;
  if (!first) d_c += __ldcg(&to->d_c), squares += __ldcg(&to->d_scores);
  to->d_c = d_c, to->d_scores = squares;
}

/// P and dS of a step, from its products, to shared memory.
template <class Tile, class T, bool kRich>
__device__ __forceinline__ void step_scores(const Arguments& a, unsigned char* memory, const Task& task, Step at,
                                            int stage, const RowTile& tile) {
  using Grid = typename Tile::Scores;
  const SharedAddress base = address_of(memory);
  const auto from = static_cast<unsigned>(stage);
  float s[Grid::kM][Grid::kN][4], d_p[Grid::kM][Grid::kN][4];
  clear(s), clear(d_p);
  multiply_scores<Tile, T>(s, base + Tile::kQ + from * Tile::kRowBytes, base + Tile::kK);
  multiply_scores<Tile, T>(d_p, base + Tile::kDO + from * Tile::kRowBytes, base + Tile::kV);
  const RowArrays<Tile::kRows> rows(memory + Tile::kNumbers + stage * Tile::kNumberBytes);
  const int* sick = reinterpret_cast<const int*>(memory + Tile::kSick);
  const int first_key = task.key_tile * Tile::kKeys, row = Grid::first_row(), column = Grid::first_column();
  const bool masked = first_key < tile.max_begin || first_key + Tile::kKeys > tile.min_end;
  const Pairing pairing{task.b, at.h, at.m * Tile::kRows, first_key, masked, task.guarded, a.reference[at.h]};
  auto* sums = reinterpret_cast<float2*>(memory + Tile::kSums) + Grid::column() * Tile::kRows;
  if constexpr (kRich) {
    rich_gradients<Tile::kRows, false>(a, s, d_p, rows, row, column, sick, pairing, sums);
  } else if (a.sums) {
    scaled_gradients_and_sums<Tile::kRows>(s, d_p, rows, row, column, sick, pairing, sums);
  } else {
    scaled_gradients<Tile::kRows>(s, d_p, rows, row, column, sick, pairing);
  }
  store_scores<Tile, T>(base + Tile::kP, s);
  store_scores<Tile, T>(base + Tile::kDS, d_p);
}

/// dK and dV of a block, and their rows' squares for statistics.
template <class Tile, class T, int kM, int kN>
__device__ __forceinline__ void write_keys(const Arguments& a, unsigned char* memory, const Task& task,
                                           const float (&d_k)[kM][kN][4], const float (&d_v)[kM][kN][4]) {
  using Grid = typename Tile::KeySums;
  const ProblemView& p = a.f.p;
  const int b = task.b, head = task.kv_head, first = task.key_tile * Tile::kKeys;
  const float reference =
      task.low < task.high ? a.reference[head * static_cast<int>(p.group)] : 1;  // else there is none
  write_rows<Grid>(RowsOf<T>{a.f.d_v, static_cast<int>(p.dim_v), p.len_kv, b, head, first}, d_v, 1);
  write_rows<Grid>(RowsOf<T>{a.f.d_k, static_cast<int>(p.dim_qk), p.len_kv, b, head, first}, d_k, reference);
  if (!a.f.stats) return;
  auto* parts = reinterpret_cast<float*>(memory + Tile::kP);  // nobody reads it any more
  float* value_parts = parts + Grid::kColumns * Tile::kKeys;
  share_squares<Grid, Tile::kKeys>(d_k, reference, parts);
  share_squares<Grid, Tile::kKeys>(d_v, 1, value_parts);
  __syncthreads();
  const int key = static_cast<int>(threadIdx.x);
  if (key >= Tile::kKeys || first + key >= p.len_kv) return;
  double* squares = a.f.key_squares + (b * p.heads_kv + head) * p.len_kv + first + key;
  squares[0] = square_of<Grid, Tile::kKeys>(parts, key);
  squares[p.batch * p.heads_kv * p.len_kv] = square_of<Grid, Tile::kKeys>(value_parts, key);
}

/// A block's work.
template <class Tile, class T, bool kRich>
__device__ __forceinline__ void go_through_rows(const Arguments& a) {
  using KeyGrid = typename Tile::KeySums;
  using QueryGrid = typename Tile::QuerySums;
  __shared__ Task task;
  unsigned char* memory = shared_memory();
  const SharedAddress base = address_of(memory);
  int* sick = reinterpret_cast<int*>(memory + Tile::kSick);
  const auto load = [&](Step step, int stage) { load_step<Tile>(a, base, task.b, step.h, step.m, stage); };

  begin_task<Tile>(a, task);
  Step next = first_step(a, task);
  if (task.guarded)
    for (int x = static_cast<int>(threadIdx.x); x < Tile::kKeys; x += Tile::kThreads) sick[x] = 0;
  if (next.h >= 0) {
    load_key_tiles<Tile>(a, base, task.b, task.kv_head, task.key_tile);
    load(next, 0);
  }
  copies_commit();

  float d_k[KeyGrid::kM][KeyGrid::kN][4], d_v[KeyGrid::kM][KeyGrid::kN][4];
  clear(d_k), clear(d_v);
#pragma unroll 1
  for (int stage = 0; next.h >= 0; stage = Tile::kStages == 2 ? stage ^ 1 : 0) {
    copies_wait<0>();
    __syncthreads();  // the step's tiles are there, and nobody is in the step before
    pass_turn(task);
    const Step at = next;
    const RowTile tile = tile_of(a, task.b, at.m);
    const SharedAddress q = base + Tile::kQ + static_cast<unsigned>(stage * Tile::kRowBytes),
                        d_o = base + Tile::kDO + static_cast<unsigned>(stage * Tile::kRowBytes);
    if (task.guarded || tile.min_end == 0) [[unlikely]] {
      const RowArrays<Tile::kRows> rows(memory + Tile::kNumbers + stage * Tile::kNumberBytes);
      clean_step<Tile>(a, q, d_o, rows.places, task.guarded);
      if (task.guarded)  // after the first step nothing more is found
        clean_tile<Tile, Tile::kKeys>(base + Tile::kK, a.f.k.dtype, [&](int key) { sick[key] = 1; });
      __syncthreads();
    }
    next = next_step(a, task, at);
    if (Tile::kStages == 2 && next.h >= 0) load(next, stage ^ 1);
    copies_commit();

    step_scores<Tile, T, kRich>(a, memory, task, at, stage, tile);
    const std::int64_t row_tile = (task.b * a.f.p.heads_q + at.h) * a.row_tiles + at.m;
    const bool in_turn = a.d_q || a.sums, first = task.key_tile == tile.first_block;
    if (in_turn && threadIdx.x == 0) {
      wait_for_turn(a.turns + row_tile, task.key_tile - tile.first_block);
      task.passing = a.turns + row_tile;
      task.passed = task.key_tile - tile.first_block + 1;
    }
    __syncthreads();
    if (a.sums) add_totals<Tile>(a, memory, task.b, at, first);
    multiply_rows<Tile, T>(d_v, base + Tile::kP, d_o);
    float d_q[QueryGrid::kM][QueryGrid::kN][4];
    float* sum = a.d_q + row_tile * (Tile::kRows * Tile::kDim);
    if (a.d_q && !first) read_queries<Tile>(sum, d_q);
    else clear(d_q);
    multiply_rows<Tile, T>(d_k, base + Tile::kDS, q);
    if (a.d_q) {
      multiply_keys<Tile, T>(d_q, base + Tile::kDS, base + Tile::kK);
      write_queries<Tile>(sum, d_q);
    }
    if (Tile::kStages == 1) {
      __syncthreads();
      if (next.h >= 0) load(next, 0);
      copies_commit();
    }
  }
  copies_wait<0>();
  __syncthreads();
  pass_turn(task);
  write_keys<Tile, T>(a, memory, task, d_k, d_v);
}

/// Whether any card of the compute capability that is compiled for has room for a tile: else there is nothing to run.
template <class Tile>
inline constexpr bool kHasRoom =
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
    true;
#elif __CUDA_ARCH__ == 800
    Tile::kBytes <= 163 * 1024;
#else
    Tile::kBytes <= 99 * 1024;
#endif

template <class Tile, class T, bool kRich>
__global__ void __launch_bounds__(Tile::kThreads, 1) mma_backward_kernel(const __grid_constant__ Arguments a) {
  if constexpr (kHasRoom<Tile>) go_through_rows<Tile, T, kRich>(a);
  else __trap();  // the launch knows what the card has, this what it was compiled for
}

template <class Tile, class T, bool kRich>
void launch_main(const Arguments& a, cudaStream_t stream) {
  const auto tasks = static_cast<unsigned>(a.f.p.batch * a.f.p.heads_kv * a.key_tiles);
  const auto kernel = mma_backward_kernel<Tile, T, kRich>;
  allow_shared(kernel, Tile::kBytes);
  launch_kernel("mma backward", kernel, tasks, Tile::kThreads, Tile::kBytes, stream, a);
}

}  // namespace rootdk::cuda::mma::back
