// A consumer warpgroup: 64 query rows through all the blocks of keys that they see, wgmma products on either side of
// softmax.
#pragma once

#include <type_traits>

#include "cuda/hopper/forward/epilogue.cuh"
#include "cuda/hopper/wgmma.cuh"

namespace rootdk::cuda {

/// Keys of a block, as a type.
template <int kWidth>
using Width = std::integral_constant<int, kWidth>;

/// s = q·kᵀ of a block: `k` is where it lies in shared memory, `first_q` the warpgroup's queries.
template <class Tile, class T, int N>
__device__ __forceinline__ void multiply_keys(float (&s)[N], std::uint64_t first_q, std::uint32_t k) {
  const std::uint64_t first_k = operand(k);  // addresses within are added: in units of 16 bytes, in the low bits
#pragma unroll
  for (int x = 0; x < Tile::kDim / 16; ++x) {
    const int panel = x / 4, offset = x % 4 * 32;
    Scores<2 * N, T>::mma(s, first_q + (panel * 64 * 128 + offset) / 16,
                          first_k + (panel * Tile::kKeys * 128 + offset) / 16, x != 0);
  }
  products_commit();
}

/// o += p·v over the first kWidth keys of a block.
template <class Tile, class T, int kWidth>
__device__ __forceinline__ void multiply_values(float (&o)[Tile::kDim / 2],
                                                const std::uint32_t (&weights)[Tile::kKeys / 4], Width<kWidth>,
                                                std::uint32_t v) {
  const std::uint64_t first_v = operand(v, Tile::kKeys * 128);
#pragma unroll
  for (int x = 0; x < kWidth / 16; ++x) Values<Tile::kDim, T>::mma(o, weights + 4 * x, first_v + x * 16 * 128 / 16);
  products_commit();
}

/// Blocks of keys that no row of this warpgroup sees. They are waited for all the same: a barrier's parity tells a
/// block only from the next one in its stage.
template <class Tile>
__device__ __forceinline__ void pass_over(const HopperShared<Tile>& shared, int thread, int place, int count) {
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    const RingPlace<Tile::kStages> at{place + n};
    barrier_wait(shared.full_k + 8 * at.stage(), at.parity());
    barrier_wait(shared.full_v + 8 * at.stage(), at.parity());
    if (thread % 32 == 0)
      barrier_arrive(shared.empty_k + 8 * at.stage()), barrier_arrive(shared.empty_v + 8 * at.stage());
  }
}

/// From here on sums are relative to the maximum, on which the quad agrees.
template <bool kFull, ScoreKind kKind>
__device__ __forceinline__ void settle(RowPair& rows, FullPair& full, float (&shrink)[2], const float (&scale2)[2],
                                       float inner) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = quad_max(rows.max[r]);
    float step = (rows.base[r] - rows.max[r]) * scale2[r];
    if constexpr (kKind == ScoreKind::kCapped)
      step = capped_origin(rows.base[r], scale2[r], inner) - capped_origin(rows.max[r], scale2[r], inner);
    if constexpr (kFull) step = fmaf(-rows.max[r], scale2[r], rows.base[r]);
    if (rows.max[r] == -kInfinityF) step = 0;
    shrink[r] = exp2_approx(step);
    if constexpr (kFull) shift_full(full, r, rows.sum[r], step, shrink[r]);
    rows.sum[r] *= shrink[r];
  }
}

/// One tile in a consumer warpgroup: its rows through all their blocks of keys. `tile_ring` is the tile's first place
/// in the rings.
template <class Tile, class T, bool kFull, ScoreKind kKind>
__device__ __forceinline__ void consume(const HopperArguments& a, const HopperShared<Tile>& shared, Work& work,
                                        int group, int round, int& tile_ring) {
  constexpr int kKeys = Tile::kKeys, kDim = Tile::kDim, kStages = Tile::kStages, kGroups = Tile::kGroups;
  static_assert(!kFull || kKind == ScoreKind::kScaled);
  // Blocks that need nothing but softmax have a loop of their own, since instructions that a loop jumps over are
  // fetched all the same. Measured: at dim 128 it is slower, at 256 there are no registers for it.
  constexpr bool kApart = kKind == ScoreKind::kScaled && !Tile::kPacked && kDim == 64;
  const ProblemView& p = a.f.p;
  const int thread = thread_again() % 128, row = group * 64 + thread / 32 * 16 + thread % 32 / 4;
  int ring = tile_ring;

  int begin[2], end[2];
  float scale2[2], inner = 0;
  RichPair rich;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PlacedRow place = place_row<Tile>(a, work, row + 8 * r);
    begin[r] = 0, end[r] = 0x7fffffff;  // padding needs no mask
    float c = 1;
    if constexpr (kKind == ScoreKind::kRich) {
      rich.h[r] = -1, rich.i[r] = 0, rich.visible[r] = 0, rich.raw_max[r] = -kInfinityF, rich.position[r] = 0,
      rich.slope[r] = 0, rich.c[r] = 1;
    }
    if (place.real) {
      const KeyRun run = visible_run(a, work, place.i);
      begin[r] = run.begin, end[r] = run.end;
      if constexpr (kKind == ScoreKind::kRich) {
        const QueryRow keys = unpadded_keys(p, work.batch, std::int64_t{place.i});
        rich.h[r] = place.h, rich.i[r] = place.i, rich.position[r] = static_cast<int>(keys.position);
        rich.c[r] = static_cast<float>(scale_of(p, place.h, keys));
        if (p.slopes) rich.slope[r] = p.slopes[place.h];
      } else {
        c = scale_of_head<Tile>(a, work, place.h);
      }
    }
    if constexpr (kFull)
      scale2[r] = __int_as_float(same_in_warp(__float_as_int(work.c * kLog2E)));  // once for a warp: two registers less
    else scale2[r] = c * kLog2E;
    if constexpr (kKind == ScoreKind::kCapped)
      inner = static_cast<float>(factor_of(p, 0)) / p.cap, scale2[r] = p.cap * kLog2E;
  }
  if constexpr (kFull)
    store_runs(seen_of_thread(shared.seen), begin, end),
        store_aside(seen_of_thread(shared.seen), tile_ring);  // five registers less
  const int warp_begin = __reduce_max_sync(~0u, max(begin[0], begin[1])),
            warp_end = __reduce_min_sync(~0u, min(end[0], end[1]));

  float o[kDim / 2];
  std::uint32_t weights[kKeys / 4];
  RowPair rows;
  FullPair full;
  About about = About::kOrigin;  // of full's moments
  float shrink[2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.max[r] = rows.base[r] = -kInfinityF, rows.sum[r] = 0;
    full.t[r] = full.sum2[r] = full.sum3[r] = full.first[r] = full.second[r] = 0;
    full.min[r] = kInfinityF, full.max_block[r] = -1;
    if constexpr (kFull) rows.base[r] = kNowhere;
  }
  const int place_q = same_in_warp(RingPlace<Tile::kQueries>{round}.stage() * kGroups + group);
  const std::uint64_t first_q = operand(shared.q + place_q * 64 * kDim * 2);
  const std::uint32_t empty_q = shared.empty_q + 8 * place_q;
  const auto is_masked = [&](int first_key, int keys) {
    return first_key < warp_begin || first_key + keys > warp_end;
  };  // for some row of the warp
  // Returns whether o is to be multiplied by shrink. kAny: with full statistics, blocks with a
  // mask or of a window about a centre, too.
  const auto softmax = [&]<int N, bool kFirst, bool kAny>(float(&s)[N], int first_key, std::bool_constant<kFirst>,
                                                          std::bool_constant<kAny>) {
    const bool masked = (kFirst || kAny) && is_masked(first_key, 2 * N);
    if constexpr (kKind == ScoreKind::kRich) {
      transform(p, s, rich, work.batch, masked, begin, end, first_key);
      const bool moved = softmax_step<false>(s, rows, shrink, scale2);
      if (p.dropout) drop(p, s, rich, work.batch, first_key);
      return moved;
    }
    if constexpr (kFull) {
      if (masked)
        return softmax_step_full<kFirst, true, kAny>(s, rows, full, shared.seen, about, shrink, scale2, first_key);
      return softmax_step_full<kFirst, false, kAny>(s, rows, full, shared.seen, about, shrink, scale2, first_key);
    }
    if (masked) hide(s, begin, end, first_key);
    if constexpr (kKind == ScoreKind::kCapped) {
      return softmax_step_capped(s, rows, shrink, scale2[0], inner, masked, begin, end, first_key);
    } else {
      return softmax_step<true>(s, rows, shrink, scale2);
    }
  };
  const auto multiply = [&](const float(&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i / 2 % 2];
  };
  const int blocks = same_in_warp(work.group_last[group] - work.group_first[group]),
            first_key = work.group_first[group] * kKeys;
  {
    const int before = work.group_first[group] - work.first_block;
    pass_over(shared, thread, ring, before);
    ring = same_in_warp(ring + before);
  }
  if (blocks == 0) barrier_arrive(empty_q);
  if (blocks > 0) {
    {
      const RingPlace<kStages> k{ring};
      float s[kKeys / 2];
      barrier_wait(shared.full_k + 8 * k.stage(), k.parity());
      hold(s);
      products_begin();
      multiply_keys<Tile, T>(s, first_q, shared.k + k.stage() * Tile::kStageBytes);
      products_wait<0>();
      hold(s);
      if (thread % 32 == 0) barrier_arrive(shared.empty_k + 8 * k.stage());
      if (blocks == 1) barrier_arrive(empty_q);
      softmax(s, first_key, std::true_type{}, std::false_type{});
      pack<T>(s, weights);
    }
    // With full statistics: a window of the moments ends before block n, if one does. Returns whether what follows is
    // about a centre.
    const auto end_window_before = [&](int n, int keys) {
      if constexpr (!kFull) return false;
      const bool masked = is_masked(first_key + n * kKeys, keys);
      if (n % kWindow == kWindow / 4 || about == About::kLastBlock || about == About::kMoved ||
          (masked && about == About::kCenter)) [[unlikely]] {
        const bool far = __any_sync(~0u, end_window<kKeys>(full, shared.seen, about, rows, first_key + n * kKeys));
        about = !far ? About::kOrigin : masked ? About::kLastBlock : About::kCenter;
      }
      return about == About::kCenter;
    };
    const auto step = [&]<int kWidth, bool kAny>(Width<kWidth>, std::bool_constant<kAny> any, int n) {
      const RingPlace<kStages> k{ring + n}, v{ring + n - 1};
      float s[kWidth / 2];
      barrier_wait(shared.full_k + 8 * k.stage(), k.parity());
      barrier_wait(shared.full_v + 8 * v.stage(), v.parity());
      hold(weights), hold(o), hold(s);
      products_begin();
      multiply_keys<Tile, T>(s, first_q, shared.k + k.stage() * Tile::kStageBytes);
      multiply_values<Tile, T>(o, weights, Width<kKeys>{}, shared.v + v.stage() * Tile::kStageBytes);
      products_wait<1>();
      hold(s);
      if (thread % 32 == 0) barrier_arrive(shared.empty_k + 8 * k.stage());
      if (n == blocks - 1) barrier_arrive(empty_q);
      const bool moved = softmax(s, first_key + n * kKeys, std::false_type{}, any);
      products_wait<0>();
      hold(o);
      if (thread % 32 == 0) barrier_arrive(shared.empty_v + 8 * v.stage());
      pack<T>(s, weights);
      if (moved) multiply(shrink);
    };
    const auto last_values = [&]<int kWidth>(Width<kWidth> width) {
      const RingPlace<kStages> v{ring + blocks - 1};
      barrier_wait(shared.full_v + 8 * v.stage(), v.parity());
      hold(weights), hold(o);
      products_begin();
      multiply_values<Tile, T>(o, weights, width, shared.v + v.stage() * Tile::kStageBytes);
      products_wait<0>();
      hold(o);
      if (thread % 32 == 0) barrier_arrive(shared.empty_v + 8 * v.stage());
    };
    const bool tail = Tile::kTail > 0 && same_in_warp(work.tails >> group & 1);
    const int whole = tail ? blocks - 1 : blocks;
    int n = 1;
    if constexpr (kApart) {
#pragma unroll 1
      for (; n < whole && !end_window_before(n, kKeys) && !is_masked(first_key + n * kKeys, kKeys); ++n)
        step(Width<kKeys>{}, std::false_type{}, n);
    }
#pragma unroll 1
    while (n < whole) {
      if constexpr (!kApart) end_window_before(n, kKeys);
      step(Width<kKeys>{}, std::true_type{}, n);
      if (++n < whole && kApart) end_window_before(n, kKeys);
    }
    if constexpr (Tile::kTail > 0) {
      if (tail) step(Width<Tile::kTail>{}, std::true_type{}, blocks - 1), last_values(Width<Tile::kTail>{});
      else last_values(Width<kKeys>{});
    } else {
      last_values(Width<kKeys>{});
    }
  }
  pass_over(shared, thread, ring + blocks, work.last_block - work.group_last[group]);
  if constexpr (kFull) tile_ring = load_aside(seen_of_thread(shared.seen)), agree_on_blocks(full, rows.max);
  settle<kFull, kKind>(rows, full, shrink, scale2, inner);
  if constexpr (kFull) {
    const float origin[2] = {__fmul_rn(rows.max[0], scale2[0]), __fmul_rn(rows.max[1], scale2[1])};
    if (about == About::kMoved) [[unlikely]]
      end_window<kKeys>(full, shared.seen, about, rows, first_key + blocks * kKeys), about = About::kOrigin;
    end_last_window<kAddsApart<kKeys>>(full, shared.seen, about, rows, origin);
  }
  if (Tile::kPacked && a.part_o) {
    multiply(shrink);
    write_parts<Tile, kKind>(a, work, o, rows, rich, scale2);
  } else {
    write_rows<Tile, T, kFull, kKind>(a, work, group, o, rows, full, rich, scale2, shrink);
  }
}

}  // namespace rootdk::cuda
