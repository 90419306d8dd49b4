// Decoding: a row's keys were split among blocks, and what each of them found is merged here.
#include "cuda/hopper_combine.h"

#include "cuda/hopper_softmax.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "cuda/rows.cuh"

namespace rootdk::gpu {

namespace {

constexpr int kMostWarps = 16, kPerLane = 8;  ///< 256 elements a warp

/// Rows whose keys were split: a block merges the parts of one, each warp a run of them, in order.
template <class T>
__global__ void __launch_bounds__(32 * kMostWarps, 1) combine_kernel(const __grid_constant__ ForwardView f, const float* part_o, const float4* part_rows, int parts, std::int64_t rows) {
  const ProblemView& p = f.p;
  __shared__ float maxima[kMostWarps], raw_maxima[kMostWarps], sums[kMostWarps], values[kMostWarps][32 * kPerLane];
  __shared__ int counts[kMostWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, dim = static_cast<int>(p.dim_v);
  const std::int64_t index = blockIdx.x, b = index / p.len_q / p.heads_q, h = index / p.len_q % p.heads_q, i = index % p.len_q;
  next_kernel_wait();
  float max = -kInfinityF, raw_max = -kInfinityF;
  int visible = 0;
  for (int s = threadIdx.x; s < parts; s += blockDim.x) {
    const float4 row = part_rows[s * rows + index];
    max = fmaxf(max, row.x), raw_max = fmaxf(raw_max, row.z), visible += __float_as_int(row.w);
  }
  max = warp_max(max), raw_max = warp_max(raw_max), visible = warp_sum(visible);
  if (lane == 0) maxima[warp] = max, raw_maxima[warp] = raw_max, counts[warp] = visible;
  __syncthreads();
  for (int w = 0; w < warps; ++w) max = fmaxf(max, maxima[w]), raw_max = fmaxf(raw_max, raw_maxima[w]);
  const QueryRow run = visible_keys(p, b, i);
  visible = p.allowed.data || p.bias.data ? 0 : static_cast<int>(run.end - run.begin);
  for (int w = 0; w < warps && (p.allowed.data || p.bias.data); ++w) visible += counts[w];
  const float origin = max == -kInfinityF ? 0 : max;

  const int each = (parts + warps - 1) / warps, last = min(parts, (warp + 1) * each);
  float sum = 0, o[kPerLane] = {};
#pragma unroll 8
  for (int s = warp * each; s < last; ++s) {
    const float4 row = part_rows[s * rows + index];
    const float weight = exp2_approx(row.x - origin);  // 0 for a part that saw nothing
    const float* from = part_o + (s * rows + index) * dim;
    sum = fmaf(row.y, weight, sum);
#pragma unroll
    for (int x = 0; x < kPerLane; ++x)
      if (lane + 32 * x < dim) o[x] = fmaf(from[lane + 32 * x], weight, o[x]);
  }
  if (lane == 0) sums[warp] = sum;
#pragma unroll
  for (int x = 0; x < kPerLane; ++x) values[warp][lane + 32 * x] = o[x];
  __syncthreads();
  sum = 0;
  for (int w = 0; w < warps; ++w) sum += sums[w];

  const bool as_it_was = p.cap == 0 && !p.bias.data && !p.slopes;
  const float largest = as_it_was ? raw_max : max == -kInfinityF ? max : max * kLn2;
  SinkShare total{sum > 0 || isnan(sum) ? largest + logf(sum) : -kInfinityF, 1};
  if (p.sink) total = with_sink(total.lse, p.sink[h]);
  const float gain = sum == 0 ? 0 : total.share / sum;
  bool finite = isfinite(total.lse) || total.lse == -kInfinityF;
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    float value = 0;
    for (int w = 0; w < warps; ++w) value += values[w][d];
    finite = finite && isfinite(value * gain);
    reinterpret_cast<T*>(f.o.data)[at(f.o, b, h, i, d)] = narrow<T>(value * gain);
  }
  finite = __syncthreads_and(finite);
  if (threadIdx.x != 0) return;
  write_row(f.lse, b, h, i, total.lse);
  write_row(f.raw_max, b, h, i, raw_max);
  write_row(f.score_max, b, h, i, largest);
  write_row(f.p_max, b, h, i, gain);
  if (!f.records) return;
  f.records[index] = {raw_max, largest, gain, total.lse, visible, finite};
}

}  // namespace

void combine_parts(const ForwardView& view, const float* part_o, const float4* part_rows, int parts, DType dtype, cudaStream_t stream) {
  const std::int64_t rows = view.p.batch * view.p.heads_q * view.p.len_q;
  const auto combine = dtype == DType::kBF16 ? combine_kernel<__nv_bfloat16> : combine_kernel<__half>;
  launch_beside(combine, dim3(static_cast<unsigned>(rows)), parts > 32 ? 512 : 128, 0, stream, view, part_o, part_rows, parts, rows);
}

}  // namespace rootdk::gpu
