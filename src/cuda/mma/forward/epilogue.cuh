// What is written once a tile's rows have seen all their keys: output, lse and records; or, where keys were split, what
// the combine kernel merges.
#pragma once

#include "cuda/mma/forward/moments.cuh"
#include "cuda/mma/forward/passes.cuh"
#include "cuda/mma/forward/work.cuh"

namespace rootdk::cuda::mma {

/// Whether full statistics look at any row of a tile.
template <class Tile>
__device__ __forceinline__ bool any_sampled(const ProblemView& p, const Work& work) {
  const std::int64_t first = std::int64_t{work.row_tile} * Tile::kRows;
  bool any = p.sample <= 1;
  for (std::int64_t i = first; !any && i < first + Tile::kRows; i += kSampleBlock / 2) any = is_sampled(p, i);
  return any || is_sampled(p, first + Tile::kRows - 1);
}

/// A row that has seen all its keys.
struct EndedRow {
  float max, sum, raw_max;  ///< sum is relative to max
  int visible;
  float lse = 0, gain = 0;  ///< gain: what Σ weight · v is multiplied by

  __device__ __forceinline__ void take_sink(const ProblemView& p, int h) {
    SinkShare total{sum > 0 || isnan(sum) ? max + logf(sum) : -kInfinityF, 1};
    if (p.sink) total = with_sink(total.lse, p.sink[h]);
    lse = total.lse, gain = sum == 0 ? 0 : total.share / sum;
  }
  /// As records have it: −1 for padding.
  __device__ __forceinline__ int visible_to(const ProblemView& p, int b, int i) const {
    return base::is_query(p, b, i) ? visible : -1;
  }
  /// Rounding may put it above 1; NaN stays.
  __device__ __forceinline__ float p_max() const { return gain > 1 ? 1 : gain; }
  /// Marks find only the values that are not finite: whether a sum of finite ones overflowed, the pass before found.
  __device__ __forceinline__ void write(const ForwardView& f, int b, int h, int i, bool whole, Guard guard) const {
    write_row(f.lse, b, h, i, lse);
    write_row(f.raw_max, b, h, i, raw_max), write_row(f.score_max, b, h, i, max), write_row(f.p_max, b, h, i, p_max());
    if (!f.records) return;
    base::RowRecord& record = f.records[(b * f.p.heads_q + h) * f.p.len_q + i];
    if (guard == Guard::kMark) whole = whole && record.finite;
    record = {raw_max, max, p_max(), lse, visible_to(f.p, b, i), (isfinite(lse) || lse == -kInfinityF) && whole};
  }
};

/// The visible keys of a row in the tile: of its run, or those that were counted.
template <class Tile, Kind kKind>
__device__ __forceinline__ int visible_of(const Arguments& a, const RowsMemory<Tile, kKind>& rows, int row,
                                          int counted) {
  return a.allowed != Pairs::kAbsent || a.bias != Pairs::kAbsent ? counted : rows.end[row] - rows.begin[row];
}

/// Eight columns of a row, as four pairs; of marks only those that are not zero.
template <class T>
__device__ __forceinline__ void store_eight(const Arguments& a, char* row, int column, const std::uint32_t (&pairs)[4],
                                            bool marks) {
  const int left = static_cast<int>(a.f.p.dim_v) - column;
  if (a.width_o == 16 && left >= 8 && !marks) {
    *reinterpret_cast<uint4*>(row + 2 * column) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    return;
  }
  const std::int64_t step = 2 * a.f.o.strides[3];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const auto bits = static_cast<std::uint16_t>(pairs[e / 2] >> 16 * (e % 2));
    if (e < left && !(marks && bits == 0)) *reinterpret_cast<std::uint16_t*>(row + (column + e) * step) = bits;
  }
}

/// A tile whose warps have rows of their own. Returns whether what the thread has of the output is finite.
template <class T, class Tile, Kind kKind>
__device__ __forceinline__ bool write_rows(const Arguments& a, const float (&o)[Tile::kRowTiles][Tile::kDim / 8][4],
                                           const RowsSoFar<Tile::kThreadRows, kKind != Kind::kScaled>& rows,
                                           const RichRows<Tile::kThreadRows>& rich,
                                           const FullRow (&full)[Tile::kThreadRows],
                                           const float (&shrink)[Tile::kThreadRows]) {
  const ForwardView& f = a.f;
  const ProblemView& p = f.p;
  const auto& memory = rows_memory<Tile, kKind>();
  const Work& work = memory.work;
  const Guard guard = memory.guard;
  const int t = thread_now() % 4;
  const bool transformed = is_transformed(p);
  bool all_whole = true, whole[Tile::kThreadRows];
  EndedRow ended[Tile::kThreadRows];
#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) {
    const int tile_row = row_of_thread<Tile>(r);
    const Place place = place_of_row<Tile, false>(p, work, tile_row);
    EndedRow& row = ended[r];
    row = {rows.max[r], rows.sum[r], rows.max[r], 0};
    if constexpr (kKind == Kind::kScaled) {
      const float c = static_cast<float>(factor_of(p, work.h));
      row.max = row.raw_max = rows.max[r] == -kInfinityF ? rows.max[r] : rows.max[r] * c;
      row.visible = memory.end[tile_row] - memory.begin[tile_row];
    } else {
      if (transformed) row.raw_max = quad_max(rich.raw_max[r]);
      row.visible = visible_of(a, memory, tile_row, quad_sum(rich.visible[r]));
    }
    row.take_sink(p, place.h);
    char* out = f.o.data + 2 * at(f.o, work.b, place.h, place.i);
    float nothing = 0;  // stays 0 unless something is not finite
#pragma unroll
    for (int d = 0; d < Tile::kDim / 8; d += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pair[e] = o[r / 2][d + n][r % 2 * 2 + e] * row.gain;
          if (guard == Guard::kMark) pair[e] = pair[e] != 0 ? kNanF : 0;
        }
        nothing = fmaf(pair[0], 0.0f, fmaf(pair[1], 0.0f, nothing));
        pairs[n] = pack2<T>(pair[0], pair[1]);
      }
      quad_transpose(pairs);  // from four pairs of columns of a row to eight columns side by side
      if (place.real) store_eight<T>(a, out, 8 * (d + t), pairs, guard == Guard::kMark);
    }
    whole[r] = quad_max(nothing == 0 ? 0.0f : 1.0f) == 0;
    all_whole = all_whole && (whole[r] || !place.real);
  }
#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) {  // the output's registers are free now
    const Place place = place_of_row<Tile, false>(p, work, row_of_thread<Tile>(r));
    base::FullRecord record = {};
    if constexpr (kKind == Kind::kFull)
      record = end_full(rows, r, full[r], memory.scale2, shrink[r], transformed, p.sink ? p.sink + place.h : nullptr);
    if (t != 0 || !place.real) continue;
    ended[r].write(f, work.b, place.h, place.i, whole[r], guard);
    if constexpr (kKind == Kind::kFull) {
      const bool sampled = is_sampled(p, place.i);
      if (sampled && f.full) f.full[(work.b * p.heads_q + place.h) * p.len_q + place.i] = record;
      if (a.full_rows)
        write_full_rows(f, work.b, place.h, place.i, sampled, ended[r].visible_to(p, work.b, place.i), record);
    }
  }
  return all_whole;
}

/// A tile whose warps have keys of their own: what they found is merged in order, and written, or left as part of a row
/// whose keys are split.
template <class T, class Tile>
__device__ __forceinline__ bool merge_warps(const Arguments& a, const float (&o)[Tile::kRowTiles][Tile::kDim / 8][4],
                                            const RowsSoFar<Tile::kThreadRows, true>& rows,
                                            const RichRows<Tile::kThreadRows>& rich) {
  static_assert(Tile::kRowTiles == 1 && Tile::kRowWarps == 1);
  constexpr int kWarps = Tile::kKeyWarps, kPerRow = Tile::kThreads / Tile::kRows, kDim = Tile::kDim;
  const ForwardView& f = a.f;
  const ProblemView& p = f.p;
  const auto& memory = rows_memory<Tile, Kind::kFew>();
  const Work& work = memory.work;
  const Guard guard = memory.guard;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  auto* parts = reinterpret_cast<float4*>(shared_memory());               // [kWarps][kRows]
  auto* values = reinterpret_cast<float*>(parts + kWarps * Tile::kRows);  // [kWarps][kRows][kMergePitch]
  __syncthreads();                                                        // all are done with K and V
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float raw_max = is_transformed(p) ? quad_max(rich.raw_max[r]) : rows.max[r];
    const int index = warp * Tile::kRows + lane / 4 + 8 * r, visible = quad_sum(rich.visible[r]);
    if (lane % 4 == 0) parts[index] = PartRow{rows.max[r], rows.sum[r], raw_max, visible}.packed();
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d)
      *reinterpret_cast<float2*>(values + index * Tile::kMergePitch + 8 * d + lane % 4 * 2) = {o[0][d][2 * r],
                                                                                               o[0][d][2 * r + 1]};
  }
  __syncthreads();

  const int own = thread / kPerRow, part = thread % kPerRow;
  const Place row_place = place_of_row<Tile, true>(p, work, own);
  PartRow all{-kInfinityF, 0, -kInfinityF, 0};
  float shares[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all.max = fmaxf(all.max, parts[w * Tile::kRows + own].x);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const PartRow one = PartRow::of(parts[w * Tile::kRows + own]);
    // A warp that has seen nothing but NaN has no maximum, and a sum that is NaN.
    shares[w] = isnan(one.sum) ? 1 : one.moved_to(all.max);
    all.sum = fmaf(one.sum, shares[w], all.sum);
    all.raw_max = fmaxf(all.raw_max, one.raw_max), all.visible += one.visible;
  }
  EndedRow row{all.max, all.sum, all.raw_max, 0};
  if (a.splits == 1) {
    row.visible = visible_of(a, memory, own, all.visible);
    row.take_sink(p, row_place.h);
  }
  const std::int64_t head = (work.b - a.first_item) * p.heads_q + row_place.h,
                     part_index = (work.split * a.items * p.heads_q + head) * p.len_q + row_place.i;
  char* out = f.o.data + 2 * at(f.o, work.b, row_place.h, row_place.i);
  float nothing = 0;
#pragma unroll 4
  for (int d = 4 * part; d < kDim; d += 4 * kPerRow) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 x = *reinterpret_cast<const float4*>(values + (w * Tile::kRows + own) * Tile::kMergePitch + d);
      sums[0] = fmaf(x.x, shares[w], sums[0]), sums[1] = fmaf(x.y, shares[w], sums[1]);
      sums[2] = fmaf(x.z, shares[w], sums[2]), sums[3] = fmaf(x.w, shares[w], sums[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (guard == Guard::kMark) sums[e] = sums[e] != 0 ? kNanF : 0;
      nothing = fmaf(sums[e], a.splits > 1 ? 0.0f : 0.0f * row.gain, nothing);
      if (!row_place.real || d + e >= p.dim_v || (guard == Guard::kMark && sums[e] == 0)) continue;
      if (a.splits > 1) a.part_o[part_index * p.dim_v + d + e] = sums[e];
      else *reinterpret_cast<T*>(out + 2 * (d + e) * f.o.strides[3]) = narrow<T>(sums[e] * row.gain);
    }
  }
  static_assert(kPerRow == 8);
#pragma unroll
  for (int distance = 1; distance < kPerRow; distance *= 2) nothing += __shfl_xor_sync(~0u, nothing, distance);
  const bool whole = nothing == 0;
  if (part == 0 && row_place.real) {
    if (a.splits > 1) a.part_rows[part_index] = all.packed();
    else row.write(f, work.b, row_place.h, row_place.i, whole, guard);
  }
  return whole || !row_place.real;
}

}  // namespace rootdk::cuda::mma
