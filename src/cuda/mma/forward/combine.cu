// The combine kernel of split-KV (Flash-Decoding): a row's keys were split among blocks, and what each of them found is
// merged here, in order.
#include "cuda/common/launch.h"
#include "cuda/mma/forward/epilogue.cuh"
#include "cuda/mma/forward/instances.h"

namespace rootdk::cuda::mma {

namespace {

constexpr int kThreads = 128, kColumns = 2;  ///< columns of a thread

/// A block puts a row together. Only splits that the row sees have anything to say, and only those were written.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Arguments a) {
  const ForwardView& f = a.f;
  const ProblemView& p = f.p;
  const std::int64_t index = blockIdx.x, rows = a.items * p.heads_q * p.len_q;
  const int b = a.first_item + static_cast<int>(index / p.len_q / p.heads_q),
            h = static_cast<int>(index / p.len_q % p.heads_q), i = static_cast<int>(index % p.len_q),
            dim = static_cast<int>(p.dim_v);
  const QueryRow run = visible_keys(p, b, i);
  const int keys = split_keys(p, keys_of_item(p, b)), first = static_cast<int>(run.begin) / keys,
            last = run.begin < run.end ? (static_cast<int>(run.end) - 1) / keys + 1 : first;
  const auto part = [&](int n) { return PartRow::of(a.part_rows[n * rows + index]); };
  float max = -kInfinityF;
#pragma unroll 8
  for (int n = first; n < last; ++n) max = fmaxf(max, a.part_rows[n * rows + index].x);
  EndedRow row{max, 0, -kInfinityF, 0};
  float values[kColumns] = {0, 0};
  int counted = 0;
#pragma unroll 4
  for (int n = first; n < last; ++n) {
    const PartRow one = part(n);
    // A part that has seen nothing but NaN has no maximum, and a sum that is NaN.
    const float share = isnan(one.sum) ? 1 : one.moved_to(max);
    row.sum = fmaf(one.sum, share, row.sum), row.raw_max = fmaxf(row.raw_max, one.raw_max), counted += one.visible;
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
      const int d = static_cast<int>(threadIdx.x) + x * kThreads;
      if (d < dim) values[x] = fmaf(a.part_o[(n * rows + index) * dim + d], share, values[x]);
    }
  }
  row.visible =
      a.allowed != Pairs::kAbsent || a.bias != Pairs::kAbsent ? counted : static_cast<int>(run.end - run.begin);
  row.take_sink(p, h);
  bool finite = true;
#pragma unroll
  for (int x = 0; x < kColumns; ++x) {
    const int d = static_cast<int>(threadIdx.x) + x * kThreads;
    if (d >= dim) continue;
    const float value = values[x] * row.gain;
    finite = finite && isfinite(value);
    *reinterpret_cast<T*>(f.o.data + 2 * at(f.o, b, h, i, d)) = narrow<T>(value);
  }
  finite = __syncthreads_and(finite);
  if (threadIdx.x == 0) row.write(f, b, h, i, finite, Guard::kNone);
}

}  // namespace

void combine_parts(const Arguments& a, DType dtype, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(a.items * a.f.p.heads_q * a.f.p.len_q);
  const auto combine = dtype == DType::kBF16 ? combine_kernel<__nv_bfloat16> : combine_kernel<__half>;
  launch_kernel("merging splits", combine, rows, kThreads, 0, stream, a);
}

}  // namespace rootdk::cuda::mma
