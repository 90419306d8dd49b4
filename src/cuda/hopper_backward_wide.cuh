// Consumers of the Hopper backward for dims up to 256. dK and dV of 64 keys fill both warpgroups' registers: each has half of their columns, and of dQ's.
// Scores and dP, which both need, both compute, so there is nothing to exchange; two products in seven are done twice.
#pragma once

#include "cuda/hopper_backward_parts.cuh"

namespace rootdk::gpu::back {

template <class T_, class T>
__device__ __forceinline__ void consume_wide(const BackwardArguments& a, std::uint8_t* memory, int group) {
  constexpr int kKeys = T_::kKeys, kRows = T_::kRows, kDim = T_::kDim, kHalf = kDim / 2;
  const std::uint32_t base = shared_address(memory);
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int row = warp * 16 + lane / 4;  // key, within the tile

  const auto scores = [&](float(&s)[kRows / 2], std::uint32_t keys, std::uint32_t rows) {
    const std::uint64_t first_a = operand(keys), first_b = operand(rows);
#pragma unroll
    for (int x = 0; x < kDim / 16; ++x) {
      const int panel = x / 4, offset = x % 4 * 32;
      const std::uint64_t next_a = first_a + (panel * kKeys * 128 + offset) / 16, next_b = first_b + (panel * kRows * 128 + offset) / 16;
      if (x == 0) FirstScores<kRows, T>::mma(s, next_a, next_b);
      else Scores<kRows, T>::mma(s, next_a, next_b, 1);
    }
    products_commit();
  };
  const auto values = [&](float(&d)[kHalf / 2], const std::uint32_t(&weights)[kRows / 4], std::uint32_t rows) {
    const std::uint64_t first = operand(rows + group * (kHalf / 64) * kRows * 128, kRows * 128);
#pragma unroll
    for (int x = 0; x < kRows / 16; ++x) Values<kHalf, T>::mma(d, weights + 4 * x, first + x * 16 * 128 / 16);
    products_commit();
  };
  const auto query_products = [&](float(&d_q)[32], int part) {
    const std::uint64_t first_a = operand(base + T_::kK + (group * (kHalf / 64) + part) * kKeys * 128), first_b = operand(base + T_::kDS + group * T_::kScoreBytes);
#pragma unroll
    for (int x = 0; x < kKeys / 16; ++x) {
      if (x == 0) Transposed<T>::first(d_q, first_a, first_b);
      else Transposed<T>::add(d_q, first_a + x * 16 * 128 / 16, first_b + x * 16 * 128 / 16);
    }
    products_commit();
  };

  int q_stage = 0;
  std::uint32_t parities = 0;  // of the rounds of the rings: 1 for tasks, 2 for Q, 4 for dO, that is, whether the steps so far are odd
  const Barriers barriers{group};
  if (group == 1) barriers.pass_turn();
  const auto hand_over = [&](const float(&d_q)[32], int part) {
    barrier_wait(base + T_::kEmptyDQ + 8 * group, part ^ 1);
    auto* sum = reinterpret_cast<float4*>(memory + T_::kDQ + group * T_::kPartBytes) + thread_again() % 128;
#pragma unroll
    for (int x = 0; x < 8; ++x) sum[128 * x] = {d_q[4 * x], d_q[4 * x + 1], d_q[4 * x + 2], d_q[4 * x + 3]};
    if (part == 0 && group == 0 && thread == 0) {
      const auto& step = *reinterpret_cast<const Step*>(memory + T_::kSteps + 32 * q_stage);
      *reinterpret_cast<Turn*>(memory + T_::kTurn + 8 * (parities >> 2)) = {step.tile, step.turn};
    }
    fence_shared();
    __syncwarp();
    if (lane == 0) barrier_arrive(base + T_::kFullDQ + 8 * group);
  };

#pragma unroll 1
  for (;; parities ^= 1) {
    barrier_wait(base + T_::kFullK, parities & 1);
    const auto& task = *reinterpret_cast<const Task*>(memory + T_::kTask);  // there until EmptyK
    if (task.index < 0) break;
    int left = task.steps;

    float d_k[kHalf / 2], d_v[kHalf / 2];
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) d_k[i] = d_v[i] = 0;
    if (left > 0) {
      std::uint32_t weights[kRows / 4], d_scores[kRows / 4];
      barrier_wait(base + T_::kFullV, parities & 1);
      hold(d_k), hold(d_v);
      barriers.take_turn();
#pragma unroll 1
      for (; left > 0; --left) {
        barrier_wait(base + T_::kFullQ + 8 * q_stage, parities >> 1 & 1);
        const auto& step = *reinterpret_cast<const Step*>(memory + T_::kSteps + 32 * q_stage);
        float s[kRows / 2], d_p[kRows / 2];
        products_begin();
        scores(s, base + T_::kK, base + T_::kQ + q_stage * T_::kRowBytes);
        barrier_wait(base + T_::kFullDO, parities >> 2);
        products_begin();
        scores(d_p, base + T_::kV, base + T_::kDO);
        barriers.pass_turn();
        products_wait<1>();  // S
        hold(s);
        weigh<T_>(s, memory, step, q_stage, task.key_tile * kKeys + row);
#pragma unroll
        for (int x = 0; x < kRows / 4; ++x) weights[x] = pack2<T>(s[2 * x], s[2 * x + 1]);
        hold(weights), hold(d_v);
        products_begin();
        values(d_v, weights, base + T_::kDO);
        products_wait<1>();  // dP
        hold(d_p);

        const auto* delta = reinterpret_cast<const float2*>(memory + T_::kDelta) + lane % 4;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const float2 shift = delta[4 * j];
#pragma unroll
          for (int x = 4 * j; x < 4 * j + 4; ++x) s[x] *= d_p[x] - (x % 2 ? shift.y : shift.x);
        }
        if (const float ratio = step.ratio; ratio != 1) {
#pragma unroll
          for (int x = 0; x < kRows / 2; ++x) s[x] *= ratio;
        }
#pragma unroll
        for (int x = 0; x < kRows / 4; ++x) d_scores[x] = pack2<T>(s[2 * x], s[2 * x + 1]);
        const std::uint32_t place = thread_again() % 128, own_row = place / 32 * 16 + place % 16;
        const std::uint32_t to = base + T_::kDS + group * T_::kScoreBytes + own_row * 128 + (place / 16 % 2 ^ own_row % 8) * 16;
#pragma unroll
        for (int x = 0; x < kRows / 16; ++x) store_matrices(to ^ x * 32, d_scores + 4 * x);
        fence_shared();
        products_wait<0>();  // dV
        hold(d_v), hold(weights);
        barriers.wait_own();  // dS is written, D is read
        if (thread == 0) barrier_arrive(base + T_::kEmptyDO);

        barriers.take_turn();
        {
          float d_q[32];
          hold(d_k), hold(d_scores);
          products_begin();
          query_products(d_q, 0);
          values(d_k, d_scores, base + T_::kQ + again(q_stage) * T_::kRowBytes);
          products_wait<1>();  // dQ
          hold(d_q);
          hand_over(d_q, 0);
        }
        {
          float d_q[32];
          products_begin();
          query_products(d_q, 1);
          products_wait<0>();
          hold(d_q), hold(d_k), hold(d_scores);
          hand_over(d_q, 1);
        }
        barriers.wait_own();  // all have read the step
        if (thread == 0) barrier_arrive(base + T_::kEmptyQ + 8 * q_stage);
        parities ^= 4;
        if (++q_stage == T_::kQueryStages) q_stage = 0, parities ^= 2;
      }
      barriers.pass_turn();
    }
    const int batch = task.batch, head = task.head, first_key = task.key_tile * kKeys + row;
    barriers.wait_own();  // all have read the task
    if (thread == 0) barrier_arrive(base + T_::kEmptyK), barrier_arrive(base + T_::kEmptyV);
    write_keys<T>(a, a.f.d_v, group * kHalf, static_cast<int>(a.f.p.dim_v), nullptr, batch, head, first_key, d_v, 1);
    write_keys<T>(a, a.f.d_k, group * kHalf, static_cast<int>(a.f.p.dim_qk), nullptr, batch, head, first_key, d_k, a.heads ? a.heads[head * a.f.p.group].last : a.scale);
  }
  if (group == 0) {  // nothing more to add
    barrier_wait(base + T_::kEmptyDQ, 1);
    if (thread == 0) *reinterpret_cast<Turn*>(memory + T_::kTurn + 8 * (parities >> 2)) = {-1, 0};
    __syncwarp();
    if (lane == 0) barrier_arrive(base + T_::kFullDQ);
  }
}

}  // namespace rootdk::gpu::back
