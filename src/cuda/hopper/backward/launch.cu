// The Hopper backward around its main kernel: which problems it takes, what happens to query rows before and after, and
// the launches.
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/hopper/backward/backward.h"
#include "cuda/hopper/hopper.h"
#include "cuda/hopper/tensor_map.h"
#include "cuda/plain/plain.h"

namespace rootdk::cuda {

namespace {

constexpr int kWarps = 8;

/// A block per tile of rows of a head; those of head 0 also see what the mask shows.
template <class Element, int kDim>
__global__ void __launch_bounds__(32 * kWarps, kDim == 256 ? 2 : 3)
    prepare_kernel(const __grid_constant__ BackwardArguments a) {
  constexpr int kRows = backward_rows(kDim), kKeys = backward_keys(kDim), kEach = 8, kLanes = kDim / kEach,
                kAtOnce = kWarps * 32 / kLanes;
  constexpr int kLoads = 4;  // in flight
  static_assert(kRows <= 32 * kWarps);
  __shared__ float sums[kRows];
  __shared__ bool wild[kRows];  // dO is not finite
  __shared__ RowTile tile;
  const ProblemView& p = a.f.p;
  const unsigned row_tiles = static_cast<unsigned>(a.row_tiles), heads = static_cast<unsigned>(p.heads_q),
                 head = blockIdx.x / row_tiles;
  const unsigned m = blockIdx.x % row_tiles, b = head / heads, h = head % heads;
  const int first = static_cast<int>(m) * kRows,
            left = min(static_cast<int>(p.len_q) - first, kRows);  // rows that there are
  const int row = threadIdx.x, part = threadIdx.x % kLanes;
  if (row < kRows) wild[row] = false;
  if (a.score_squares)
    for (int x = static_cast<int>(m) * 8 + row; x < a.key_tiles * 8; x += a.row_tiles * 8)
      if (row < 8) a.score_squares[std::int64_t{head} * a.key_tiles * 8 + x] = 0;
  __syncthreads();
  if (row == 0) {
    tile = {0x7fffffff, 0, 0, 0x7fffffff};
    a.turns[blockIdx.x] = 0;
    if (blockIdx.x == 0) *a.next_task = 0;
    if (a.heads && m == 0 && b == 0) {
      const auto c = static_cast<float>(factor_of(p, h));
      float largest = 0;
      for (std::int64_t x = h / p.group * p.group, g = 0; g < p.group; ++g)
        largest = fmaxf(largest, static_cast<float>(factor_of(p, x + g)));
      a.heads[h] = {c * kLog2E, c / largest, largest};
    }
  }
  struct __align__(16) Eight {
    Element x[kEach];
  };
  const Element* o = reinterpret_cast<const Element*>(a.f.o.data) + at(a.f.o, b, h, first) + part * kEach;
  const Element* d_o = reinterpret_cast<const Element*>(a.f.d_o.data) + at(a.f.d_o, b, h, first) + part * kEach;
  float lse = -kInfinityF, d_lse = 0;
#pragma unroll 1
  for (int block = 0; block < kRows; block += kLoads * kAtOnce) {
    Eight x[kLoads], y[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int r = block + n * kAtOnce + static_cast<int>(threadIdx.x) / kLanes;
      x[n] = y[n] = {};
      if (r < left && part * kEach < p.dim_v)
        x[n] = *reinterpret_cast<const Eight*>(o + r * a.f.o.strides[2]),
        y[n] = *reinterpret_cast<const Eight*>(d_o + r * a.f.d_o.strides[2]);
    }
    if (block == 0 && row < left) {
      lse = read(a.f.lse, at(a.f.lse, b, h, first + row));
      if (a.f.d_lse.data) d_lse = read(a.f.d_lse, at(a.f.d_lse, b, h, first + row));
    }
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      float sum = 0;
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum = fmaf(widen(x[n].x[e]), widen(y[n].x[e]), sum);
      if (!isfinite(sum)) [[unlikely]] {
        float nothing = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) nothing = fmaf(widen(y[n].x[e]), 0.0f, nothing);
        if (nothing != 0) wild[block + n * kAtOnce + threadIdx.x / kLanes] = true;
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (part == 0) sums[block + n * kAtOnce + threadIdx.x / kLanes] = sum;
    }
  }
  __syncthreads();
  int2 keys = {0, 0};
  if (row < left && (h == 0 || a.trouble)) {
    const base::KeyRangeOf<int> run = unpadded_keys(p, b, first + row);
    keys = {run.begin, run.end};
  }
  if (row < kRows) {
    const std::int64_t place = std::int64_t{blockIdx.x} * kRows + row;
    float delta = sums[row] - d_lse, origin = lse == -kInfinityF ? lse : -lse * kLog2E;
    if (row < left && a.trouble) {
      if (keys.x >= keys.y) {  // it sees nothing, but for a sink: O is zero, whatever dO is
        delta = lse == -kInfinityF ? 0 : -d_lse, origin = -kInfinityF;
      } else if (!isfinite(lse) || !isfinite(delta)) {
        store_release(a.trouble, kSickRows);
        if (!isfinite(lse) || wild[row]) origin = kNanF;  // so is P of all that it sees
      }
    }
    a.delta[place] = delta, a.lse[place] = origin;
  }
  if (h != 0) return;
  if (row < kRows) {
    if (row < left) {
      if (keys.x < keys.y) atomicMin(&tile.first_block, keys.x), atomicMax(&tile.last_block, keys.y);
      atomicMax(&tile.max_begin, keys.x), atomicMin(&tile.min_end, keys.y);
    }
    a.rows[(std::int64_t{b} * row_tiles + m) * kRows + row] = keys;
  }
  __syncthreads();
  if (row != 0) return;
  const bool any = tile.first_block < tile.last_block;
  a.tiles[std::int64_t{b} * row_tiles + m] = {any ? tile.first_block / kKeys : 0,
                                              any ? (tile.last_block + kKeys - 1) / kKeys : 0, tile.max_begin,
                                              tile.min_end};
}

/// A block per tile of dQ: from the order of the main kernel's registers to rows.
template <class Element, int kDim>
__global__ void __launch_bounds__(32 * kWarps, 1)
    finish_kernel(const __grid_constant__ BackwardArguments a, bool sums) {
  constexpr int kRows = backward_rows(kDim), kEach = kDim / 32,
                kPitch = kDim + 4;                 // four more: what a warp writes at a time is in 32 banks
  extern __shared__ __align__(16) float values[];  // [kRows][kPitch]
  const ProblemView& p = a.f.p;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = static_cast<int>(blockIdx.x % a.row_tiles);
  const std::int64_t head = blockIdx.x / a.row_tiles, b = head / p.heads_q, h = head % p.heads_q;
  const RowTile tile = a.tiles[b * a.row_tiles + m];
  const bool any = tile.first_block < tile.last_block;
  const float scale = a.heads ? a.heads[h].last : a.scale;
  const auto* from = reinterpret_cast<const float4*>(a.d_q + std::int64_t{blockIdx.x} * kRows * kDim);
  // Warpgroup w of the main kernel had, as 64 of d × 64 rows, a half of the rows or of d; the kernel of rows has them
  // as rows × d.
  const int w = threadIdx.x / 128, thread = threadIdx.x % 128, eight = thread / 32 * 16 + lane / 4, two = lane % 4 * 2;
#pragma unroll
  for (int round = 0; round < kRows * kDim / 8192; ++round) {
    float4 loaded[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) loaded[j] = any ? from[((2 * round + w) * 8 + j) * 128 + thread] : float4{0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kDim == 256) {
        float* to = values + eight * kPitch + (2 * round + w) * 64 + 8 * j + two;
        *reinterpret_cast<float2*>(to) = {loaded[j].x, loaded[j].y},
        *reinterpret_cast<float2*>(to + 8 * kPitch) = {loaded[j].z, loaded[j].w};
      } else {
        float* to = values + ((kDim == 64 ? 64 * w : 0) + 8 * j + two) * kPitch + (kDim == 64 ? 0 : 64 * w) + eight;
        to[0] = loaded[j].x, to[kPitch] = loaded[j].y, to[8] = loaded[j].z, to[kPitch + 8] = loaded[j].w;
      }
    }
  }
  __syncthreads();
  struct __align__(kEach * sizeof(Element)) Pairs {
    Element x[kEach];
  };
  struct __align__(kEach >= 4 ? 16 : 8) Floats {
    float x[kEach];
  };
  const View& d_q = a.f.d_q;
  const auto places = reinterpret_cast<std::uintptr_t>(d_q.data) |
                      static_cast<std::uintptr_t>((d_q.strides[0] | d_q.strides[1] | d_q.strides[2]) * 2);
  const bool aligned = d_q.strides[3] == 1 && places % (kEach * sizeof(Element)) == 0;
#pragma unroll 2
  for (int r = warp; r < kRows; r += kWarps) {
    const std::int64_t i = std::int64_t{m} * kRows + r;
    if (i >= p.len_q) break;
    const Floats row = *reinterpret_cast<const Floats*>(values + r * kPitch + lane * kEach);
    const bool inside = lane * kEach < p.dim_qk;
    if (a.f.d_q.data && inside) {
      Element* out = reinterpret_cast<Element*>(a.f.d_q.data) + at(a.f.d_q, b, h, i, lane * kEach);
      Pairs narrowed;
#pragma unroll
      for (int x = 0; x < kEach; ++x) narrowed.x[x] = narrow<Element>(row.x[x] * scale);
      if (aligned) {
        *reinterpret_cast<Pairs*>(out) = narrowed;
      } else {
#pragma unroll
        for (int x = 0; x < kEach; ++x) out[x * a.f.d_q.strides[3]] = narrowed.x[x];
      }
    }
    if (!sums) continue;
    const int2 keys = a.rows[(b * a.row_tiles + m) * kRows + r];
    const bool sees = keys.x < keys.y;  // else Q may be anything
    double dot = 0, square = 0;
#pragma unroll
    for (int x = 0; x < kEach && inside && sees; ++x) {
      dot += static_cast<double>(
                 widen(reinterpret_cast<const Element*>(a.f.q.data)[at(a.f.q, b, h, i, lane * kEach + x)])) *
             static_cast<double>(row.x[x]);
      square += static_cast<double>(row.x[x]) * static_cast<double>(row.x[x]);
    }
    dot = warp_sum(dot), square = warp_sum(square);
    if (lane != 0) continue;
    const double c = static_cast<float>(factor_of(p, h)),
                 to_own = static_cast<double>(scale) / c;  // dS came with HeadScale::ratio
    const float lse = read(a.f.lse, at(a.f.lse, b, h, i)), delta = a.delta[std::int64_t{blockIdx.x} * kRows + r];
    const double sink = p.sink && lse != -kInfinityF ? -static_cast<double>(expf(p.sink[h] - lse) * delta) : 0;
    double scores = 0;
    if (a.score_squares && r == 0) {  // only heads' sums are wanted: each tile of rows takes some tiles of keys
      const double* parts = a.score_squares + head * a.key_tiles * 8;
      for (int key_tile = m; key_tile < a.key_tiles; key_tile += a.row_tiles)
        for (int x = 0; x < 8; ++x) scores += parts[key_tile * 8 + x];
    }
    a.f.rows[head * p.len_q + i] = {dot * to_own, sink, scores,
                                    square * static_cast<double>(scale) * static_cast<double>(scale)};
  }
}

template <class Element, int kDim>
void run(BackwardArguments& a, DType dtype, int multiprocessors, cudaStream_t stream) {
  const ProblemView& p = a.f.p;
  const auto row_blocks = static_cast<unsigned>(p.batch * p.heads_q * a.row_tiles);
  if (a.trouble) check(cudaMemsetAsync(a.trouble, 0, sizeof(int), stream), "hopper backward, flag");
  launch_kernel("hopper backward, rows", prepare_kernel<Element, kDim>, row_blocks, 32 * kWarps, 0, stream, a);
  const int blocks = std::min(a.tasks, a.ring > 0 ? multiprocessors / a.ring * a.ring : multiprocessors);
  hopper_backward_launch(a, kDim, dtype, blocks, stream);
  if (a.unseen_keys) {
    a.once_more = true;
    hopper_backward_launch(a, kDim, dtype, blocks, stream);
  }
  const bool sums = a.f.d_scale || a.f.d_sink || a.f.d_log_n_gain || a.f.d_log_n_offset || a.f.stats;
  if constexpr (kDim == 256) {
    if (!sums) a.d_q = nullptr;  // nobody else wants it before it is rounded
    if (a.f.d_q.data || sums) hopper_backward_launch_rows(a, dtype, stream);
  }
  if (sums || (a.f.d_q.data && a.d_q)) {
    constexpr int kBytes = backward_rows(kDim) * (kDim + 4) * 4;
    allow_shared(finish_kernel<Element, kDim>, kBytes);
    launch_kernel("hopper backward, dQ", finish_kernel<Element, kDim>, row_blocks, 32 * kWarps, kBytes, stream, a,
                  sums);
  }
  if (sums) plain_head_sums(a.f, stream);
}

}  // namespace

namespace {

/// Whether an item may have keys that none of its rows sees. Known without the arrays: from the last key of an item,
/// offsets are at most as from the corner.
bool leaves_unseen(const Mask& mask, const Shape& s) {
  if (mask.documents) return true;
  if (!mask.causal && !mask.window) return false;
  base::MaskView view = base::view_of(mask, s);
  if (view.diagonal == Diagonal::Kind::kLastKey) view.diagonal = Diagonal::Kind::kBottomRight;
  const base::Seen seen = base::seen_of({0, s.len_q}, {0, s.len_kv}, base::diagonal_offset(view, 0, s.len_q, s.len_kv),
                                        base::reach_of<std::int64_t>(view));
  return seen.keys.begin > 0 || seen.keys.end < s.len_kv;
}

}  // namespace

std::string hopper_backward_misfit(const Problem& problem, const Shape& s, const Gpu& card) {
  if (card.major != 9) return "is for compute capability 9.0, which " + card.name + " has not";
  if (s.dtype != DType::kF16 && s.dtype != DType::kBF16)
    return std::string("takes f16 and bf16, not ") + name_of(s.dtype);
  if (std::max(s.dim_qk, s.dim_v) > 256 || s.dim_qk % 8 != 0 || s.dim_v % 8 != 0)
    return "takes dims up to 256 backwards, multiples of 8";
  if (std::max(s.dim_qk, s.dim_v) > 128 && problem.stats == StatsLevel::kFull)
    return "does not take full statistics of dims above 128 backwards";
  const Mask& mask = problem.mask;
  if (base::has_padding(mask)) return "does not take padding but key lengths, or documents per item, yet";
  const std::pair<bool, const char*> unknown[] = {
      {mask.allowed.present(), "boolean masks"},    {mask.bias.present(), "biases"},
      {!mask.alibi_slopes.empty(), "ALiBi"},        {problem.soft_cap.has_value(), "a soft-cap"},
      {problem.dropout.p > 0, "dropout"},           {problem.paged.has_value(), "pages"},
      {problem.scale.by_row(), "a scale by length"}};
  for (const auto& [there, what] : unknown)
    if (there) return std::string("does not take ") + what + " backwards";
  for (std::int64_t h = 0; h < s.heads_q; ++h)
    if (!(problem.scale.factor(h, s.dim_qk) >= 0x1p-100)) return "takes positive scales only";
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 24;
  if (!fits_int32(mask, s)) return "takes lengths and offsets up to 2^28";
  if (divide_up(std::max(s.len_q, s.len_kv), 64) > kMostTiles / std::max<std::int64_t>(1, s.batch * s.heads_q))
    return "takes fewer rows";
  return {};
}

bool hopper_backward_takes(const BackwardInputs& in) {
  for (const ConstTensor* t : {&in.q, &in.k, &in.v, &in.d_o, &in.o})
    if (!can_map(*t)) return false;
  return true;
}

HopperBackwardMemory hopper_backward_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  const int dim = backward_dim(s.dim_qk, s.dim_v), rows = backward_rows(dim);
  const std::int64_t tiles = divide_up(s.len_q, rows), heads = s.batch * s.heads_q;
  HopperBackwardMemory memory;
  memory.lse = arena.take<float>(heads * tiles * rows), memory.delta = arena.take<float>(heads * tiles * rows);
  memory.rows = arena.take<int2>(s.batch * tiles * rows);
  memory.tiles = arena.take<RowTile>(s.batch * tiles);
  memory.turns = arena.take<int>(heads * tiles);
  memory.next_task = arena.take<int>(1);
  if (!base::sees_everything(plan.problem.mask)) memory.trouble = arena.take<int>(1);
  memory.heads = arena.take<HeadScale>(s.heads_q);
  memory.d_q = arena.take<float>(heads * tiles * rows * dim);
  if (plan.problem.stats == StatsLevel::kFull)
    memory.score_squares = arena.take<double>(heads * divide_up(s.len_kv, backward_keys(dim)) * 8);
  return memory;
}

void hopper_backward(const BackwardView& view, const base::BackwardCall& call, const HopperBackwardMemory& memory,
                     cudaStream_t stream) {
  const Shape& s = call.plan.shape;
  const Mask& mask = call.plan.problem.mask;
  const int dim = backward_dim(s.dim_qk, s.dim_v), rows = backward_rows(dim);
  BackwardArguments a;
  a.f = view;
  a.q = tensor_map(call.in.q, rows), a.d_o = tensor_map(call.in.d_o, rows);
  const int keys = backward_keys(dim);
  a.k = tensor_map(call.in.k, keys), a.v = tensor_map(call.in.v, keys);
  a.lse = memory.lse, a.delta = memory.delta, a.rows = memory.rows, a.tiles = memory.tiles, a.turns = memory.turns,
  a.next_task = memory.next_task, a.d_q = memory.d_q;
  if (view.stats) a.score_squares = memory.score_squares;
  a.trouble = memory.trouble, a.unseen_keys = leaves_unseen(mask, s);
  a.row_tiles = static_cast<int>(divide_up(s.len_q, rows)), a.key_tiles = static_cast<int>(divide_up(s.len_kv, keys));
  a.tasks = static_cast<int>(a.key_tiles * s.heads_kv * s.batch);
  int device = 0, multiprocessors = 1;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  a.first_keys_first = dim == 256;
  a.turns_alternate = dim != 256 && mask.causal && !mask.window && !mask.documents;
  if (base::sees_everything(mask) && a.key_tiles > 1 && dim != 256)
    a.ring = static_cast<int>(divide_up(a.key_tiles, divide_up(a.key_tiles, multiprocessors)));
  // An even number of sets, each as near as can be to one task for every multiprocessor.
  const std::int64_t pairs = std::max<std::int64_t>(1, (a.tasks + multiprocessors) / (2 * multiprocessors));
  a.near_heads = a.turns_alternate ? static_cast<int>(divide_up(s.batch * s.heads_kv, 2 * pairs)) : 1;
  a.scale = static_cast<float>(call.plan.problem.scale.factor(0, s.dim_qk)), a.scale2 = a.scale * kLog2E;
  if (view.p.factor) a.heads = memory.heads;
  const auto go = [&]<class Element>(Element) {
    if (dim == 64) run<Element, 64>(a, s.dtype, multiprocessors, stream);
    else if (dim == 128) run<Element, 128>(a, s.dtype, multiprocessors, stream);
    else run<Element, 256>(a, s.dtype, multiprocessors, stream);
  };
  if (s.dtype == DType::kBF16) go(__nv_bfloat16{});
  else go(__half{});
}

}  // namespace rootdk::cuda
