// The mma backward before its main kernel: what is worked out once of each query row, and whether anything is not
// finite that a product could carry to where nothing sees it.
#include "cuda/common/launch.h"
#include "cuda/common/rows.cuh"
#include "cuda/mma/backward/backward.h"
#include "cuda/mma/backward/loads.cuh"

namespace rootdk::cuda::mma::back {

namespace {

constexpr int kThreads = 256, kMostRows = 128, kEach = 8;

/// Eight elements of a row from element 8·part on; zeros from `dim` on.
template <class T>
struct Eight {
  T x[kEach];

  __device__ __forceinline__ Eight(const char* row, std::int64_t element_bytes, int part, std::int64_t dim, int width) {
    if (width == 16 && (part + 1) * kEach <= dim) {
      const uint4 all = *reinterpret_cast<const uint4*>(row + 16 * part);
      memcpy(x, &all, sizeof x);
      return;
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      x[e] = part * kEach + e < dim ? *reinterpret_cast<const T*>(row + (part * kEach + e) * element_bytes)
                                    : narrow<T>(0.0f);
  }
  __device__ __forceinline__ bool finite() const {
    bool all = true;
#pragma unroll
    for (int e = 0; e < kEach; ++e) all = all && isfinite(widen(x[e]));
    return all;
  }
};

/// Lanes for a row of so many elements.
__device__ __forceinline__ int lanes_of(std::int64_t dim) { return dim <= 64 ? 8 : dim <= 128 ? 16 : 32; }

/// The scale that dS is relative to: the largest that rows of heads that share keys can have.
__device__ float reference_of(const ProblemView& p, std::int64_t h) {
  const QueryRow all{0, p.len_kv, max(p.len_kv, p.len_q), 0};
  float largest = 0;
  for (std::int64_t x = h / p.group * p.group, g = 0; g < p.group; ++g) {
    double c = fabs(factor_of(p, x + g));
    if (p.length == Scale::Length::kLogN) c *= fabs(p.log_n_gain[x + g]) * log_keys(all) + fabs(p.log_n_offset[x + g]);
    else c *= fabs(length_factor(p, x + g, all));
    largest = fmaxf(largest, static_cast<float>(c));
  }
  return largest > 0x1p-100f && largest < 0x1p100f ? largest : 1;
}

/// A block per tile of rows of a head; those of head 0 also see what the mask shows.
template <class T>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ Arguments a) {
  __shared__ float sums[kMostRows];
  __shared__ int wild[kMostRows];  // dO is not finite: 1; Q, where that is asked: 2
  __shared__ int first, last, max_begin, min_end;
  const ProblemView& p = a.f.p;
  const int m = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.row_tiles)), row = static_cast<int>(threadIdx.x);
  const std::int64_t head = blockIdx.x / static_cast<unsigned>(a.row_tiles), b = head / p.heads_q, h = head % p.heads_q;
  const int left = static_cast<int>(min(p.len_q - std::int64_t{m} * a.rows, std::int64_t{a.rows}));
  const bool inspects_q = a.dense || p.cap != 0;  // else what is not finite in Q shows in the row's lse
  if (row < kMostRows) wild[row] = 0;
  if (row == 0) {
    first = 0x7fffffff, last = 0, max_begin = 0, min_end = 0x7fffffff;
    a.turns[blockIdx.x] = 0;
    if (blockIdx.x == 0) *a.next_task = 0;
    if (m == 0 && b == 0) a.reference[h] = reference_of(p, h);
  }
  __syncthreads();
  const HeadRows o(a.f.o, b, h), d_o(a.f.d_o, b, h), q(a.f.q, b, h);
  const int lanes = lanes_of(max(p.dim_qk, p.dim_v)), part = row % lanes;
  for (int r = row / lanes; r < a.rows; r += kThreads / lanes) {
    float sum = 0;
    int bad = 0;
    if (r < left) {
      const int i = m * a.rows + r;
      const Eight<T> x(o.row(i), o.element_bytes, part, p.dim_v, a.o_width),
          y(d_o.row(i), d_o.element_bytes, part, p.dim_v, a.d_o_width);
      bad = y.finite() ? 0 : 1;
      if (inspects_q && !Eight<T>(q.row(i), q.element_bytes, part, p.dim_qk, a.q_width).finite()) bad |= 2;
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum = fmaf(widen(x.x[e]) != 0 ? widen(y.x[e]) : 0, widen(x.x[e]), sum);
    }
    for (int step = lanes / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(~0u, sum, step), bad |= __shfl_xor_sync(~0u, bad, step);
    if (part == 0) sums[r] = sum, wild[r] = bad;
  }
  __syncthreads();
  QueryRow run{};
  if (row < a.rows) {
    const std::int64_t i = std::int64_t{m} * a.rows + row;
    float lse = -kInfinityF, d_lse = 0;
    if (row < left) {
      run = visible_keys(p, b, i), lse = read(a.f.lse, at(a.f.lse, b, h, i));
      if (a.f.d_lse.data) d_lse = read(a.f.d_lse, at(a.f.d_lse, b, h, i));
    }
    float delta = row < left ? sums[row] - d_lse : 0, origin = a.natural ? -lse : -lse * kLog2E;
    if (run.begin >= run.end || lse == -kInfinityF) {  // but for a sink it sees nothing, and O is zero, whatever dO is
      delta = lse == -kInfinityF ? 0 : -d_lse, origin = -kInfinityF;
    } else if (a.trouble && (wild[row] & 1)) {
      origin = kNanF;
    }
    const bool in_run = run.begin < run.end, hidden_by_mask = a.dense && lse == -kInfinityF;
    if (a.trouble && in_run && (wild[row] || !isfinite(delta) || !(isfinite(lse) || hidden_by_mask))) *a.trouble = 1;
    float* numbers = a.numbers + std::int64_t{blockIdx.x} * (kRowNumbers * a.rows) + row;
    numbers[kOrigin * a.rows] = origin, numbers[kDelta * a.rows] = delta;
    numbers[kScale * a.rows] = static_cast<float>(scale_of(p, h, run));
  }
  if (h != 0) return;
  if (row < a.rows) {
    int* places = a.places + (b * a.row_tiles + m) * (kRowPlaces * a.rows) + row;
    places[kBegin * a.rows] = static_cast<int>(run.begin), places[kEnd * a.rows] = static_cast<int>(run.end);
    places[kPosition * a.rows] = static_cast<int>(run.position);
    if (run.begin < run.end)
      atomicMin(&first, static_cast<int>(run.begin)), atomicMax(&last, static_cast<int>(run.end));
    atomicMax(&max_begin, static_cast<int>(run.begin)), atomicMin(&min_end, static_cast<int>(run.end));
  }
  __syncthreads();
  if (row != 0) return;
  const bool any = first < last;
  a.tiles[b * a.row_tiles + m] = {any ? first / a.keys : 0, any ? (last + a.keys - 1) / a.keys : 0, max_begin, min_end};
}

/// Keys that an item has, of all heads: whether any is not finite.
template <class T>
__global__ void __launch_bounds__(kThreads) inspect_kernel(const __grid_constant__ Arguments a, std::int64_t keys) {
  const ProblemView& p = a.f.p;
  const int lanes = lanes_of(p.dim_qk), part = static_cast<int>(threadIdx.x) % lanes;
  for (std::int64_t x = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes; x < keys;
       x += std::int64_t{gridDim.x} * (kThreads / lanes)) {
    const std::int64_t b = x / p.len_kv / p.heads_kv, h = x / p.len_kv % p.heads_kv;
    const int j = static_cast<int>(x % p.len_kv);
    if (j >= base::end_of_keys(p, b)) continue;
    const HeadRows rows(p, a.f.k, b, h);
    if (!Eight<T>(rows.row(j), rows.element_bytes, part, p.dim_qk, a.k_width).finite()) *a.trouble = 1;
  }
}

template <class T>
void launch(const Arguments& a, cudaStream_t stream) {
  const ProblemView& p = a.f.p;
  if (a.trouble) check(cudaMemsetAsync(a.trouble, 0, sizeof(int), stream), "mma backward, flag");
  check(cudaMemsetAsync(a.next_task, 0, sizeof(int), stream), "mma backward, counter");
  const std::int64_t tiles = p.batch * p.heads_q * a.row_tiles, keys = p.batch * p.heads_kv * p.len_kv;
  if (tiles > 0)
    launch_kernel("mma backward, rows", prepare_kernel<T>, static_cast<unsigned>(tiles), kThreads, 0, stream, a);
  if (a.trouble && keys > 0) {
    const auto blocks = static_cast<unsigned>(min(divide_up(keys * 16, kThreads), std::int64_t{2048}));
    launch_kernel("mma backward, keys", inspect_kernel<T>, blocks, kThreads, 0, stream, a, keys);
  }
}

}  // namespace

void launch_prepare(const Arguments& a, DType dtype, cudaStream_t stream) {
  if (dtype == DType::kBF16) launch<__nv_bfloat16>(a, stream);
  else launch<__half>(a, stream);
}

}  // namespace rootdk::cuda::mma::back
