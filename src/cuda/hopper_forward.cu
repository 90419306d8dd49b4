// Which problems the Hopper kernel takes, with which tile, and how its parts are put together again.
#include <algorithm>

#include "cuda/hopper_tiles.h"
#include "cuda/tensor_map.h"

namespace rootdk::gpu {

namespace {

constexpr std::int64_t kPackedRows = 64;      ///< queries of all heads of a group, at most, for them to share a tile
constexpr std::int64_t kShortRows = 1024;     ///< queries at dim 64, at most, for the tile of short rows: measured
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;

std::int64_t kernel_dim(const Shape& s) { return padded_dim(std::max(s.dim_qk, s.dim_v)); }

ScoreKind kind_of(const Problem& problem, const Shape& s) {
  const Mask& mask = problem.mask;
  if (mask.allowed.present() || mask.bias.present() || !mask.alibi_slopes.empty() || problem.dropout.p > 0 || problem.scale.by_row()) return ScoreKind::kRich;
  bool alike = true;
  for (std::int64_t h = 0; h < s.heads_q; ++h) {
    const double factor = problem.scale.factor(h, s.dim_qk);
    if (!(factor >= 0x1p-100)) return ScoreKind::kRich;  // the maximum of q·k is not that of the scores
    alike = alike && factor == problem.scale.factor(0, s.dim_qk);
  }
  return !problem.soft_cap ? ScoreKind::kScaled : alike ? ScoreKind::kCapped : ScoreKind::kRich;
}

bool packs(const Problem& problem, const Shape& s) {
  if (s.group() * s.len_q > kPackedRows || problem.stats == StatsLevel::kFull) return false;
  return kernel_dim(s) < 256 || kind_of(problem, s) != ScoreKind::kRich;
}

/// Lengths alone decide, so that a row has the same bits in any company. Long splits cost less, short ones occupy the card where the batch is small.
std::int64_t split_keys(const Shape& s) { return s.len_kv < 4096 ? 256 : s.len_kv < 8192 ? 512 : 1024; }
std::int64_t splits(const Problem& problem, const Shape& s) { return packs(problem, s) ? std::max<std::int64_t>(1, divide_up(s.len_kv, split_keys(s))) : 1; }

/// All rows of an item see the same keys.
bool alike(const Mask& mask) { return !mask.causal && !mask.window && !mask.documents; }

/// Of rows that full statistics do not look at.
HopperLayout plain_layout(const Problem& problem, const Shape& s) {
  const ScoreKind kind = kind_of(problem, s);
  if (kind != ScoreKind::kScaled) return kind == ScoreKind::kCapped ? HopperLayout::kCapped : HopperLayout::kRich;
  return kernel_dim(s) == 64 && s.len_q <= kShortRows ? HopperLayout::kShort : HopperLayout::kWide;
}

HopperLayout layout_of(const Problem& problem, const Shape& s) {
  const ScoreKind kind = kind_of(problem, s);
  if (packs(problem, s)) return kind == ScoreKind::kScaled ? HopperLayout::kPacked : kind == ScoreKind::kCapped ? HopperLayout::kPackedCapped : HopperLayout::kPackedRich;
  return problem.stats == StatsLevel::kFull ? HopperLayout::kFull : plain_layout(problem, s);
}

/// What rows see of documents, once: a search for each would be too much in the kernel.
__global__ void find_runs(const __grid_constant__ ProblemView p, int2* runs) {
  for (std::int64_t x = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; x < p.batch * p.len_q; x += std::int64_t{gridDim.x} * blockDim.x) {
    const QueryRow row = visible_keys(p, x / p.len_q, x % p.len_q);
    runs[x] = {static_cast<int>(row.begin), static_cast<int>(row.end)};
  }
}

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

constexpr int kKeyThreads = 1024, kPerKey = 8;

/// The kernel only knows in which block of keys a row's maximum is: finds the key, of the row that has the head's, or of all rows.
template <class T>
__global__ void __launch_bounds__(kKeyThreads) find_keys(const __grid_constant__ ForwardView f, const unsigned long long* largest, int block_keys, int rows_at_once) {
  const ProblemView& p = f.p;
  const std::int64_t head = blockIdx.x, b = head / p.heads_q, h = head % p.heads_q, first = head * p.len_q;
  __shared__ unsigned long long best;
  next_kernel_wait();
  if (largest && largest[head] == 0) return;
  const int from = largest ? number_of(largest[head]) : static_cast<int>(blockIdx.y) * rows_at_once, to = min(from + rows_at_once, static_cast<int>(p.len_q));
  for (int i = from; i < to; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    if (!is_sampled(p, i)) continue;
    const QueryRow run = visible_keys(p, b, i);
    const int start = f.full[first + i].raw.argmax, begin = max(start, static_cast<int>(run.begin)), end = static_cast<int>(min(run.end, static_cast<std::int64_t>(start) + block_keys));
    if (start < 0) continue;
    const T* q = reinterpret_cast<const T*>(f.q.data) + at(f.q, b, h, i);
    for (int j = begin + static_cast<int>(threadIdx.x) / kPerKey; j < end; j += kKeyThreads / kPerKey) {
      const T* k = reinterpret_cast<const T*>(f.k.data) + key_offset(p, f.k, b, h / p.group, j);
      float dot = 0;
#pragma unroll 8
      for (int d = threadIdx.x % kPerKey; d < p.dim_qk; d += kPerKey) dot = fmaf(widen(q[d * f.q.strides[3]]), widen(k[d * f.k.strides[3]]), dot);
      const unsigned others = 0xffu << (threadIdx.x % 32 / kPerKey * kPerKey);
      for (int distance = kPerKey / 2; distance > 0; distance /= 2) dot += __shfl_xor_sync(others, dot, distance);
      if (threadIdx.x % kPerKey == 0 && !isnan(dot)) atomicMax(&best, first_of_largest(dot, j));
    }
    __syncthreads();
    if (threadIdx.x != 0) continue;
    const int key = best == 0 ? begin : number_of(best);
    f.full[first + i].raw.argmax = f.full[first + i].score.argmax = key;
    write_row(f.full_rows[11], b, h, i, static_cast<float>(key)), write_row(f.full_rows[12], b, h, i, static_cast<float>(key));
  }
}

/// Whether each row's key is asked for.
bool wants_keys(const ForwardView& view) { return view.full_rows[11].data || view.full_rows[12].data; }

/// Tiles differ in how long they take: in what their rows see, or in whether they are sampled.
bool uneven(const Problem& problem) {
  const Mask& mask = problem.mask;
  return mask.causal || mask.window || !mask.key_lengths.empty() || mask.documents || problem.stats_options.sample > 1;
}

/// Many heads of few tiles: a block that takes all tiles of a head has as much to do as any other.
bool takes_whole_heads(const Problem& problem, const Shape& s, std::int64_t row_tiles) {
  const Mask& mask = problem.mask;
  return (mask.causal || mask.window) && mask.key_lengths.empty() && !mask.documents && row_tiles <= 8 && s.batch * s.heads_q >= 512;
}

/// Multiprocessors are not equally far from memory: over many rounds of tiles that adds up to more than the counter costs.
constexpr int kManyRounds = 8;

constexpr std::int64_t kCacheBytes = std::int64_t{8} << 20;  ///< of K and V that stay in the second-level cache, also where each half of it keeps a copy

}  // namespace

std::string hopper_misfit(const Problem& problem, const Shape& s, const Gpu& card) {
  if (card.major != 9) return "is for compute capability 9.0, which " + card.name + " has not";
  if (s.dtype != DType::kF16 && s.dtype != DType::kBF16) return std::string("takes f16 and bf16, not ") + name_of(s.dtype);
  if (std::max(s.dim_qk, s.dim_v) > 256) return "takes dims up to 256";
  const Mask& mask = problem.mask;
  if (problem.paged) return "does not take pages";
  if (problem.stats == StatsLevel::kFull && kind_of(problem, s) != ScoreKind::kScaled)
    return "takes full statistics of scores that are scaled (by more than zero, alike in all rows of a head) and no more";
  constexpr std::int64_t kFarthest = std::int64_t{1} << 28;
  if (std::max(s.len_q, s.len_kv) > kFarthest || mask.diagonal.offset > kFarthest || mask.diagonal.offset < -kFarthest) return "takes lengths and offsets up to 2^28";
  if (divide_up(std::max(s.len_q, s.len_kv), 64) > kMostTiles / std::max<std::int64_t>(1, s.batch * s.heads_q)) return "takes fewer rows";
  return {};
}

bool hopper_takes(const Inputs& in) { return can_map(in.q) && can_map(in.k) && can_map(in.v); }

HopperMemory hopper_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  const std::int64_t parts = splits(plan.problem, s), rows = s.batch * s.heads_q * s.len_q;
  HopperMemory memory;
  if (parts > 1) {
    memory.o = arena.take<float>(parts * rows * s.dim_v);
    memory.rows = arena.take<float4>(parts * rows);
  }
  if (plan.problem.stats == StatsLevel::kFull) {
    memory.largest = arena.take<unsigned long long>(s.batch * s.heads_q + 1);
    memory.next_tile = reinterpret_cast<int*>(memory.largest + s.batch * s.heads_q);
  } else if (parts > 1 || uneven(plan.problem)) {
    memory.next_tile = arena.take<int>(2);
  }
  if (plan.problem.mask.documents) memory.runs = arena.take<int2>(s.batch * s.len_q);
  return memory;
}

namespace {

/// The slices of 64 rows that full statistics look at, where slices are what is sampled.
SliceRule sampled_slices(const StatsOptions& options) {
  const std::int64_t period = options.sample;
  if (period <= 1 || options.first_query % kSampleBlock != 0 || period > std::int64_t{1} << 20) return {};
  const std::int64_t first = ((options.sample_offset - options.first_query / kSampleBlock) % period + period) % period;
  return {SliceRule::kEvery, static_cast<int>(period), static_cast<int>(first)};
}

/// How many of a head's slices there are by a rule.
std::int64_t count(const SliceRule& rule, std::int64_t slices) {
  const std::int64_t every = rule.first < slices ? (slices - rule.first - 1) / rule.period + 1 : 0;
  return rule.kind == SliceRule::kAll ? slices : rule.kind == SliceRule::kEvery ? every : slices - every;
}

RowRule rule_of(const Mask& mask, const Shape& s) {
  constexpr std::int64_t kFar = std::int64_t{1} << 29;
  RowRule rule;
  rule.alike = alike(mask);
  const Window window = mask.window.value_or(Window{});
  rule.left = static_cast<int>(std::min(window.left, kFar)), rule.right = static_cast<int>(std::min(window.right, kFar));
  if (mask.causal) rule.right = std::min(rule.right, 0);
  if (mask.diagonal.kind == Diagonal::Kind::kBottomRight) rule.offset = static_cast<int>(s.len_kv - s.len_q);
  else if (mask.diagonal.kind == Diagonal::Kind::kAt) rule.offset = static_cast<int>(mask.diagonal.offset);
  return rule;
}

void launch(const HopperArguments& a, const Shape& s, ScoreKind kind, HopperLayout layout, int blocks, cudaStream_t stream) {
  const std::int64_t dim = kernel_dim(s);
  if (kind == ScoreKind::kScaled) {
    const auto scaled = dim == 64 ? &hopper_scaled<64> : dim == 128 ? &hopper_scaled<128> : &hopper_scaled<256>;
    return scaled(a, s.dtype, layout, blocks, stream);
  }
  const auto rich = dim == 64 ? &hopper_rich<64> : dim == 128 ? &hopper_rich<128> : &hopper_rich<256>;
  rich(a, s.dtype, layout, kind, blocks, stream);
}

}  // namespace

void hopper_forward(const ForwardView& view, const base::ForwardCall& call, const HopperMemory& memory, cudaStream_t stream) {
  const Shape& s = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const bool full = problem.stats == StatsLevel::kFull, packed = packs(problem, s);
  HopperArguments a;
  a.f = view;
  a.rule = rule_of(problem.mask, s);
  if (memory.runs) {
    find_runs<<<grid(divide_up(s.batch * s.len_q, 256)), 256, 0, stream>>>(view.p, memory.runs);
    check_launch("runs of keys");
    a.runs = reinterpret_cast<const KeyRun*>(memory.runs);
  }
  const std::int64_t parts = splits(problem, s), rows = s.batch * s.heads_q * s.len_q, heads = s.batch * s.heads_q;
  a.splits = static_cast<int>(parts);
  if (parts > 1) a.split_keys = static_cast<int>(split_keys(s)), a.part_o = memory.o, a.part_rows = memory.rows;
  a.followed = parts > 1 || full;
  a.rows = view.raw_max.data || view.score_max.data || view.p_max.data;
  for (const View& rows_of : view.full_rows) a.full_rows = a.full_rows || rows_of.data;
  if (full) check(cudaMemsetAsync(memory.largest, 0, static_cast<std::size_t>(heads + 1) * sizeof(unsigned long long), stream), "maxima and tile counters");
  else if (memory.next_tile && !packed) check(cudaMemsetAsync(memory.next_tile, 0, 2 * sizeof(int), stream), "tile counters");
  if (full && view.full && !wants_keys(view)) a.largest = memory.largest;
  int device = 0, multiprocessors = 1;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "multiprocessors");

  const auto launch_slices = [&](const SliceRule& slices, HopperLayout layout, int* next_tile) {
    const HopperTileSizes tile = hopper_tile(kernel_dim(s), layout);
    a.slices = slices;
    a.q = tensor_map(call.in.q, 64), a.k = tensor_map(call.in.k, tile.keys), a.v = tensor_map(call.in.v, tile.keys);
    a.row_tiles = static_cast<int>(packed ? 1 : divide_up(count(slices, divide_up(s.len_q, 64)) * 64, tile.rows));
    a.tiles = static_cast<int>(packed ? parts * s.heads_kv * s.batch : a.row_tiles * heads);
    a.near_heads = static_cast<int>(std::clamp<std::int64_t>(kCacheBytes * s.group() / (s.len_kv * (s.dim_qk + s.dim_v) * 2), 1, heads));
    const int blocks = std::min(a.tiles, multiprocessors * tile.blocks);  // they stay and take tile after tile
    a.whole_heads = !packed && takes_whole_heads(problem, s, a.row_tiles);
    a.next_tile = nullptr;
    if (a.whole_heads) a.near_heads = 1;
    else if (packed ? a.tiles >= kManyRounds * blocks : uneven(problem)) a.next_tile = next_tile;
    if (packed && a.next_tile) check(cudaMemsetAsync(a.next_tile, 0, sizeof(int), stream), "tile counter");
    if (blocks > 0) launch(a, s, kind_of(problem, s), layout, blocks, stream);
  };
  const SliceRule sampled = full && !a.full_rows ? sampled_slices(problem.stats_options) : SliceRule{};
  const HopperLayout layout = layout_of(problem, s);
  launch_slices(sampled, layout, memory.next_tile);
  if (sampled.kind == SliceRule::kEvery) {
    a.beside = a.tiles > 0;
    launch_slices({SliceRule::kOthers, sampled.period, sampled.first}, plain_layout(problem, s), memory.next_tile + 1);
  }
  if (parts > 1) {
    const auto combine = s.dtype == DType::kBF16 ? combine_kernel<__nv_bfloat16> : combine_kernel<__half>;
    launch_beside(combine, dim3(static_cast<unsigned>(rows)), parts > 32 ? 512 : 128, 0, stream, view, static_cast<const float*>(memory.o), static_cast<const float4*>(memory.rows), static_cast<int>(parts), rows);
  }
  if (full && view.full) {
    const std::int64_t rows_at_once = a.largest ? 1 : std::max<std::int64_t>(64, divide_up(s.len_q, 65535));
    const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(a.largest ? 1 : divide_up(s.len_q, rows_at_once)));
    const auto find = s.dtype == DType::kBF16 ? find_keys<__nv_bfloat16> : find_keys<__half>;
    launch_beside(find, grid, kKeyThreads, 0, stream, view, static_cast<const unsigned long long*>(a.largest), hopper_tile(kernel_dim(s), layout).keys, static_cast<int>(rows_at_once));
  }
}

}  // namespace rootdk::gpu
