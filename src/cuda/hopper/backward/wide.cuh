// Consumers of the Hopper backward for dims up to 256, of which a block owns 64 keys. dV fills the registers of one
// warpgroup, dK those of the other, so each does its own half of a step and nothing is computed twice; P goes from the
// first to the second, in the order of registers.
//
//   first     S, P = exp2(S·c − LSE); dV += Pᵀ·dO
//   second    dP, dS = P∘(dP − D); dK += dSᵀ·Q
//
// dQ is left to query_major.cuh: 64 keys to a sum would make it more traffic than L2, the second-level cache, has room
// for.
#pragma once

#include "cuda/hopper/backward/consumer.cuh"

namespace rootdk::cuda::back {

/// `kFirst`: which of the two.
template <class Tile, class Element, bool kFirst>
__device__ __forceinline__ void consume_wide(const BackwardArguments& a, std::uint8_t* memory) {
  constexpr int kKeys = Tile::kKeys, kRows = Tile::kRows, kDim = Tile::kDim;
  static_assert(kKeys == 64 && kRows == 64 && Tile::kQueryStages == 2 && Tile::kGradStages == 2);
  const std::uint32_t base = shared_address(memory);
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int row = warp * 16 + lane / 4;  // key, within the tile

  const auto scores = [&](float(&s)[kRows / 2], int keys, int rows) {
    const std::uint64_t first_a = operand(same_in_warp(keys)), first_b = operand(same_in_warp(rows));
    multiply_scores<Tile, Element>(s, first_a, first_b);
  };
  const auto values = [&](float(&d)[kDim / 2], const std::uint32_t(&weights)[kRows / 4], int rows) {
    multiply_rows<Tile, Element>(d, weights, operand(same_in_warp(rows), kRows * 128));
  };

  int stage = 0;               // of Q and dO, and of the exchange
  std::uint32_t parities = 0;  // of the rounds of the rings: 1 for tasks, 2 for Q and dO
  // Own: what the first product wants, Q or dO. Other: what the second does.
  constexpr int kOwnFull = kFirst ? Tile::kFullQ : Tile::kFullDO, kOtherFull = kFirst ? Tile::kFullDO : Tile::kFullQ;
  constexpr int kOwnEmpty = kFirst ? Tile::kEmptyQ : Tile::kEmptyDO,
                kOtherEmpty = kFirst ? Tile::kEmptyDO : Tile::kEmptyQ;
  constexpr int kOwn = kFirst ? Tile::kQ : Tile::kDO, kOther = kFirst ? Tile::kDO : Tile::kQ,
                kOwnKeys = kFirst ? Tile::kK : Tile::kV;

#pragma unroll 1
  for (;; parities ^= 1) {
    barrier_wait(base + Tile::kFullK, parities & 1);
    const auto& task = *reinterpret_cast<const Task*>(memory + Tile::kTask);  // there until EmptyK
    if (task.index < 0) break;
    int left = task.steps;

    float sums[kDim / 2];  // dV, or dK
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) sums[i] = 0;
    if (left > 0) {
      std::uint32_t weights[kRows / 4];  // P, or dS
      barrier_wait(base + Tile::kFullV, parities & 1);
      hold(sums);
#pragma unroll 1
      for (; left > 0; --left) {
        barrier_wait(base + kOwnFull + 8 * stage, parities >> 1);
        float s[kRows / 2];  // S, or dP
        products_begin();
        scores(s, base + kOwnKeys, base + kOwn + stage * Tile::kRowBytes);
        products_wait<1>();  // the sum of the step before
        hold(sums), hold(weights);
        if (left < task.steps) release(base + kOtherEmpty + 8 * (stage ^ 1));
        products_wait<0>();
        hold(s);
        auto* exchanged =
            reinterpret_cast<uint4*>(memory + Tile::kDS + again(stage) * Tile::kScoreBytes) + thread_again() % 128;
        if constexpr (kFirst) {
          weigh<Tile, true>(s, memory, *reinterpret_cast<const Step*>(memory + Tile::kSteps + kStepBytes * stage),
                            stage, task.key_tile * kKeys + row);
#pragma unroll
          for (int x = 0; x < kRows / 4; ++x) weights[x] = pack2<Element>(s[2 * x], s[2 * x + 1]);
          barrier_wait(base + Tile::kSeen + 8 * stage, parities >> 1 ^ 1);
#pragma unroll
          for (int x = 0; x < 4; ++x)
            exchanged[128 * x] = {weights[4 * x], weights[4 * x + 1], weights[4 * x + 2], weights[4 * x + 3]};
          barrier_arrive(base + Tile::kShown + 8 * stage);
          release(base + kOwnEmpty + 8 * stage);
          barrier_wait(base + kOtherFull + 8 * stage, parities >> 1);
        } else {
          barrier_wait(base + Tile::kShown + 8 * stage, parities >> 1);
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const uint4 four = exchanged[128 * x];
            weights[4 * x] = four.x, weights[4 * x + 1] = four.y, weights[4 * x + 2] = four.z,
                        weights[4 * x + 3] = four.w;
          }
          barrier_arrive(base + Tile::kSeen + 8 * stage);
          barrier_wait(base + kOtherFull + 8 * stage, parities >> 1);  // the step's ratio comes with Q
          const auto& step = *reinterpret_cast<const Step*>(memory + Tile::kSteps + kStepBytes * stage);
          const int special = step.special;
          const auto* delta = reinterpret_cast<const float2*>(memory + Tile::kDelta + stage * kRows * 4) + lane % 4;
          times_difference(s, delta, [&](int x) { return unpack2<Element>(weights[x / 2]); });
          if (special & kRatio) multiply_all(s, step.ratio);
          if (special & kMasked) {
#pragma unroll
            for (int x = 0; x < kRows / 4; ++x)
              weights[x] = hide_gradients<Element>(pack2<Element>(s[2 * x], s[2 * x + 1]), weights[x]);
          } else {
#pragma unroll
            for (int x = 0; x < kRows / 4; ++x) weights[x] = pack2<Element>(s[2 * x], s[2 * x + 1]);
          }
          release(base + kOwnEmpty + 8 * stage);
        }
        hold(weights), hold(sums);
        products_begin();
        values(sums, weights, base + kOther + stage * Tile::kRowBytes);
        parities ^= stage << 1, stage ^= 1;
      }
      products_wait<0>();
      hold(sums), hold(weights);
      release(base + kOtherEmpty + 8 * (stage ^ 1));
    }
    const int batch = task.batch, head = task.head, first_key = task.key_tile * kKeys + row;
    release(base + Tile::kEmptyK), release(base + Tile::kEmptyV);
    const float scale = kFirst ? 1 : a.heads ? a.heads[head * a.f.p.group].last : a.scale;
    write_rows<Element>(kFirst ? a.f.d_v : a.f.d_k, static_cast<int>(kFirst ? a.f.p.dim_v : a.f.p.dim_qk), a.f.p.len_kv,
                        batch, head, first_key, sums, scale);
  }
}

}  // namespace rootdk::cuda::back
