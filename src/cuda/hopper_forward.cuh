// Forward on Hopper. A block owns 64 query rows per consumer warpgroup; one producer warp copies K and V in rings of
// stages, the consumers multiply, and while one has weights to compute the others have products.
//
//   S(n) = Q·Kᵀ(n) and O += P(n−1)·V(n−1) are issued together; softmax(n) may run while the second is still in flight.
//   P is packed only after that product has ended: its registers are the product's input.
//
// Blocks stay and take tile after tile; the producer runs ahead into the next tile's keys while the last one's rows are
// written, and each warpgroup gets its next queries as soon as it has done with the old ones. Warpgroups wait for keys
// and never for each other: taking turns at the tensor cores was slower. A last block of few keys is multiplied in a
// narrower product of its own. Masks that leave each row a run of keys cost a pass over the scores of the tiles at the
// ends of a run, found a warp at a time. Few queries (decoding): the rows of all heads that read one key head are
// packed into one tile, and the keys are split among blocks.
//
// What limits it on an H200 is power: with fewer instructions for each score the card clocks higher.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cuda/hopper_guard.cuh"
#include "cuda/hopper_largest.cuh"
#include "cuda/hopper_merge.cuh"
#include "cuda/hopper_scores.cuh"
#include "cuda/hopper_softmax.cuh"
#include "cuda/hopper_tile.cuh"
#include "cuda/launch.h"
#include "cuda/wgmma.cuh"

namespace rootdk::gpu {

/// What lies between q·k and softmax: a scale above zero; that and a soft-cap; anything.
enum class ScoreKind { kScaled, kCapped, kRich };

/// Keys of a block, as a type.
template <int kWidth>
using Width = std::integral_constant<int, kWidth>;

/// The scale of a row's head.
template <class Tile>
__device__ __forceinline__ float scale_of_head(const HopperArguments& a, const Work& work, int h) {
  return Tile::kPacked ? static_cast<float>(factor_of(a.f.p, h)) : work.c;
}

/// A row's sums of weights times values as they are, for another kernel to merge; or merged here with what the block
/// has of the row already.
template <class Tile, ScoreKind kKind>
__device__ __forceinline__ void write_parts(const HopperArguments& a, Work& work, const float (&o)[Tile::kDim / 2],
                                            const RowPair& rows, const RichPair& rich, const float (&scale2)[2]) {
  constexpr int kDim = Tile::kDim;
  const ProblemView& p = a.f.p;
  const int thread = thread_again() % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4,
            dim = static_cast<int>(p.dim_v);
  const bool first = !a.merges || work.split % a.run == 0, marks = work.guard == Guard::kMark;
  const int part = a.merges ? work.split / a.run : work.split;
  float nothing = 0;  // stays 0 unless something is not finite
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const PlacedRow place = place_row<Tile>(a, work, row + 8 * r);
    PartRow own{rows.max[r], quad_sum(rows.sum[r]), rows.max[r], 0};
    if constexpr (kKind == ScoreKind::kRich)
      own.raw_max = quad_max(rich.raw_max[r]), own.visible = quad_sum(rich.visible[r]);
    else if (place.real) own.raw_max *= static_cast<float>(factor_of(p, place.h));
    if (own.max == -kInfinityF) own.raw_max = own.max;
    else if constexpr (kKind == ScoreKind::kCapped)
      own.max = place.real ? capped(own.max * (static_cast<float>(factor_of(p, place.h)) / p.cap)) * scale2[r] : 0;
    else own.max *= scale2[r];
    const std::int64_t index =
        place.real ? ((std::int64_t{part} * p.batch + work.batch) * p.heads_q + place.h) * p.len_q + place.i : 0;
    PartRow merged = own;
    PartShares shares{0, 1};
    if (!first && place.real) merged = PartRow::of(a.part_rows[index]), shares = merge(merged, own);
    __syncwarp();  // all four of a row have read what one of them writes
    if (!place.real) continue;
    float* out = a.part_o + index * dim;
    if (first && !marks && dim == kDim) {
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        const float2 pair{o[4 * j + 2 * r], o[4 * j + 2 * r + 1]};
        nothing = fmaf(pair.x, 0.0f, fmaf(pair.y, 0.0f, nothing));
        *reinterpret_cast<float2*>(out + 8 * j + lane % 4 * 2) = pair;
      }
      if (lane % 4 == 0) a.part_rows[index] = merged.packed();
      continue;
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float value = o[4 * j + 2 * r + e];
        const int d = 8 * j + lane % 4 * 2 + e;
        nothing = fmaf(value, 0.0f, nothing);
        if (d >= dim || (marks && value == 0)) continue;
        out[d] = marks ? kNanF : first ? value : shares(out[d], value);
      }
    if (lane % 4 == 0 && !marks) a.part_rows[index] = merged.packed();
  }
  if (a.again && work.guard == Guard::kNone && __any_sync(~0u, nothing != 0) && lane == 0) suspect<Tile>(a, work);
}

/// Of a warp's rows that count, the one with the largest score; 0 if there is none.
__device__ __forceinline__ void note_largest(unsigned long long* of_warp, bool counts, float score, int row) {
  const unsigned long long pair = counts ? first_of_largest(score, row) : 0;
  const unsigned most = __reduce_max_sync(~0u, static_cast<unsigned>(pair >> 32));
  const unsigned first =
      __reduce_max_sync(~0u, static_cast<unsigned>(pair >> 32) == most ? static_cast<unsigned>(pair) : 0);
  if (threadIdx.x % 32 == 0) *of_warp = static_cast<unsigned long long>(most) << 32 | first;
}

/// Records in as few pieces as there can be: each is a transaction for each row, and an instruction to fetch.
__device__ __forceinline__ void write_record(base::RowRecord* to, const base::RowRecord& record) {
  static_assert(sizeof(base::RowRecord) == 40 && offsetof(base::RowRecord, visible) == 32 &&
                offsetof(base::RowRecord, finite) == 36);
  auto* pieces = reinterpret_cast<double*>(to);
  pieces[0] = record.raw_max, pieces[1] = record.score_max, pieces[2] = record.p_max, pieces[3] = record.lse;
  *reinterpret_cast<int2*>(pieces + 4) = {record.visible, record.finite};
}
__device__ __forceinline__ void write_record(base::FullRecord* to, const base::FullRecord& record) {
  static_assert(sizeof(base::RowMoments) == 32 && offsetof(base::RowMoments, argmax) == 24 &&
                sizeof(base::FullRecord) == 96 && offsetof(base::FullRecord, entropy) == 64);
  auto* pieces = reinterpret_cast<double2*>(to);
  int piece = 0;
#pragma unroll
  for (const base::RowMoments* moments : {&record.raw, &record.score}) {
    pieces[piece++] = {moments->mean, moments->m2};
    pieces[piece++] = {moments->min, __hiloint2double(0, moments->argmax)};
  }
  pieces[piece++] = {record.entropy, record.sum_p2};
  pieces[piece++] = {record.sum_p3, record.sink_mass};
}

/// The rows of a warpgroup's tile are done: what is written of them. `o` are sums of weights times values, which
/// `settle` makes relative to the maximum, as all else is. What is known of a row is worked out by one lane of its
/// four: code that runs once a tile costs what it takes to fetch it.
template <class Tile, class T, bool kFull, ScoreKind kKind>
__device__ __forceinline__ void write_rows(const HopperArguments& a, Work& work, int group,
                                           const float (&o)[Tile::kDim / 2], const RowPair& rows, FullPair& full,
                                           const RichPair& rich, const float (&scale2)[2], const float (&settle)[2]) {
  constexpr int kDim = Tile::kDim;
  const ForwardView& f = a.f;
  const ProblemView& p = f.p;
  const int thread = thread_again() % 128, lane = thread % 32, quad = lane & ~3,
            mine = lane & 1;  // lanes 0 and 2 of a quarter have its first row
  const PlacedRow place = place_row<Tile>(a, work, group * 64 + thread / 32 * 16 + lane / 4 + 8 * mine);
  const std::int64_t b = work.batch, h = Tile::kPacked && !place.real ? 0 : place.h, i = place.real ? place.i : 0;

  const float sums[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  const float sum = (mine ? sums[1] : sums[0]), max = mine ? rows.max[1] : rows.max[0];
  float raw_max, score_max, origin = max * (mine ? scale2[1] : scale2[0]);  // origin: of base 2, as the weights have it
  int visible = 0;
  if constexpr (kKind == ScoreKind::kRich) {
    const float raw[2] = {quad_max(rich.raw_max[0]), quad_max(rich.raw_max[1])};
    const int seen[2] = {quad_sum(rich.visible[0]), quad_sum(rich.visible[1])};
    raw_max = (mine ? raw[1] : raw[0]), score_max = max, visible = (mine ? seen[1] : seen[0]);
  } else {
    const float c = scale_of_head<Tile>(a, work, static_cast<int>(h));
    raw_max = score_max = max == -kInfinityF ? max : max * c;
    if constexpr (kKind == ScoreKind::kCapped)
      origin = capped(max * (c / p.cap)) * scale2[0], score_max = max == -kInfinityF ? max : origin * kLn2;
  }
  SinkShare total{sum > 0 || isnan(sum) ? score_max + __logf(sum) : -kInfinityF,
                  1};  // sum is 1 or more: the hardware's logarithm is off by 1e-7
  if (p.sink) total = with_sink(total.lse, p.sink[h]);
  const float my_gain = sum == 0 ? 0 : __fdividef(total.share, sum);
  const float gain[2] = {__shfl_sync(~0u, my_gain, quad) * settle[0], __shfl_sync(~0u, my_gain, quad + 1) * settle[1]};

  T* my_out = reinterpret_cast<T*>(f.o.data) + (Tile::kPacked ? at(f.o, b, h, i) : work.o_at + i * f.o.strides[2]);
  const int dim = static_cast<int>(p.dim_v), my_room = place.real ? dim : 0;
  float nothing[2] = {0, 0};  // stay 0 unless something is not finite
  const auto write_out =
      [&](const auto& store) {  // store(the first of four columns, how many there are from it on, the columns)
        const int odd = lane & 1, column = 8 * odd + 2 * (lane & 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          T* out = reinterpret_cast<T*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(my_out), quad + r)) +
                   column * f.o.strides[3];
          const int room = __shfl_sync(~0u, my_room, quad + r) - column;
#pragma unroll
          for (int j = 0; j < kDim / 8; j += 2) {
            std::uint32_t pairs[2];
#pragma unroll
            for (int x = 0; x < 2; ++x) {
              const float low = o[4 * (j + x) + 2 * r] * gain[r], high = o[4 * (j + x) + 2 * r + 1] * gain[r];
              nothing[r] = fmaf(low, 0.0f, fmaf(high, 0.0f, nothing[r]));
              pairs[x] = pack2<T>(low, high);
            }
            // Two columns in each of two groups of eight become four columns in one of them: even lanes have the first,
            // odd ones the second.
            const std::uint32_t other = __shfl_xor_sync(~0u, odd ? pairs[0] : pairs[1], 1);
            store(out + 8 * j * f.o.strides[3], room - 8 * j, odd ? other : pairs[0], odd ? pairs[1] : other);
          }
        }
      };
  if (work.guard == Guard::kMark) [[unlikely]] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      T* out = reinterpret_cast<T*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(my_out), quad + r));
      const int room = __shfl_sync(~0u, my_room, quad + r);
#pragma unroll
      for (int first = 0; first < kDim / 4; first += 32) {  // of the row's columns that the thread has
        unsigned marks = 0;
#pragma unroll
        for (int x = first; x < min(kDim / 4, first + 32); ++x)
          marks |= (o[x / 2 * 4 + 2 * r + x % 2] != 0 ? 1u : 0u) << x % 32;
        if (marks) nothing[r] = kNanF;
#pragma unroll 1
        for (; marks; marks &= marks - 1) {
          const int x = first + __ffs(static_cast<int>(marks)) - 1, d = x / 2 * 8 + thread_again() % 4 * 2 + x % 2;
          if (d < room) out[d * f.o.strides[3]] = narrow<T>(kNanF);
        }
      }
    }
  } else if (__all_sync(~0u,
                        f.o.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(my_out) % 8 == 0 && dim % 4 == 0)) {
    write_out([](T* to, int room, std::uint32_t first, std::uint32_t second) {
      if (room > 0) *reinterpret_cast<uint2*>(to) = {first, second};
    });
  } else {
    write_out([&](T* to, int room, std::uint32_t first, std::uint32_t second) {
      auto* at = reinterpret_cast<std::uint16_t*>(to);
#pragma unroll
      for (int x = 0; x < 4; ++x, at += f.o.strides[3])
        if (x < room) *at = static_cast<std::uint16_t>((x < 2 ? first : second) >> 16 * (x % 2));
    });
  }
  const unsigned good[2] = {__ballot_sync(~0u, nothing[0] == 0), __ballot_sync(~0u, nothing[1] == 0)};
  if constexpr (kFull) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (float* x : {&full.t[r], &full.sum2[r], &full.sum3[r]})
        *x = quad_sum(*x);  // the moments are the quarter's already
      full.min[r] = quad_min(full.min[r]);
    }
  }
  const bool whole = ((mine ? good[1] : good[0]) >> quad & 15) == 15,
             finite = (isfinite(total.lse) || total.lse == -kInfinityF) && whole;
  if (a.again && work.guard == Guard::kNone && __any_sync(~0u, place.real && !whole) && lane == 0)
    suspect<Tile>(a, work);
  if (kKind != ScoreKind::kRich || !(p.allowed.data || p.bias.data)) {
    const KeyRun run = visible_run(a, work, static_cast<int>(i));
    visible = run.end - run.begin;
  }
  const bool sampled = kFull && is_sampled(p, i);
  const std::int64_t tile = std::int64_t{work.head_index} * a.row_tiles + work.row_tile;
  if (kFull && a.largest)
    note_largest(a.largest + (tile * Tile::kGroups + group) * 4 + thread / 32,
                 place.real && sampled && finite && visible > 0, raw_max, static_cast<int>(i));
  if (lane % 4 > 1 || !place.real) return;
  const float p_max = my_gain > 1 ? 1 : my_gain;  // sums are off by some rounding
  if (f.lse.data) write(f.lse, Tile::kPacked ? at(f.lse, b, h, i) : work.lse_at + i * f.lse.strides[2], total.lse);
  if (a.rows)
    write_row(f.raw_max, b, h, i, raw_max), write_row(f.score_max, b, h, i, score_max),
        write_row(f.p_max, b, h, i, p_max);
  if (!f.records) return;
  const std::int64_t index =
      (Tile::kPacked ? b * p.heads_q + h : std::int64_t{work.head_index}) * static_cast<int>(p.len_q) + i;
  write_record(f.records + index, {raw_max, score_max, p_max, total.lse, visible, finite});
  if constexpr (!kFull) return;
  base::FullRecord record = {};
  if constexpr (kFull) {
    if (sampled) {
      FullPair one = full;
      if (mine) {
        one.t[0] = full.t[1], one.sum2[0] = full.sum2[1], one.sum3[0] = full.sum3[1], one.first[0] = full.first[1],
        one.second[0] = full.second[1];
        one.min[0] = full.min[1], one.max_block[0] = full.max_block[1];
      }
      record = finish_full(p, one, 0, h, sum, origin, visible);
      write_record(f.full + index, record);
    }
  }
  if (a.full_rows) write_full_rows(f, b, h, i, sampled, visible, record);
}

/// One tile in a consumer warpgroup: its rows through all their blocks of keys. `tile_ring` is the tile's first place
/// in the rings.
template <class Tile, class T, bool kFull, ScoreKind kKind>
__device__ __forceinline__ void consume(const HopperArguments& a, const HopperShared<Tile>& shared, Work& work,
                                        int group, int round, int& tile_ring) {
  constexpr int kKeys = Tile::kKeys, kDim = Tile::kDim, kStages = Tile::kStages, kGroups = Tile::kGroups;
  static_assert(!kFull || kKind == ScoreKind::kScaled);
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
        const QueryRow keys = visible_keys(p, work.batch, place.i);
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
  const auto scores = [&]<int N>(float(&s)[N], std::uint32_t k) {
    const std::uint64_t first_k = operand(k);  // addresses within are added: in units of 16 bytes, in the low bits
#pragma unroll
    for (int x = 0; x < kDim / 16; ++x) {
      const int panel = x / 4, offset = x % 4 * 32;
      Scores<2 * N, T>::mma(s, first_q + (panel * 64 * 128 + offset) / 16,
                            first_k + (panel * kKeys * 128 + offset) / 16, x != 0);
    }
    products_commit();
  };
  const auto values = [&]<int kWidth>(Width<kWidth>, std::uint32_t v) {
    const std::uint64_t first_v = operand(v, kKeys * 128);
#pragma unroll
    for (int x = 0; x < kWidth / 16; ++x) Values<kDim, T>::mma(o, weights + 4 * x, first_v + x * 16 * 128 / 16);
    products_commit();
  };
  const auto is_masked = [&](int first_key, int keys) {
    return first_key < warp_begin || first_key + keys > warp_end;
  };  // for some row of the warp
  const auto softmax = [&]<int N, bool kFirst>(float(&s)[N], int first_key,
                                               std::bool_constant<kFirst>) {  // whether o is to be multiplied by shrink
    const bool masked = is_masked(first_key, 2 * N);
    if constexpr (kKind == ScoreKind::kRich) {
      transform(p, s, rich, work.batch, masked, begin, end, first_key);
      const bool moved = softmax_step<false>(s, rows, shrink, scale2);
      if (p.dropout) drop(p, s, rich, work.batch, first_key);
      return moved;
    }
    if constexpr (kFull) {
      if (masked) return softmax_step_full<kFirst, true>(s, rows, full, shared.seen, about, shrink, scale2, first_key);
      return softmax_step_full<kFirst, false>(s, rows, full, shared.seen, about, shrink, scale2, first_key);
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
  // Blocks of keys that no row of this warpgroup sees. They are waited for all the same: a barrier's parity tells a
  // block only from the next one in its stage.
  const auto pass_over = [&](int place, int count) {
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      const RingPlace<kStages> at{place + n};
      barrier_wait(shared.full_k + 8 * at.stage(), at.parity());
      barrier_wait(shared.full_v + 8 * at.stage(), at.parity());
      if (thread % 32 == 0)
        barrier_arrive(shared.empty_k + 8 * at.stage()), barrier_arrive(shared.empty_v + 8 * at.stage());
    }
  };

  const int blocks = same_in_warp(work.group_last[group] - work.group_first[group]),
            first_key = work.group_first[group] * kKeys;
  {
    const int before = work.group_first[group] - work.first_block;
    pass_over(ring, before);
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
      scores(s, shared.k + k.stage() * Tile::kStageBytes);
      products_wait<0>();
      hold(s);
      if (thread % 32 == 0) barrier_arrive(shared.empty_k + 8 * k.stage());
      if (blocks == 1) barrier_arrive(empty_q);
      softmax(s, first_key, std::true_type{});
      pack<T>(s, weights);
    }
    const auto step = [&]<int kWidth>(Width<kWidth>, int n) {
      if constexpr (kFull) {  // here, where registers are free
        const bool masked = is_masked(first_key + n * kKeys, kWidth);
        if (n % kWindow == kWindow / 4 || about == About::kLastBlock || about == About::kMoved ||
            (masked && about == About::kCenter)) [[unlikely]] {
          const bool far = __any_sync(~0u, end_window<kKeys>(full, shared.seen, about, rows, first_key + n * kKeys));
          about = !far ? About::kOrigin : masked ? About::kLastBlock : About::kCenter;
        }
      }
      const RingPlace<kStages> k{ring + n}, v{ring + n - 1};
      float s[kWidth / 2];
      barrier_wait(shared.full_k + 8 * k.stage(), k.parity());
      barrier_wait(shared.full_v + 8 * v.stage(), v.parity());
      hold(weights), hold(o), hold(s);
      products_begin();
      scores(s, shared.k + k.stage() * Tile::kStageBytes);
      values(Width<kKeys>{}, shared.v + v.stage() * Tile::kStageBytes);
      products_wait<1>();
      hold(s);
      if (thread % 32 == 0) barrier_arrive(shared.empty_k + 8 * k.stage());
      if (n == blocks - 1) barrier_arrive(empty_q);
      const bool moved = softmax(s, first_key + n * kKeys, std::false_type{});
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
      values(width, shared.v + v.stage() * Tile::kStageBytes);
      products_wait<0>();
      hold(o);
      if (thread % 32 == 0) barrier_arrive(shared.empty_v + 8 * v.stage());
    };
    const bool tail = Tile::kTail > 0 && same_in_warp(work.tails >> group & 1);
    const int whole = tail ? blocks - 1 : blocks;
#pragma unroll 1
    for (int n = 1; n < whole; ++n) step(Width<kKeys>{}, n);
    if constexpr (Tile::kTail > 0) {
      if (tail) step(Width<Tile::kTail>{}, blocks - 1), last_values(Width<Tile::kTail>{});
      else last_values(Width<kKeys>{});
    } else {
      last_values(Width<kKeys>{});
    }
  }
  pass_over(ring + blocks, work.last_block - work.group_last[group]);
  if constexpr (kFull) tile_ring = load_aside(seen_of_thread(shared.seen)), agree_on_blocks(full, rows.max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // from here on relative to the maximum, on which the quarter agrees
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
    if (a.again && work.guard == Guard::kNone) {
      if (round > 1)
        barrier_wait(shared_address(&again_list<Tile>().written),
                     round & 1);  // the tile before the last one; there long since
      if (round > 0 && work.index < 0) {
        barrier_wait(
            shared_address(&again_list<Tile>().written),
            round + 1 & 1);  // the last one: what is suspect is on the list, and this slot gets the first of it
        live = false, --round;
      }
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

/// Packed rows are gathered by hand, in the layout that the copy engine would have made. Rows of padding are zero, from
/// the first tile on.
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

template <class Tile, class T, bool kFull, ScoreKind kKind>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    hopper_kernel(const __grid_constant__ HopperArguments a) {
  constexpr int kStages = Tile::kStages, kGroups = Tile::kGroups;
  extern __shared__ __align__(1024) std::uint8_t memory[];  // all there is, so that it starts where swizzled rows may
  const HopperShared<Tile> shared(shared_address(memory));
  static_assert(sizeof(Work) <= Tile::kSlotBytes);
  Work* slots = reinterpret_cast<Work*>(memory + Tile::kBytes - 24 - Tile::kSlots * Tile::kSlotBytes);
  const int warpgroup = same_in_warp(threadIdx.x / 128);

  if (threadIdx.x == 0) {
    for (int g = 0; g < Tile::kQueries * kGroups; ++g)
      barrier_init(shared.full_q + 8 * g, 1), barrier_init(shared.empty_q + 8 * g, 128);
    for (int x = 0; x < kStages; ++x) {
      barrier_init(shared.full_k + 8 * x, 1), barrier_init(shared.full_v + 8 * x, 1);
      barrier_init(shared.empty_k + 8 * x, 4 * kGroups), barrier_init(shared.empty_v + 8 * x, 4 * kGroups);
    }
    barrier_init(shared.raw_v, 1), barrier_init(shared_address(&again_list<Tile>().written), 4 * kGroups);
    again_list<Tile>().first = -1;
    asm volatile("fence.mbarrier_init.release.cluster;");
    // The kernel beside this one cannot start before all blocks have said so, and only looks at these in the
    // second-level cache (atomicAdd, load_acquire): with the fence it has them without next_kernel_wait.
    if (kFull && a.clears && blockIdx.x == 0) a.clears[0] = a.clears[1] = 0, __threadfence();
  }
  __syncthreads();
  if (a.followed) next_kernel_start();

  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Tile::kProducerRegisters));
    if (threadIdx.x < 32) produce<Tile, !kFull && !Tile::kPacked>(a, shared, slots);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Tile::kConsumerRegisters));
    const int group = warpgroup - 1;
    int ring = 0;
#pragma unroll 1
    for (int round = 0;; ++round) {
      const RingPlace<Tile::kQueries> queries{round};
      barrier_wait(shared.full_q + 8 * (queries.stage() * kGroups + group), queries.parity());
      Work& work = slots[round % Tile::kSlots];
      if (work.index < 0) return;
      if constexpr (Tile::kPacked) {
        gather_queries<Tile, T>(a, shared, work, round == 0);
        named_sync(8 + group, 128);
      }
      consume<Tile, T, kFull, kKind>(a, shared, work, group, round, ring);
      ring += work.last_block - work.first_block;
      __syncwarp();
      if (thread_again() % 32 == 0) barrier_arrive(shared_address(&again_list<Tile>().written));
    }
  }
}

/// How many blocks take tiles.
struct HopperGrid {
  int blocks = 0;
  int clusters = 0;  ///< if not 0: so many clusters of kClusterBlocks instead, where the card has room for them
};

inline constexpr int kClusterBlocks = 16;  ///< about what a group of multiprocessors has

template <class Tile, class T, bool kFull, ScoreKind kKind>
void hopper_launch(const HopperArguments& a, const HopperGrid& grid, cudaStream_t stream) {
  const auto kernel = hopper_kernel<Tile, T, kFull, kKind>;
  constexpr int kBytes = Tile::kBytes + (kFull ? Tile::kGroups * 128 * kSeenBytes : 0);
  static_assert(Tile::kBytes % 16 == 0 && kBytes <= 232448);
  allow_shared(kernel, kBytes);
  const auto blocks = static_cast<unsigned>(grid.blocks);
  if (a.beside) return launch_beside("hopper forward", kernel, blocks, Tile::kThreads, kBytes, stream, a);
  if (kFull && grid.clusters > 0) {
    static PerDevice<int> most;
    Launch launch(static_cast<unsigned>(grid.clusters * kClusterBlocks), Tile::kThreads, kBytes, stream);
    launch.clusters(kClusterBlocks);
    allow_clusters(kernel);
    if (grid.clusters <= most.get([&] { return launch.clusters_at_once(kernel); }) &&
        launch.run("hopper forward in clusters", kernel, a))
      return;
  }
  launch_kernel("hopper forward", kernel, blocks, Tile::kThreads, kBytes, stream, a);
}

}  // namespace rootdk::gpu
