// Forward for every problem, on every card since sm_80: online softmax (Milakov and Gimelshein 2018) over tiles of
// keys. Right before fast.
#include "base/softmax_sums.h"
#include "cuda/common/launch.h"
#include "cuda/plain/plain.h"
#include "cuda/plain/tile.cuh"

namespace rootdk::cuda {

namespace {

/// Mean and squared deviations of a row's scores: Chan's merge of one tile of keys at a time.
struct Moments {
  double mean = 0, m2 = 0;
  float min = kInfinityF, max = -kInfinityF;
  std::int32_t argmax = -1;

  /// `before` keys were seen; of this tile's, `seen` says which lanes hold a visible one.
  __device__ void observe(float x, unsigned seen, std::int64_t before, std::int64_t first_key) {
    const int lane = threadIdx.x % 32;
    const bool mine = seen >> lane & 1;
    const double n = __popc(seen), total = static_cast<double>(before) + n;
    const double tile_mean = warp_sum(mine ? static_cast<double>(x) : 0.0) / n;
    const double off = mine ? static_cast<double>(x) - tile_mean : 0.0;
    const double tile_m2 = warp_sum(off * off), delta = tile_mean - mean;
    mean += delta * n / total;
    m2 += tile_m2 + delta * delta * static_cast<double>(before) * n / total;
    min = fminf(min, warp_min(mine ? x : kInfinityF));
    const float tile_max = warp_max(mine ? x : -kInfinityF);
    if (argmax < 0 || tile_max > max) {
      const unsigned holders = __ballot_sync(~0u, mine && x == tile_max);
      argmax = static_cast<std::int32_t>(first_key) + __ffs(holders ? holders : seen) - 1;
    }
    max = fmaxf(max, tile_max);
  }

  __device__ base::RowMoments record() const {
    base::RowMoments out;
    if (argmax < 0) return out;
    out.mean = mean, out.m2 = m2, out.min = min, out.argmax = argmax;
    return out;
  }
};

/// What full statistics gather of a row.
struct FullState {
  base::SoftmaxSums sums;
  Moments raw, score;
};

__device__ void observe_full(FullState& full, const Score& s, unsigned seen, float max, std::int64_t before,
                             std::int64_t first_key) {
  const bool mine = seen >> (threadIdx.x % 32) & 1;
  full.raw.observe(s.raw, seen, before, first_key);
  full.score.observe(s.score, seen, before, first_key);
  base::SoftmaxSums& sums = full.sums;
  if (const auto new_max = static_cast<double>(max); sums.max != new_max) sums = sums.moved_to(new_max);
  const bool counts = mine && s.score != -kInfinityF;
  const double gap = counts ? static_cast<double>(s.score) - sums.max : 0, e = counts ? exp(gap) : 0;
  sums.sum += warp_sum(e);
  sums.t += warp_sum(e * gap);
  sums.sum2 += warp_sum(e * e);
  sums.sum3 += warp_sum(e * e * e);
}

template <class T, bool kFull>
__global__ void __launch_bounds__(kTileThreads)
    forward_kernel(const __grid_constant__ ForwardView f, std::int64_t tasks, int dims) {
  const ProblemView& p = f.p;
  float* o = dynamic_shared<float>();  // [kTileRows][dims]
  __shared__ TileMemory memory;
  __shared__ TileRows tile;
  __shared__ float weights[kTileRows][kTileKeys], rescale[kTileRows], gain[kTileRows];
  __shared__ int finite[kTileRows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tiles = divide_up(p.len_q, kTileRows);
  const T* v_data = reinterpret_cast<const T*>(f.v.data);

  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const std::int64_t b = task / tiles / p.heads_q, h = task / tiles % p.heads_q, first_row = task % tiles * kTileRows;
    find_rows(p, b, h, first_row, tile);
    if (threadIdx.x < kTileRows) finite[threadIdx.x] = 1;
    base::RowState<float> state[kRowsPerWarp];
    FullState full[kFull ? kRowsPerWarp : 1];
    for (std::int64_t first_dim = 0; first_dim < p.dim_v; first_dim += dims) {
      const int width = static_cast<int>(min(static_cast<std::int64_t>(dims), p.dim_v - first_dim));
      for (int x = threadIdx.x; x < kTileRows * dims; x += kTileThreads) o[x] = 0;
#pragma unroll
      for (int n = 0; n < kRowsPerWarp; ++n) {
        state[n] = {};
        if constexpr (kFull) full[n] = {};
      }
      for (std::int64_t first_key = tile.begin; first_key < tile.end; first_key += kTileKeys) {
        float dots[kRowsPerWarp];
        tile_dots<T>(p, f.q, f.k, p.dim_qk, {b, h, first_row, first_key}, memory, dots);
        const PhiloxKey key = philox_key(p);  // for so long only: registers are short
#pragma unroll
        for (int n = 0; n < kRowsPerWarp; ++n) {
          const int r = warp * kRowsPerWarp + n;
          const std::int64_t i = first_row + r, j = first_key + lane;
          const QueryRow& row = tile.row[r];
          Score s{0, 0, 1, false};
          if (j >= row.begin && j < row.end) s = score_of(p, b, h, i, j, row, tile.c[r], dots[n]);
          const unsigned seen = __ballot_sync(~0u, s.visible);
          float e = 0, shrink = 1;
          if (seen != 0) {
            const float new_max = fmaxf(state[n].max, warp_max(s.visible ? s.score : -kInfinityF));
            shrink = state[n].rescale_to(new_max);
            if (s.visible && s.score != -kInfinityF) e = expf(s.score - new_max);
            state[n].sum = state[n].sum * shrink + warp_sum(e);
            state[n].max = new_max;
            state[n].raw_max = fmaxf(state[n].raw_max, warp_max(s.visible ? s.raw : -kInfinityF));
            if constexpr (kFull)
              if (is_sampled(p, i)) observe_full(full[n], s, seen, new_max, state[n].visible, first_key);
            state[n].visible += __popc(seen);
          }
          weights[r][lane] = e == 0 ? 0 : e * keep_factor(p, key, b, h, i, j);
          if (lane == 0) rescale[r] = shrink;
        }
        __syncthreads();
        const int keys = static_cast<int>(min(static_cast<std::int64_t>(kTileKeys), tile.end - first_key));
        for (int d = threadIdx.x; d < width; d += kTileThreads) {
          float sums[kTileRows];
#pragma unroll
          for (int r = 0; r < kTileRows; ++r) sums[r] = o[r * dims + d] * rescale[r];
          for (int j = 0; j < keys; ++j) {
            const float value =
                widen(v_data[key_offset(p, f.v, b, h / p.group, first_key + j) + (first_dim + d) * f.v.strides[3]]);
#pragma unroll
            for (int r = 0; r < kTileRows; ++r)
              if (weights[r][j] != 0) sums[r] = fmaf(weights[r][j], value, sums[r]);  // a hidden value may be NaN
          }
#pragma unroll
          for (int r = 0; r < kTileRows; ++r) o[r * dims + d] = sums[r];
        }
        __syncthreads();
      }
#pragma unroll
      for (int n = 0; n < kRowsPerWarp; ++n) {
        const int r = warp * kRowsPerWarp + n;
        SinkShare total{state[n].lse(), 1};
        if (p.sink) total = with_sink(total.lse, p.sink[h]);
        if (lane == 0) gain[r] = state[n].sum == 0 ? 0 : total.share / state[n].sum;
      }
      __syncthreads();
      T* out = reinterpret_cast<T*>(f.o.data);
      for (int x = threadIdx.x; x < kTileRows * width; x += kTileThreads) {
        const int r = x / width, d = x % width;
        if (first_row + r >= p.len_q) continue;
        const float value = o[r * dims + d] * gain[r];
        if (!isfinite(value)) finite[r] = 0;
        out[at(f.o, b, h, first_row + r, first_dim + d)] = narrow<T>(value);
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kRowsPerWarp; ++n) {
      const int r = warp * kRowsPerWarp + n;
      const std::int64_t i = first_row + r;
      if (lane != 0 || i >= p.len_q) continue;
      SinkShare total{state[n].lse(), 1};
      if (p.sink) total = with_sink(total.lse, p.sink[h]);
      const float quotient = state[n].sum == 0 ? 0 : total.share / state[n].sum,
                  p_max = quotient > 1 ? 1 : quotient;  // not fminf, which passes over NaN
      write_row(f.lse, b, h, i, total.lse);
      write_row(f.raw_max, b, h, i, state[n].raw_max);
      write_row(f.score_max, b, h, i, state[n].max);
      write_row(f.p_max, b, h, i, p_max);
      if (!f.records) continue;
      const std::int64_t index = (b * p.heads_q + h) * p.len_q + i;
      const bool is_finite = finite[r] && (isfinite(total.lse) || total.lse == -kInfinityF);
      const std::int32_t visible = base::is_query(p, b, i) ? static_cast<std::int32_t>(state[n].visible) : -1;
      f.records[index] = {state[n].raw_max, state[n].max, p_max, total.lse, visible, is_finite};
      if constexpr (kFull) {
        const bool sampled = is_sampled(p, i);
        base::FullRecord record = {};
        if (sampled)
          f.full[index] = record = base::full_record(full[n].raw.record(), full[n].score.record(), full[n].sums,
                                                     p.sink ? p.sink + h : nullptr);
        write_full_rows(f, b, h, i, sampled, visible, record);
      }
    }
  }
}

template <class T>
void launch(const ForwardView& f, cudaStream_t stream) {
  const std::int64_t tasks = divide_up(f.p.len_q, kTileRows) * f.p.heads_q * f.p.batch;
  const int dims = static_cast<int>(f.p.dim_v < kForwardDims ? f.p.dim_v : kForwardDims);
  const std::size_t bytes = sizeof(float) * kTileRows * static_cast<std::size_t>(dims);
  const auto kernel = f.full ? forward_kernel<T, true> : forward_kernel<T, false>;
  allow_shared(kernel, bytes);
  launch_kernel("plain forward", kernel, grid(tasks), kTileThreads, bytes, stream, f, tasks, dims);
}

}  // namespace

void plain_forward(const ForwardView& f, DType dtype, cudaStream_t stream) {
  if (f.p.batch * f.p.heads_q * f.p.len_q == 0) return;
  switch (dtype) {
    case DType::kF16: launch<__half>(f, stream); break;
    case DType::kBF16: launch<__nv_bfloat16>(f, stream); break;
    default: launch<float>(f, stream); break;
  }
}

}  // namespace rootdk::cuda
