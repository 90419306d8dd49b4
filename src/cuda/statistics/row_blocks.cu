// Rows that are not looked at one by one, reduced by the block of 64 queries: a fiftieth of what would have to travel.
#include "cuda/statistics/row_blocks.h"

#include "cuda/common/launch.h"

namespace rootdk::cuda {

namespace {

constexpr int kWarps = 8;
constexpr unsigned kAll = 0xffffffffu;

template <class T, class Join>
__device__ T across_warp(T x, const Join& join) {
  for (int distance = 16; distance > 0; distance /= 2) x = join(x, __shfl_xor_sync(kAll, x, distance));
  return x;
}

/// A warp takes a block; `shift` queries of the first one come before this call's.
__global__ void __launch_bounds__(32 * kWarps)
    summarise_kernel(const base::RowRecord* rows, base::BlockRecord* blocks, std::int64_t len_q, std::int64_t shift,
                     std::int64_t per_head, std::int64_t total) {
  const int lane = threadIdx.x % 32;
  const auto largest = [](double& x) { x = across_warp(x, [](double a, double b) { return fmax(a, b); }); };
  const auto sum = [](auto& x) { x = across_warp(x, [](auto a, auto b) { return a + b; }); };
  for (std::int64_t index = blockIdx.x * std::int64_t{kWarps} + threadIdx.x / 32; index < total;
       index += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t head = index / per_head, block = index % per_head;
    const std::int64_t first = max(std::int64_t{0}, block * kSampleBlock - shift),
                       end = min(len_q, (block + 1) * kSampleBlock - shift);
    base::BlockRecord mine = base::BlockRecord::none();
    for (std::int64_t i = first + lane; i < end; i += 32) mine.add(rows[head * len_q + i]);
    mine.each(largest, sum);
    if (lane == 0) blocks[index] = mine;
  }
}

}  // namespace

void summarise(const base::RowRecord* rows, base::BlockRecord* blocks, std::int64_t heads, std::int64_t len_q,
               std::int64_t shift, void* stream) {
  const std::int64_t per_head = divide_up(shift + len_q, kSampleBlock), total = heads * per_head;
  launch_kernel("summarising rows", summarise_kernel, grid(divide_up(total, kWarps)), 32 * kWarps, 0,
                static_cast<cudaStream_t>(stream), rows, blocks, len_q, shift, per_head, total);
}

}  // namespace rootdk::cuda
