// What needs a row's final maximum and lse: how far keys lie below the maximum, and each key's probability summed over
// the queries. Key-major, from the records that any forward kernel leaves.
#include "base/gaps.h"
#include "cuda/common/launch.h"
#include "cuda/plain/plain.h"
#include "cuda/plain/tile.cuh"

namespace rootdk::cuda {

namespace {

constexpr int kWarps = kTileThreads / 32;

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    look_again_kernel(const __grid_constant__ ForwardView f, std::int64_t tasks) {
  const ProblemView& p = f.p;
  __shared__ TileMemory memory;
  __shared__ TileRows tile;
  __shared__ double parts[kWarps][kTileKeys];
  __shared__ int bins[GapHistogram::kBins];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tiles = divide_up(p.len_kv, kTileKeys);
  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const std::int64_t b = task / tiles / p.heads_q, h = task / tiles % p.heads_q, first_key = task % tiles * kTileKeys,
                       j = first_key + lane;
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
        if (f.gaps)
          atomicAdd(&bins[base::gap_bin(static_cast<float>(record.score_max - static_cast<double>(s.score)))], 1);
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
    unsigned long long* gaps =
        reinterpret_cast<unsigned long long*>(f.gaps) + (b * p.heads_q + h) * GapHistogram::kBins;
    for (int x = threadIdx.x; x < GapHistogram::kBins && f.gaps; x += kTileThreads)
      if (bins[x] > 0) atomicAdd(&gaps[x], static_cast<unsigned long long>(bins[x]));  // integers: in any order
    __syncthreads();
  }
}

template <class T>
void launch(const ForwardView& f, cudaStream_t stream) {
  const ProblemView& p = f.p;
  const std::int64_t heads = p.batch * p.heads_q, tasks = heads * divide_up(p.len_kv, kTileKeys);
  if (f.gaps)
    check(cudaMemsetAsync(f.gaps, 0, static_cast<std::size_t>(heads * GapHistogram::kBins) * sizeof(std::int64_t),
                          stream),
          "gaps");
  if ((f.gaps || f.key_mass.data) && tasks > 0) {
    launch_kernel("second pass", look_again_kernel<T>, grid(tasks), kTileThreads, 0, stream, f, tasks);
  }
}

}  // namespace

void second_pass(const ForwardView& f, DType dtype, cudaStream_t stream) {
  switch (dtype) {
    case DType::kF16: launch<__half>(f, stream); break;
    case DType::kBF16: launch<__nv_bfloat16>(f, stream); break;
    default: launch<float>(f, stream); break;
  }
}

}  // namespace rootdk::cuda
