// The combine kernel of split-KV (Flash-Decoding): a row's keys were split among blocks, and what each of them found is
// merged here.
#include "cuda/hopper/forward/combine.h"

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/forward/merge.cuh"
#include "cuda/hopper/forward/softmax.cuh"

namespace rootdk::cuda {

namespace {

constexpr int kMostThreads = 512, kMostSlots = 8, kColumns = 2;  ///< slots: groups at a time; columns: of a thread

/// What a thread has of a row: its state, and of some elements of the output the sums of weights times values.
struct PartValues {
  PartRow row;
  float values[kColumns];

  __device__ __forceinline__ void add(const PartValues& other) {
    const PartShares shares = merge(row, other.row);
#pragma unroll
    for (int x = 0; x < kColumns; ++x) values[x] = shares(values[x], other.values[x]);
  }
};

/// A block merges the parts of a row, `per` threads a group; then the groups, in order.
template <class T>
__global__ void __launch_bounds__(kMostThreads, 1)
    combine_kernel(const __grid_constant__ ForwardView f, const __grid_constant__ Parts parts, std::int64_t all_rows,
                   int per) {
  const ProblemView& p = f.p;
  __shared__ PartValues others[kMostThreads];
  const int slots = static_cast<int>(blockDim.x) / per, slot = static_cast<int>(threadIdx.x) / per,
            first_d = static_cast<int>(threadIdx.x) % per, dim = static_cast<int>(p.dim_v);
  const std::int64_t index = blockIdx.x, b = index / p.len_q / p.heads_q, h = index / p.len_q % p.heads_q,
                     i = index % p.len_q;
  next_kernel_wait();
  const auto part = [&](int n) {
    PartValues out{PartRow::of(parts.rows[n * all_rows + index]), {}};
#pragma unroll
    for (int x = 0; x < kColumns; ++x)
      out.values[x] = first_d + x * per < dim ? parts.o[(n * all_rows + index) * dim + first_d + x * per] : 0;
    return out;
  };
  PartValues all{};
  for (int before = 0; before < parts.count; before += slots * parts.group) {
    const int first = before + slot * parts.group;
    PartValues own{};
    if (first < parts.count) {
      PartValues of_group[kGroupSplits];
#pragma unroll
      for (int n = 0; n < kGroupSplits; ++n)  // all on their way before the first is there
        if (n == 0 || (n < parts.group && first + n < parts.count)) of_group[n] = part(first + n);
      own = of_group[0];
#pragma unroll
      for (int n = 1; n < kGroupSplits; ++n)
        if (n < parts.group && first + n < parts.count) own.add(of_group[n]);
    }
    if (slot > 0) others[threadIdx.x] = own;
    if (slots > 1) __syncthreads();
    if (slot == 0) {
      if (before == 0) all = own;
      else all.add(own);
      for (int s = 1; s < slots && before + s * parts.group < parts.count; ++s) all.add(others[s * per + first_d]);
    }
    if (slots > 1) __syncthreads();
  }
  const PartRow& row = all.row;
  const float sum = row.sum, max = row.max, raw_max = row.raw_max;
  const QueryRow run = unpadded_keys(p, b, i);
  const int visible = p.allowed.data || p.bias.data ? row.visible : static_cast<int>(run.end - run.begin);

  const bool as_it_was = p.cap == 0 && !p.bias.data && !p.slopes;
  const float largest = as_it_was ? raw_max : max == -kInfinityF ? max : max * kLn2;
  SinkShare total{sum > 0 || isnan(sum) ? largest + logf(sum) : -kInfinityF, 1};
  if (p.sink) total = with_sink(total.lse, p.sink[h]);
  const float gain = sum == 0 ? 0 : total.share / sum;
  bool finite = isfinite(total.lse) || total.lse == -kInfinityF;
#pragma unroll
  for (int x = 0; x < kColumns; ++x) {
    const int d = first_d + x * per;
    if (slot > 0 || d >= dim) continue;
    finite = finite && isfinite(all.values[x] * gain);
    reinterpret_cast<T*>(f.o.data)[at(f.o, b, h, i, d)] = narrow<T>(all.values[x] * gain);
  }
  finite = __syncthreads_and(finite || slot > 0);
  if (threadIdx.x != 0) return;
  write_row(f.lse, b, h, i, total.lse);
  write_row(f.raw_max, b, h, i, raw_max);
  write_row(f.score_max, b, h, i, largest);
  const float p_max = gain > 1 ? 1 : gain;  // rounding may put it above; NaN stays
  write_row(f.p_max, b, h, i, p_max);
  if (!f.records) return;
  f.records[index] = {raw_max, largest, p_max, total.lse, visible, finite};
}

}  // namespace

void combine_parts(const ForwardView& view, const Parts& parts, DType dtype, cudaStream_t stream) {
  const std::int64_t rows = view.p.batch * view.p.heads_q * view.p.len_q;
  const auto combine = dtype == DType::kBF16 ? combine_kernel<__nv_bfloat16> : combine_kernel<__half>;
  const int per = view.p.dim_v <= 64    ? 32
                  : view.p.dim_v <= 128 ? 64
                                        : 128,
            groups = static_cast<int>(divide_up(parts.count, parts.group));
  const int slots = std::min({groups, kMostSlots, kMostThreads / per});
  launch_beside("merging splits", combine, dim3(static_cast<unsigned>(rows)), per * slots, 0, stream, view, parts, rows,
                per);
}

}  // namespace rootdk::cuda
