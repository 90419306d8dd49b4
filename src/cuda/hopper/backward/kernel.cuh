// Backward on Hopper, the main kernel: FlashAttention-2's five products (Dao 2023) for blocks that own keys, in a
// persistent, warp-specialised kernel. A block owns 128 keys, 64 for each of two consumer warpgroups, and goes through
// the tiles of query rows that see any of them. Scores are computed transposed, keys × queries, so that P and dS are
// in registers as the products dV += Pᵀ·dO and dK += dSᵀ·Q want them; dS also goes to shared memory, for dQᵀ = Kᵀ·dSᵀ
// over the keys of both warpgroups.
//
//   in flight   meanwhile
//   S           –
//   dP          P = exp2(S·c − LSE)
//   dV          dS = P∘(dP − D), to shared memory
//   dQ          –; of the tile before, so that neither warpgroup waits for the other's dS
//   dK          dQ to shared memory; then S of the next tile is issued
//
// One producer warp loads (TMA); another adds dQ to the sum in memory, in bulk (TMA's reduce-add). So that the bits do
// not depend on the schedule, the blocks that add to a tile take turns (a semaphore for each tile of dQ), in an order
// that place_task arranges to be the one in which they come by.
#pragma once

#include "cuda/common/launch.h"
#include "cuda/hopper/backward/wide.cuh"

namespace rootdk::cuda::back {

/// dQᵀ = Kᵀ·dSᵀ over the keys of both warpgroups, issued: of the dS in this buffer.
template <class Tile, class Element>
__device__ __forceinline__ void multiply_queries(float (&d_q)[32], std::uint32_t base, int group, int buffer) {
  constexpr int kKeys = Tile::kKeys, kDim = Tile::kDim;
  const std::uint64_t first_a = operand(base + Tile::kK + (kDim == 128 ? group * kKeys * 128 : 0));
  const std::uint64_t first_b =
      operand(base + Tile::kDS + buffer * Tile::kScoreBytes + (kDim == 64 ? group * kKeys * 128 : 0));
#pragma unroll
  for (int x = 0; x < kKeys / 16; ++x) {
    if (x == 0) Transposed<Element>::first(d_q, first_a, first_b);
    else Transposed<Element>::add(d_q, first_a + x * 16 * 128 / 16, first_b + x * 16 * 128 / 16);
  }
  products_commit();
}

/// The warpgroup's part of dQ to shared memory, for the thread that adds it to the sum.
template <class Tile>
__device__ __forceinline__ void hand_over_queries(const float (&d_q)[32], std::uint8_t* memory, std::uint32_t base,
                                                  int group, int parity) {
  barrier_wait(base + Tile::kEmptyDQ + 8 * group, parity);
  auto* sum = reinterpret_cast<float4*>(memory + Tile::kDQ + group * Tile::kPartBytes) + thread_again() % 128;
#pragma unroll
  for (int x = 0; x < 8; ++x) sum[128 * x] = {d_q[4 * x], d_q[4 * x + 1], d_q[4 * x + 2], d_q[4 * x + 3]};
  fence_shared();
  barrier_arrive(base + Tile::kFullDQ + 8 * group);
}

/// Where this thread's row of four matrices of dS goes, as store_matrices wants it.
template <class Tile>
__device__ __forceinline__ std::uint32_t place_of_scores(std::uint32_t base, int buffer) {
  const std::uint32_t place = thread_again() - 128, row = place / 32 * 16 + place % 16;
  return base + Tile::kDS + buffer * Tile::kScoreBytes + row * 128 + (place / 16 % 2 ^ row % 8) * 16;
}

template <class Tile, int N>
__device__ __forceinline__ void store_scores(std::uint32_t to, const std::uint32_t (&d_scores)[N]) {
#pragma unroll
  for (int x = 0; x < N / 4; ++x) store_matrices((to ^ x % 4 * 32) + x / 4 * Tile::kKeys * 128, d_scores + 4 * x);
}

/// Tells the thread that adds dQ that nothing more comes.
template <class Tile>
__device__ __forceinline__ void end_queries(std::uint8_t* memory, std::uint32_t base, int parity) {
  barrier_wait(base + Tile::kEmptyDQ, parity ^ 1);
  if (threadIdx.x % 128 == 0) *reinterpret_cast<Turn*>(memory + Tile::kTurn + 8 * parity) = {-1, 0};
  barrier_arrive(base + Tile::kFullDQ);
}

/// ‖dS‖² of the warp's part of a step, for statistics: to what the task's steps with this head had before.
__device__ __forceinline__ void add_squares(const BackwardArguments& a, const Task& task, const Step& step, int group,
                                            float square) {
  const int thread = threadIdx.x % 128, warp = thread / 32;
  if (thread % 32 != 0) return;
  double& sum =
      a.score_squares[(std::int64_t{step.tile / a.row_tiles} * a.key_tiles + task.key_tile) * 8 + group * 4 + warp];
  sum = (step.first ? 0 : sum) + static_cast<double>(square);
}

/// As products want their left operand.
template <class Element, int N>
__device__ __forceinline__ void pack_pairs(std::uint32_t (&pairs)[N], const float (&x)[2 * N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) pairs[i] = pack2<Element>(x[2 * i], x[2 * i + 1]);
}

/// dS as products want it; zero where a mask hides the pair.
template <class Element, int N>
__device__ __forceinline__ void pack_gradients(std::uint32_t (&d_scores)[N], const float (&d_s)[2 * N],
                                               const std::uint32_t (&weights)[N], bool masked) {
  pack_pairs<Element>(d_scores, d_s);
  if (!masked) return;
#pragma unroll
  for (int x = 0; x < N; ++x) d_scores[x] = hide_gradients<Element>(d_scores[x], weights[x]);
}

/// dK and dV of the warpgroup's keys, and the squares of their rows for statistics.
template <class Element, int N>
__device__ __forceinline__ void write_keys(const BackwardArguments& a, int batch, int head, int first_key,
                                           const float (&d_k)[N], const float (&d_v)[N]) {
  const std::int64_t length = a.f.p.len_kv;
  double* squares = a.f.stats ? a.f.key_squares + (batch * a.f.p.heads_kv + head) * length : nullptr;
  double* value_squares = squares ? squares + a.f.p.batch * a.f.p.heads_kv * length : nullptr;
  write_rows<Element>(a.f.d_v, static_cast<int>(a.f.p.dim_v), length, batch, head, first_key, d_v, 1, value_squares);
  write_rows<Element>(a.f.d_k, static_cast<int>(a.f.p.dim_qk), length, batch, head, first_key, d_k,
                      a.heads ? a.heads[head * a.f.p.group].last : a.scale, squares);
}

/// Q of the step before.
template <class Tile>
__device__ __forceinline__ void release_queries_before(std::uint32_t base, int stage) {
  release(base + Tile::kEmptyQ + 8 * (stage == 0 ? Tile::kQueryStages - 1 : stage - 1));
}

/// A consumer warpgroup. kRare: of a launch whose steps may need more than a mask; compiled apart, since instructions
/// that a loop jumps over are fetched all the same.
template <class Tile, class Element, bool kRare>
__device__ __forceinline__ void consume(const BackwardArguments& a, std::uint8_t* memory, int group) {
  constexpr int kKeys = Tile::kKeys, kRows = Tile::kRows, kDim = Tile::kDim;
  static_assert(Tile::kGradStages == 2);  // o_stage
  const std::uint32_t base = shared_address(memory);
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int row = group * 64 + warp * 16 + lane / 4;  // key, within the tile

  const auto scores = [&](float(&s)[kRows / 2], std::uint32_t keys, std::uint32_t rows) {
    multiply_scores<Tile, Element>(s, operand(keys + group * 64 * 128), operand(rows));
  };
  const auto values = [&](float(&d)[kDim / 2], const std::uint32_t(&weights)[kRows / 4], std::uint32_t rows) {
    multiply_rows<Tile, Element>(d, weights, operand(rows, kRows * 128));
  };

  int q_stage = 0, o_stage = 0;  // o_stage is also the buffer that dS goes to, and whether the steps so far are odd
  std::uint32_t parities = 0;    // of the rounds of the rings: 1 for tasks, 2 for Q, 4 for dO
  const Barriers barriers{group};
  barriers.free_scores(0), barriers.free_scores(1);
  if (group == 1) barriers.pass_turn();

  // dQ of the step before, whose dS is in the other buffer.
  const auto query_products = [&](float(&d_q)[32]) {
    multiply_queries<Tile, Element>(d_q, base, group, again(o_stage) ^ 1);
  };
  const auto hand_over = [&](const float(&d_q)[32]) {
    barriers.free_scores(o_stage ^ 1);
    hand_over_queries<Tile>(d_q, memory, base, group, o_stage);
  };
#pragma unroll 1
  for (;; parities ^= 1) {
    barrier_wait(base + Tile::kFullK, parities & 1);
    const auto& task = *reinterpret_cast<const Task*>(memory + Tile::kTask);  // there until EmptyK
    if (task.index < 0) break;
    int left = task.steps;
    float d_k[kDim / 2], d_v[kDim / 2];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) d_k[i] = d_v[i] = 0;
    if (left > 0) {
      std::uint32_t weights[kRows / 4], d_scores[kRows / 4];
      barrier_wait(base + Tile::kFullV, parities & 1);
      hold(d_k), hold(d_v);
      barriers.take_turn();
#pragma unroll 1
      for (; left > 0; --left) {
        barrier_wait(base + Tile::kFullQ + 8 * q_stage, parities >> 1 & 1);
        const auto& step = *reinterpret_cast<const Step*>(memory + Tile::kSteps + kStepBytes * q_stage);
        float s[kRows / 2], d_p[kRows / 2];
        barrier_wait(base + Tile::kFullDO + 8 * o_stage, parities >> 2);
        products_begin();
        scores(s, base + Tile::kK, base + Tile::kQ + q_stage * Tile::kRowBytes);
        scores(d_p, base + Tile::kV, base + Tile::kDO + o_stage * Tile::kRowBytes);
        barriers.pass_turn();
        products_wait<1>();  // S, and dK of the step before
        hold(s), hold(d_k), hold(d_scores);
        if (left < task.steps) release_queries_before<Tile>(base, q_stage);

        weigh<Tile, kRare>(s, memory, step, q_stage, task.key_tile * kKeys + row);
        pack_pairs<Element>(weights, s);
        hold(weights), hold(d_v);
        products_begin();
        values(d_v, weights, base + Tile::kDO + again(o_stage) * Tile::kRowBytes);
        products_wait<1>();  // dP
        hold(d_p);

        const int special = step.special;
        const auto* delta = reinterpret_cast<const float2*>(memory + Tile::kDelta + o_stage * kRows * 4) + lane % 4;
        times_difference(d_p, delta, [&](int x) -> float2 {
          if constexpr (Tile::kKeepsWeights) return {s[x], s[x + 1]};
          else return unpack2<Element>(weights[x / 2]);
        });
        if (kRare && special & (kRatio | kSquares)) {
          if (special & kSquares) add_squares(a, task, step, group, sum_of_squares(d_p, weights));
          if (special & kRatio) multiply_all(d_p, step.ratio);
        }
        pack_gradients<Element>(d_scores, d_p, weights, special & kMasked);
        const std::uint32_t to = place_of_scores<Tile>(base, again(o_stage));
        barriers.wait_free(o_stage);
        store_scores<Tile>(to, d_scores);
        fence_shared();
        barriers.show_scores(o_stage);

        barriers.take_turn();
        const bool first = left == task.steps;
        if (!first) barriers.wait_scores(o_stage ^ 1);
        float d_q[32];
        hold(d_k), hold(d_scores);
        products_begin();
        query_products(d_q);  // in the first step of nothing: a branch around a product in flight would cost more
        values(d_k, d_scores, base + Tile::kQ + again(q_stage) * Tile::kRowBytes);
        products_wait<1>();  // dV, dQ
        hold(d_q), hold(d_v), hold(weights);
        release(base + Tile::kEmptyDO + 8 * o_stage);
        if (!first) hand_over(d_q);
        if (group == 0 && thread == 0)
          *reinterpret_cast<Turn*>(memory + Tile::kTurn + 8 * o_stage) = {step.tile, step.turn};
        if constexpr (!Tile::kKeepsWeights) {  // dK's operand makes room for scores
          products_wait<0>();
          hold(d_k), hold(d_scores);
        }
        parities ^= o_stage << 2, o_stage ^= 1;
        if (++q_stage == Tile::kQueryStages) q_stage = 0, parities ^= 2;
      }
      products_wait<0>();
      hold(d_k), hold(d_scores);
      release_queries_before<Tile>(base, q_stage);
      barriers.wait_scores(o_stage ^ 1);
      float d_q[32];
      products_begin();
      query_products(d_q);
      products_wait<0>();
      hold(d_q);
      barriers.pass_turn();
      hand_over(d_q);
    }
    const int batch = task.batch, head = task.head, first_key = task.key_tile * kKeys + row;
    release(base + Tile::kEmptyK), release(base + Tile::kEmptyV);
    write_keys<Element>(a, batch, head, first_key, d_k, d_v);
  }
  if (group == 0) end_queries<Tile>(memory, base, o_stage);
}

template <class Tile, class Element>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    hopper_backward_kernel(const __grid_constant__ BackwardArguments a) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t base = shared_address(memory);
  if (a.once_more && load_acquire(a.trouble) != kSickKeys) return;
  if (threadIdx.x == 0) {
    for (const int barrier : {Tile::kFullK, Tile::kFullV, Tile::kCleaning}) barrier_init(base + barrier, 1);
    auto& cleaning = *reinterpret_cast<Cleaning*>(memory + Tile::kCleaning);
    cleaning.count = 0, cleaning.guarded = is_guarded(a, a.once_more);
    barrier_init(base + Tile::kEmptyK, a.unseen_keys ? kReleases + 32 : kReleases),
        barrier_init(base + Tile::kEmptyV, kReleases);
    for (int x = 0; x < Tile::kQueryStages; ++x)
      barrier_init(base + Tile::kFullQ + 8 * x, 1), barrier_init(base + Tile::kEmptyQ + 8 * x, kReleases);
    for (int x = 0; x < Tile::kGradStages; ++x)
      barrier_init(base + Tile::kFullDO + 8 * x, 1), barrier_init(base + Tile::kEmptyDO + 8 * x, kReleases);
    for (int x = 0; x < 2; ++x) {
      barrier_init(base + Tile::kFullDQ + 8 * x, 128), barrier_init(base + Tile::kEmptyDQ + 8 * x, 1);
      barrier_init(base + Tile::kShown + 8 * x, 128), barrier_init(base + Tile::kSeen + 8 * x, 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
    auto& task = *reinterpret_cast<Task*>(memory + Tile::kTask);
    task.parity = 0, task.index = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x);
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Tile::kProducerRegisters));
    if (threadIdx.x < 32) produce<Tile>(a, memory);
    else if (!Tile::kWide && threadIdx.x == 32) add_queries<Tile>(a, memory);
    else if (threadIdx.x / 32 == 2 && a.unseen_keys) inspect<Tile>(a, memory);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Tile::kConsumerRegisters));
    if constexpr (Tile::kWide) {
      if (warpgroup == 1) consume_wide<Tile, Element, true>(a, memory);
      else consume_wide<Tile, Element, false>(a, memory);
    } else {
      const int group = same_in_warp(warpgroup - 1);
      const bool guarded = reinterpret_cast<const Cleaning*>(memory + Tile::kCleaning)->guarded;
      if (guarded || a.score_squares || a.heads) consume<Tile, Element, true>(a, memory, group);
      else consume<Tile, Element, false>(a, memory, group);
    }
  }
}

template <class Tile, class Element>
void launch(const BackwardArguments& a, int blocks, cudaStream_t stream) {
  const auto kernel = hopper_backward_kernel<Tile, Element>;
  allow_shared(kernel, Tile::kBytes);
  if (a.ring > 0) {
    Launch all(static_cast<unsigned>(blocks), Tile::kThreads, Tile::kBytes, stream);
    if (all.together().run("hopper backward", kernel, a)) return;
  }
  BackwardArguments alone = a;  // no ring, or part of the card is not ours
  alone.ring = 0;
  launch_kernel("hopper backward", kernel, static_cast<unsigned>(blocks), Tile::kThreads, Tile::kBytes, stream, alone);
}

template <class Tile>
void dispatch(const BackwardArguments& a, DType dtype, int blocks, cudaStream_t stream) {
  if (dtype == DType::kBF16) launch<Tile, __nv_bfloat16>(a, blocks, stream);
  else launch<Tile, __half>(a, blocks, stream);
}

}  // namespace rootdk::cuda::back
