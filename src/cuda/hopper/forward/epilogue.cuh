// The epilogue: what is written once a tile's rows have seen all their keys: output, lse, row records, or the parts of
// a split-KV row that the combine kernel merges.
#pragma once

#include <cstddef>

#include "cuda/hopper/forward/guard.cuh"
#include "cuda/hopper/forward/largest.cuh"
#include "cuda/hopper/forward/merge.cuh"
#include "cuda/hopper/forward/scheduler.cuh"
#include "cuda/hopper/forward/scores.cuh"
#include "cuda/hopper/forward/softmax.cuh"
#include "cuda/hopper/forward/softmax_capped.cuh"
#include "cuda/hopper/forward/softmax_full.cuh"

namespace rootdk::cuda {

/// What lies between q·k and softmax: a scale above zero; that and a soft-cap; anything.
enum class ScoreKind { kScaled, kCapped, kRich };

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
                offsetof(base::FullRecord, score) == 32);
  auto* pieces = reinterpret_cast<double2*>(to);
  int piece = 0;
#pragma unroll
  for (const base::RowMoments* moments : {&record.raw, &record.score}) {
    pieces[piece++] = {moments->mean, moments->m2};
    pieces[piece++] = {moments->min, __hiloint2double(0, moments->argmax)};
  }
  const double numbers[] = {
#define ROOTDK_ROW_NUMBER(name, merged) record.name,
#include "rootdk/statistics.def"
  };
  constexpr int kNumbers = sizeof(numbers) / sizeof(double);
  static_assert(kNumbers % 2 == 0, "pieces of 16 bytes want records of a multiple of them");
  static_assert(sizeof(base::FullRecord) == 64 + sizeof(numbers));
#pragma unroll
  for (int x = 0; x < kNumbers; x += 2) pieces[piece++] = {numbers[x], numbers[x + 1]};
}

/// The second row of the pair in the first one's place, if `second`.
__device__ __forceinline__ FullPair row_of(const FullPair& full, bool second) {
  FullPair one = full;
  if (second) {
    one.t[0] = full.t[1], one.sum2[0] = full.sum2[1], one.sum3[0] = full.sum3[1], one.first[0] = full.first[1],
    one.second[0] = full.second[1];
    one.min[0] = full.min[1], one.max_block[0] = full.max_block[1];
  }
  return one;
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
  // quad: its first lane. mine: even lanes of a quad have its first row.
  const int thread = thread_again() % 128, lane = thread % 32, quad = lane & ~3, mine = lane & 1;
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
  const bool marks = work.guard == Guard::kMark;
  const float scale = marks ? 0x1p100f : my_gain;  // of marks all that counts is whether their sum is zero
  const float gain[2] = {__shfl_sync(~0u, scale, quad) * settle[0], __shfl_sync(~0u, scale, quad + 1) * settle[1]};

  T* my_out = reinterpret_cast<T*>(f.o.data) + (Tile::kPacked ? at(f.o, b, h, i) : work.o_at + i * f.o.strides[2]);
  const int dim = static_cast<int>(p.dim_v), my_room = place.real ? dim : 0;
  float nothing[2] = {0, 0};                       // stay 0 unless something is not finite
  const auto write_out = [&](const auto& store) {  // store(row of the pair, the first of four columns, how many there
                                                   // are from it on, the columns)
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
        store(r, out + 8 * j * f.o.strides[3], room - 8 * j, odd ? other : pairs[0], odd ? pairs[1] : other);
      }
    }
  };
  if (__all_sync(~0u,
                 !marks && f.o.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(my_out) % 8 == 0 && dim % 4 == 0)) {
    write_out([](int, T* to, int room, std::uint32_t first, std::uint32_t second) {
      if (room > 0) *reinterpret_cast<uint2*>(to) = {first, second};
    });
  } else {  // marks come here, too: code that runs once a tile costs what it takes to fetch it
    write_out([&](int r, T* to, int room, std::uint32_t first, std::uint32_t second) {
      auto* at = reinterpret_cast<std::uint16_t*>(to);
      if (marks && (first | second) != 0) nothing[r] = kNanF;
#pragma unroll
      for (int x = 0; x < 4; ++x, at += f.o.strides[3]) {
        const auto bits = static_cast<std::uint16_t>((x < 2 ? first : second) >> 16 * (x % 2));
        if (x < room && !(marks && bits == 0)) *at = marks ? std::uint16_t{0x7fff} : bits;
      }
    });
  }
  const unsigned good[2] = {__ballot_sync(~0u, nothing[0] == 0), __ballot_sync(~0u, nothing[1] == 0)};
  if constexpr (kFull) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (float* x : {&full.t[r], &full.sum2[r], &full.sum3[r]}) *x = quad_sum(*x);  // the moments are the quad's
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
      record = finish_full(p, row_of(full, mine), 0, h, sum, origin, visible);
      write_record(f.full + index, record);
    }
  }
  if (a.full_rows) write_full_rows(f, b, h, i, sampled, visible, record);
}

}  // namespace rootdk::cuda
