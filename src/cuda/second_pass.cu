// What needs a row's final maximum and lse: how far keys lie below the maximum, and each key's probability summed over the queries.
// Key-major, from the records that any forward kernel leaves. And causes, which need Q and K only.
#include "cuda/launch.h"
#include "cuda/plain.h"
#include "cuda/plain_tile.cuh"

namespace rootdk::gpu {

namespace {

constexpr int kWarps = kTileThreads / 32;

/// base::gap_bin.
__device__ int gap_bin(float gap) {
  const int bits = __float_as_int(gap) >> 19;
  return min(max(bits - (127 + GapHistogram::kLowest) * GapHistogram::kPerOctave, 0), GapHistogram::kBins - 1);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads) look_again_kernel(const __grid_constant__ ForwardView f, std::int64_t tasks) {
  const ProblemView& p = f.p;
  __shared__ TileMemory memory;
  __shared__ TileRows tile;
  __shared__ double parts[kWarps][kTileKeys];
  __shared__ int bins[GapHistogram::kBins];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tiles = divide_up(p.len_kv, kTileKeys);
  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const std::int64_t b = task / tiles / p.heads_q, h = task / tiles % p.heads_q, first_key = task % tiles * kTileKeys, j = first_key + lane;
    for (int x = threadIdx.x; x < GapHistogram::kBins; x += kTileThreads) bins[x] = 0;
    double mass = 0;
    for (std::int64_t first_row = 0; first_row < p.len_q; first_row += kTileRows) {
      find_rows(p, b, h, first_row, tile);
      if (tile.end <= first_key || tile.begin >= first_key + kTileKeys) continue;
      float dots[kRowsPerWarp];
      tile_dots<T>(p, f.q, f.k, p.dim_qk, {b, h, first_row, first_key}, memory, dots);
      for (int n = 0; n < kRowsPerWarp; ++n) {
        const int r = warp * kRowsPerWarp + n;
        const std::int64_t i = first_row + r;
        const QueryRow& row = tile.row[r];
        if (i >= p.len_q || j < row.begin || j >= row.end) continue;
        const base::RowRecord& record = f.records[(b * p.heads_q + h) * p.len_q + i];
        const Score s = score_of(p, b, h, i, j, row, tile.c[r], dots[n]);
        if (!s.visible || s.score == -kInfinityF || !record.finite) continue;
        if (f.gaps) atomicAdd(&bins[gap_bin(static_cast<float>(record.score_max - static_cast<double>(s.score)))], 1);
        mass += exp(static_cast<double>(s.score) - record.lse);
      }
    }
    parts[warp][lane] = mass;
    __syncthreads();
    if (warp == 0 && j < p.len_kv && f.key_mass.data) {
      double sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += parts[w][lane];
      write(f.key_mass, at(f.key_mass, b, h, j), static_cast<float>(sum));
    }
    unsigned long long* gaps = reinterpret_cast<unsigned long long*>(f.gaps) + (b * p.heads_q + h) * GapHistogram::kBins;
    for (int x = threadIdx.x; x < GapHistogram::kBins && f.gaps; x += kTileThreads)
      if (bins[x] > 0) atomicAdd(&gaps[x], static_cast<unsigned long long>(bins[x]));  // integers: in any order
    __syncthreads();
  }
}

/// Which rows of q or k hold finite numbers only. A warp per row.
template <class T>
__global__ void __launch_bounds__(kTileThreads) finite_kernel(const __grid_constant__ ForwardView f, std::int64_t rows, bool keys) {
  const ProblemView& p = f.p;
  const int lane = threadIdx.x % 32;
  const std::int64_t length = keys ? p.len_kv : p.len_q, heads = keys ? p.heads_kv : p.heads_q;
  const View& t = keys ? f.k : f.q;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows; row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t b = row / length / heads, h = row / length % heads, i = row % length;
    const std::int64_t offset = keys ? key_offset(p, t, b, h, i) : at(t, b, h, i);
    bool finite = true;
    for (std::int64_t d = lane; d < p.dim_qk; d += 32) finite = finite && isfinite(widen(reinterpret_cast<const T*>(t.data)[offset + d * t.strides[3]]));
    finite = __all_sync(~0u, finite);
    if (lane == 0) (keys ? f.finite_k : f.finite_q)[row] = finite;
  }
}

__device__ double block_sum(double x) {
  __shared__ double parts[kWarps];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w];
  return sum;
}

/// A block per query head: a thread owns elements of the rows, so that neighbours read neighbours.
template <class T>
__global__ void __launch_bounds__(kTileThreads) causes_kernel(const __grid_constant__ ForwardView f) {
  const ProblemView& p = f.p;
  const std::int64_t head = blockIdx.x, b = head / p.heads_q, h = head % p.heads_q, kv_head = h / p.group;
  const T *q = reinterpret_cast<const T*>(f.q.data), *k = reinterpret_cast<const T*>(f.k.data);
  const unsigned char *finite_q = f.finite_q + head * p.len_q, *finite_k = f.finite_k + (b * p.heads_kv + kv_head) * p.len_kv;
  const std::int64_t len_kv = p.key_lengths ? p.key_lengths[b] : p.len_kv;
  double queries = 0, keys = 0, squares = 0, variance = 0, mean_square = 0;
  for (std::int64_t i = 0; i < p.len_q; ++i) queries += finite_q[i];
  for (std::int64_t j = 0; j < len_kv; ++j) keys += finite_k[j];
  for (std::int64_t d = threadIdx.x; d < p.dim_qk; d += kTileThreads) {
    for (std::int64_t i = 0; i < p.len_q; ++i) {
      if (!finite_q[i]) continue;
      const double x = widen(q[at(f.q, b, h, i, d)]);
      squares += x * x;
    }
    if (keys == 0) continue;
    double mean = 0, m2 = 0;
    for (std::int64_t j = 0; j < len_kv; ++j)
      if (finite_k[j]) mean += static_cast<double>(widen(k[key_offset(p, f.k, b, kv_head, j) + d * f.k.strides[3]]));
    mean /= keys;
    for (std::int64_t j = 0; j < len_kv; ++j) {
      if (!finite_k[j]) continue;
      const double off = static_cast<double>(widen(k[key_offset(p, f.k, b, kv_head, j) + d * f.k.strides[3]])) - mean;
      m2 += off * off;
    }
    mean_square += mean * mean;
    variance += m2 / keys;
  }
  const auto dim = static_cast<double>(p.dim_qk);
  Causes out;
  squares = block_sum(squares), variance = block_sum(variance), mean_square = block_sum(mean_square);
  out.dim = dim;
  out.q_square = queries > 0 ? squares / (queries * dim) : 0;
  out.k_variance = variance / dim;
  out.key_mean_square = mean_square;
  if (threadIdx.x == 0) f.causes[head] = out;
}

template <class T>
void launch(const ForwardView& f, cudaStream_t stream) {
  const ProblemView& p = f.p;
  const std::int64_t heads = p.batch * p.heads_q, tasks = heads * divide_up(p.len_kv, kTileKeys);
  if (f.gaps) check(cudaMemsetAsync(f.gaps, 0, static_cast<std::size_t>(heads * GapHistogram::kBins) * sizeof(std::int64_t), stream), "gaps");
  if ((f.gaps || f.key_mass.data) && tasks > 0) {
    look_again_kernel<T><<<grid(tasks), kTileThreads, 0, stream>>>(f, tasks);
    check_launch("second pass");
  }
  if (!f.causes || heads == 0) return;
  const std::int64_t queries = heads * p.len_q, keys = p.batch * p.heads_kv * p.len_kv;
  finite_kernel<T><<<grid(divide_up(queries, kWarps)), kTileThreads, 0, stream>>>(f, queries, false);
  finite_kernel<T><<<grid(divide_up(keys, kWarps)), kTileThreads, 0, stream>>>(f, keys, true);
  causes_kernel<T><<<static_cast<unsigned>(heads), kTileThreads, 0, stream>>>(f);
  check_launch("causes");
}

}  // namespace

void second_pass(const ForwardView& f, DType dtype, cudaStream_t stream) {
  switch (dtype) {
    case DType::kF16: launch<__half>(f, stream); break;
    case DType::kBF16: launch<__nv_bfloat16>(f, stream); break;
    default: launch<float>(f, stream); break;
  }
}

}  // namespace rootdk::gpu
