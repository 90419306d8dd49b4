// Argmax: the search for the key of a row's largest score, in the block of keys that the kernel found.
#include "cuda/hopper/forward/argmax.h"

#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/forward/largest.cuh"

namespace rootdk::cuda {

namespace {

constexpr int kThreads = 512, kPerKey = 8;  ///< of a block, of a key

/// Of rows that TMA can read, which begin at multiples of 16 bytes: of the first eight elements, or as many as there
/// are.
template <class T>
__device__ float dot_of_eight(const T* q, const T* k, int count) {
  float dot = 0;
  if (count < 8) {
    for (int d = 0; d < count; ++d) dot = fmaf(widen(q[d]), widen(k[d]), dot);
    return dot;
  }
  const uint4 a = *reinterpret_cast<const uint4*>(q), b = *reinterpret_cast<const uint4*>(k);
  const T *x = reinterpret_cast<const T*>(&a), *y = reinterpret_cast<const T*>(&b);
#pragma unroll
  for (int d = 0; d < 8; ++d) dot = fmaf(widen(x[d]), widen(y[d]), dot);
  return dot;
}

/// The key of the maximum of a head's row i, in the block of keys that the kernel found: a block's work.
template <class T>
__device__ void find_key(const ForwardView& f, int block_keys, std::int64_t head, int i, unsigned long long& best) {
  const ProblemView& p = f.p;
  const std::int64_t b = head / p.heads_q, h = head % p.heads_q;
  base::FullRecord& record = f.full[head * p.len_q + i];
  __syncthreads();
  if (threadIdx.x == 0) best = 0;
  __syncthreads();
  const QueryRow run = unpadded_keys(p, b, std::int64_t{i});
  const int start = record.raw.argmax, begin = max(start, static_cast<int>(run.begin)),
            end = static_cast<int>(min(run.end, static_cast<std::int64_t>(start) + block_keys));
  if (start < 0) return;
  const T* q = reinterpret_cast<const T*>(f.q.data) + at(f.q, b, h, i);
  for (int j = begin + static_cast<int>(threadIdx.x) / kPerKey; j < end; j += kThreads / kPerKey) {
    const T* k = reinterpret_cast<const T*>(f.k.data) + key_offset(p, f.k, b, h / p.group, j);
    float dot = 0;
#pragma unroll 2
    for (int d = 8 * static_cast<int>(threadIdx.x % kPerKey); d < p.dim_qk; d += 8 * kPerKey)
      dot += dot_of_eight(q + d, k + d, static_cast<int>(p.dim_qk) - d);
    const unsigned others = 0xffu << (threadIdx.x % 32 / kPerKey * kPerKey);
    for (int distance = kPerKey / 2; distance > 0; distance /= 2) dot += __shfl_xor_sync(others, dot, distance);
    if (threadIdx.x % kPerKey == 0 && !isnan(dot)) atomicMax(&best, first_of_largest(dot, j));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int key = best == 0 ? begin : number_of(best);
  record.raw.argmax = record.score.argmax = key;
  write_row(f.full_rows.raw_argmax, b, h, i, static_cast<float>(key)),
      write_row(f.full_rows.score_argmax, b, h, i, static_cast<float>(key));
}

/// A block takes a head's row, or `rows` of its rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    find_keys_kernel(const __grid_constant__ ForwardView f, const __grid_constant__ KeySearch search, int rows) {
  const ProblemView& p = f.p;
  const std::int64_t head = blockIdx.x;
  __shared__ unsigned long long best;
  if (threadIdx.x == 0) best = 0;
  next_kernel_start();
  if (!search.ready) next_kernel_wait();
  else if (threadIdx.x == 0)
    while (load_acquire(search.ready) == 0) __nanosleep(100);
  __syncthreads();
  if (search.largest) {
    unsigned long long most = 0;
    for (int w = static_cast<int>(threadIdx.x); w < search.warps; w += kThreads)
      most = max(most, search.largest[head * search.warps + w]);
    if (most > 0) atomicMax(&best, most);
    __syncthreads();
    if (best != 0) find_key<T>(f, search.block_keys, head, number_of(best), best);
  } else {
    const int from = static_cast<int>(blockIdx.y) * rows, to = min(from + rows, static_cast<int>(p.len_q));
    for (int i = from; i < to; ++i)
      if (is_sampled(p, i)) find_key<T>(f, search.block_keys, head, i, best);
  }
  if (search.ready) next_kernel_wait();  // what comes after this kernel comes after those before it
}

}  // namespace

void find_keys(const ForwardView& view, const KeySearch& search, DType dtype, cudaStream_t stream) {
  const ProblemView& p = view.p;
  const std::int64_t rows =
      std::max<std::int64_t>(64, divide_up(p.len_q, 65535));  // a grid has no more blocks that way
  const dim3 blocks(static_cast<unsigned>(p.batch * p.heads_q),
                    static_cast<unsigned>(search.largest ? 1 : divide_up(p.len_q, rows)));
  const auto find = dtype == DType::kBF16 ? find_keys_kernel<__nv_bfloat16> : find_keys_kernel<__half>;
  launch_beside("search for keys", find, blocks, kThreads, 0, stream, view, search, static_cast<int>(rows));
}

}  // namespace rootdk::cuda
