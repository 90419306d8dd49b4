// Which problems the Hopper kernel takes, with which tile, and what is launched for them.
#include <algorithm>

#include "cuda/hopper/forward/argmax.h"
#include "cuda/hopper/forward/combine.h"
#include "cuda/hopper/forward/instances.h"
#include "cuda/hopper/forward/merge.cuh"
#include "cuda/hopper/tensor_map.h"

namespace rootdk::cuda {

namespace {

constexpr std::int64_t kPackedRows = 64;   ///< queries of all heads of a group, at most, for them to share a tile
constexpr std::int64_t kShortRows = 1024;  ///< queries at dim 64, at most, for the tile of short rows: measured
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;

std::int64_t kernel_dim(const Shape& s) { return padded_dim(std::max(s.dim_qk, s.dim_v)); }

ScoreKind kind_of(const Problem& problem, const Shape& s) {
  const Mask& mask = problem.mask;
  if (mask.allowed.present() || mask.bias.present() || !mask.alibi_slopes.empty() || problem.dropout.p > 0 ||
      problem.scale.by_row())
    return ScoreKind::kRich;
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

/// Split-KV: lengths alone decide, so that a row has the same bits in any company. Long splits cost less, short ones
/// occupy the card where the batch is small.
std::int64_t split_keys(const Shape& s) { return s.len_kv < 4096 ? 256 : s.len_kv < 8192 ? 512 : 1024; }
std::int64_t splits(const Problem& problem, const Shape& s) {
  return packs(problem, s) ? std::max<std::int64_t>(1, divide_up(s.len_kv, split_keys(s))) : 1;
}

/// Multiprocessors of the card that this is tuned for: who does what may follow from it, no result does.
constexpr std::int64_t kMultiprocessors = 132;

/// Whether the rows alone give the card enough to do: then a block takes a group of splits and merges them itself, and
/// there is less to keep.
bool merges(const Problem& problem, const Shape& s) {
  if (splits(problem, s) < 2) return false;
  const std::int64_t runs = s.batch * s.heads_kv * divide_up(splits(problem, s), kGroupSplits),
                     blocks = kMultiprocessors * (kernel_dim(s) < 256 ? 2 : 1);
  return 10 * runs >= 9 * blocks * divide_up(runs, blocks);  // of the last round's blocks most have one
}

/// What is kept of each row, where its keys are split.
std::int64_t parts(const Problem& problem, const Shape& s) {
  return merges(problem, s) ? divide_up(splits(problem, s), kGroupSplits) : splits(problem, s);
}

/// Masks may hide a key from some rows of a tile that others see.
bool hides_within(const Mask& mask) { return !base::rows_alike(mask) || mask.allowed.present() || mask.bias.present(); }

/// Tiles of a launch, at most.
std::int64_t most_tiles(const Problem& problem, const Shape& s) {
  if (packs(problem, s)) return s.batch * s.heads_kv * divide_up(splits(problem, s), kGroupSplits) * kGroupSplits;
  return s.batch * s.heads_q * (divide_up(s.len_q, 64) + kMostGroups);
}

/// Of rows that full statistics do not look at.
HopperLayout plain_layout(const Problem& problem, const Shape& s) {
  const ScoreKind kind = kind_of(problem, s);
  if (kind != ScoreKind::kScaled) return kind == ScoreKind::kCapped ? HopperLayout::kCapped : HopperLayout::kRich;
  return kernel_dim(s) == 64 && s.len_q <= kShortRows ? HopperLayout::kShort : HopperLayout::kWide;
}

HopperLayout layout_of(const Problem& problem, const Shape& s) {
  const ScoreKind kind = kind_of(problem, s);
  if (packs(problem, s))
    return kind == ScoreKind::kScaled   ? HopperLayout::kPacked
           : kind == ScoreKind::kCapped ? HopperLayout::kPackedCapped
                                        : HopperLayout::kPackedRich;
  return problem.stats == StatsLevel::kFull ? HopperLayout::kFull : plain_layout(problem, s);
}

/// What rows see of documents, once: a search for each would be too much in the kernel.
__global__ void find_runs(const __grid_constant__ ProblemView p, int2* runs) {
  for (std::int64_t x = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; x < p.batch * p.len_q;
       x += std::int64_t{gridDim.x} * blockDim.x) {
    const QueryRow row = unpadded_keys(p, x / p.len_q, x % p.len_q);
    runs[x] = {static_cast<int>(row.begin), static_cast<int>(row.end)};
  }
}

/// Whether the keys of other rows than the head's are asked for: of each row, or of the row with the largest score in
/// each bucket.
bool wants_keys(const ForwardView& view, const StatsOptions& options) {
  return view.full_rows.raw_argmax.data || view.full_rows.score_argmax.data || options.by_keys;
}

/// Tiles differ in how long they take.
bool uneven(const Problem& problem) { return !base::sees_everything(problem.mask); }

/// Many heads of few tiles: a block that takes all tiles of a head has as much to do as any other.
bool takes_whole_heads(const Problem& problem, const Shape& s, std::int64_t row_tiles) {
  const Mask& mask = problem.mask;
  return (mask.causal || mask.window) && mask.key_lengths.empty() && !mask.documents && row_tiles <= 8 &&
         s.batch * s.heads_q >= 512;
}

/// Multiprocessors are not equally far from memory: over many rounds of tiles that adds up to more than the counter
/// costs.
constexpr int kManyRounds = 8;

constexpr std::int64_t kCacheBytes =
    std::int64_t{8} << 20;  ///< of K and V that stay in the second-level cache, also where each half of it keeps a copy

}  // namespace

std::string hopper_misfit(const Problem& problem, const Shape& s, const Gpu& card) {
  if (card.major != 9) return "is for compute capability 9.0, which " + card.name + " has not";
  if (s.dtype != DType::kF16 && s.dtype != DType::kBF16)
    return std::string("takes f16 and bf16, not ") + name_of(s.dtype);
  if (std::max(s.dim_qk, s.dim_v) > 256) return "takes dims up to 256";
  const Mask& mask = problem.mask;
  if (base::has_padding(mask)) return "does not take padding but key lengths, or documents per item, yet";
  if (problem.paged) return "does not take pages";
  if (mask.bias.present()) return "reads a bias score by score, which mma does in half the time";
  if (problem.stats == StatsLevel::kFull && kind_of(problem, s) != ScoreKind::kScaled)
    return "takes full statistics of scores that are scaled (by more than zero, alike in all rows of a head) and no "
           "more";
  if (!fits_int32(mask, s)) return "takes lengths and offsets up to 2^28";
  if (divide_up(std::max(s.len_q, s.len_kv), 64) > kMostTiles / std::max<std::int64_t>(1, s.batch * s.heads_q))
    return "takes fewer rows";
  return {};
}

bool hopper_takes(const Inputs& in) { return can_map(in.q) && can_map(in.k) && can_map(in.v); }

HopperMemory hopper_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  const std::int64_t kept = parts(plan.problem, s), rows = s.batch * s.heads_q * s.len_q;
  const bool split = splits(plan.problem, s) > 1;
  HopperMemory memory;
  if (split) {
    memory.o = arena.take<float>(kept * rows * s.dim_v);
    memory.rows = arena.take<float4>(kept * rows);
  }
  if (hides_within(plan.problem.mask))
    memory.again = arena.take<int>(2 * most_tiles(plan.problem, s));  // of two launches, where rows are sampled
  if (plan.problem.stats == StatsLevel::kFull) {
    memory.largest = arena.take<unsigned long long>(s.batch * s.heads_q * 4 * (divide_up(s.len_q, 64) + kMostGroups));
  }
  if (split || uneven(plan.problem) || plan.problem.stats_options.sample > 1) memory.next_tile = arena.take<int>(3);
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

/// Where full statistics are sampled two kernels run side by side (programmatic dependent launch). The instructions of
/// both do not fit the instruction cache of a GPC (a group of multiprocessors), so that the sampled rows get GPCs of
/// their own by clusters, as few as leave the others some of the time. 0: all multiprocessors begin with sampled rows,
/// where there are few tiles or short ones.
int clusters_for_sampled(const Problem& problem, const SliceRule& sampled, const Shape& s, int multiprocessors) {
  constexpr double kMostOfTime = 0.7, kFewRounds = 12;
  const double cost = kernel_dim(s) == 64 ? 1.75 : 1.4;  // of a tile with full statistics, over one without
  const std::int64_t slices = divide_up(s.len_q, 64), some = count(sampled, slices),
                     groups = hopper_tile(kernel_dim(s), HopperLayout::kFull).rows / 64;
  const std::int64_t heads = s.batch * s.heads_q, tiles = divide_up(some, groups) * heads,
                     others = divide_up(slices - some, groups) * heads;
  const double rounds = (static_cast<double>(tiles) * cost + static_cast<double>(others)) / multiprocessors;
  if (rounds < kFewRounds || plain_layout(problem, s) == HopperLayout::kShort ||
      takes_whole_heads(problem, s, divide_up(slices - some, groups)))
    return 0;
  return static_cast<int>(divide_up(tiles, kClusterBlocks * static_cast<std::int64_t>(kMostOfTime * rounds / cost)));
}

/// Where few multiprocessors would have a last tile, and the others nothing to do meanwhile, each warpgroup's rows
/// become a tile of their own: one warpgroup alone takes little more than its share of the time. Beside sampled rows
/// nobody knows which tiles are the last; half a round of such small ones was best.
void divide_last_tiles(HopperArguments& a, int blocks, int groups) {
  const int last = a.beside ? blocks / (2 * groups) : a.tiles % blocks;
  if (a.tiles <= blocks || last * groups > blocks) return;
  a.whole_tiles = a.tiles - last;
  a.tiles = a.whole_tiles + last * groups;
}

/// An offset from the last key of an item is the scheduler's to find.
RowRule rule_of(const Mask& mask, const Shape& s) {
  base::MaskView view = base::view_of(mask, s);
  if (view.diagonal == Diagonal::Kind::kLastKey) view.diagonal = Diagonal::Kind::kBottomRight;
  const base::ReachOf<int> reach = base::reach_of<int>(view);
  return {base::rows_alike(mask), base::diagonal_offset(view, 0, static_cast<int>(s.len_q), static_cast<int>(s.len_kv)),
          reach.left, reach.right};
}

void launch(const HopperArguments& a, const Shape& s, ScoreKind kind, HopperLayout layout, const HopperGrid& grid,
            cudaStream_t stream) {
  const std::int64_t dim = kernel_dim(s);
  if (kind == ScoreKind::kScaled) {
    const auto scaled = dim == 64 ? &hopper_scaled<64> : dim == 128 ? &hopper_scaled<128> : &hopper_scaled<256>;
    return scaled(a, s.dtype, layout, grid, stream);
  }
  const auto rich = dim == 64 ? &hopper_rich<64> : dim == 128 ? &hopper_rich<128> : &hopper_rich<256>;
  rich(a, s.dtype, layout, kind, grid, stream);
}

}  // namespace

void hopper_forward(const ForwardView& view, const base::ForwardCall& call, const HopperMemory& memory,
                    cudaStream_t stream) {
  const Shape& s = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const bool full = problem.stats == StatsLevel::kFull, packed = packs(problem, s);
  HopperArguments a;
  a.f = view;
  a.rule = rule_of(problem.mask, s);
  if (memory.runs) {
    launch_kernel("runs of keys", find_runs, grid(divide_up(s.batch * s.len_q, 256)), 256, 0, stream, view.p,
                  memory.runs);
    a.runs = reinterpret_cast<const KeyRun*>(memory.runs);
  }
  const std::int64_t heads = s.batch * s.heads_q;
  a.splits = static_cast<int>(splits(problem, s));
  const bool split = a.splits > 1;
  a.merges = merges(problem, s);
  a.padded_splits = a.merges ? static_cast<int>(divide_up(a.splits, kGroupSplits)) * kGroupSplits : a.splits;
  if (split) a.split_keys = static_cast<int>(split_keys(s)), a.part_o = memory.o, a.part_rows = memory.rows;
  a.followed = split || full;
  a.again = memory.again;
  a.rows = view.raw_max.data || view.score_max.data || view.p_max.data;
  a.full_rows = view.full_rows.any();
  if (full && view.full && !wants_keys(view, problem.stats_options)) a.largest = memory.largest;
  int device = 0, multiprocessors = 1;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "multiprocessors");

  const auto launch_slices = [&](const SliceRule& slices, HopperLayout layout, int* next_tile, int clusters) {
    const HopperTileSizes tile = hopper_tile(kernel_dim(s), layout);
    a.slices = slices;
    a.q = tensor_map(call.in.q, 64), a.k = tensor_map(call.in.k, tile.keys), a.v = tensor_map(call.in.v, tile.keys);
    a.row_tiles = static_cast<int>(packed ? 1 : divide_up(count(slices, divide_up(s.len_q, 64)) * 64, tile.rows));
    a.tiles = static_cast<int>(packed ? a.padded_splits * s.heads_kv * s.batch : a.row_tiles * heads);
    a.near_heads = static_cast<int>(
        std::clamp<std::int64_t>(kCacheBytes * s.group() / (s.len_kv * (s.dim_qk + s.dim_v) * 2), 1, heads));
    const bool whole_heads = !packed && takes_whole_heads(problem, s, a.row_tiles);
    a.run = whole_heads ? a.row_tiles : a.merges ? kGroupSplits : 1;
    const int blocks = std::min(a.tiles / a.run, multiprocessors * tile.blocks);  // persistent
    a.whole_tiles = a.tiles;
    if (!packed && !whole_heads && layout != HopperLayout::kFull && !uneven(problem) && (!a.beside || clusters > 0))
      divide_last_tiles(a, blocks, tile.rows / 64);
    a.next_tile = nullptr;
    if (whole_heads) a.near_heads = 1;
    else if (packed ? a.tiles / a.run >= kManyRounds * blocks : uneven(problem) || a.beside) a.next_tile = next_tile;
    if (a.next_tile && !a.beside) check(cudaMemsetAsync(a.next_tile, 0, sizeof(int), stream), "tile counter");
    if (blocks > 0) launch(a, s, kind_of(problem, s), layout, {blocks, clusters}, stream);
  };
  const SliceRule sampled = full && !a.full_rows ? sampled_slices(problem.stats_options) : SliceRule{};
  const bool apart = sampled.kind == SliceRule::kEvery, none = apart && count(sampled, divide_up(s.len_q, 64)) == 0;
  const bool some = apart && !none;
  const HopperLayout layout = none ? plain_layout(problem, s) : layout_of(problem, s);
  if (some) a.clears = memory.next_tile + 1;
  const int clusters = some ? clusters_for_sampled(problem, sampled, s, multiprocessors) : 0;
  launch_slices(none ? SliceRule{} : sampled, layout, memory.next_tile, clusters);
  const int noted = a.row_tiles * hopper_tile(kernel_dim(s), layout).rows / 16;
  if (some) {
    a.beside = true, a.before_done = memory.next_tile + 2;
    if (a.again) a.again += most_tiles(problem, s);
    launch_slices({SliceRule::kOthers, sampled.period, sampled.first}, plain_layout(problem, s), memory.next_tile + 1,
                  clusters);
    a.beside = a.tiles > 0;
  }
  if (split)
    combine_parts(view, {memory.o, memory.rows, static_cast<int>(parts(problem, s)), a.merges ? 1 : kGroupSplits},
                  s.dtype, stream);
  if (full && view.full && !none) {
    KeySearch search;
    search.largest = a.largest, search.warps = noted, search.block_keys = hopper_tile(kernel_dim(s), layout).keys;
    if (a.beside) search.ready = a.before_done;  // the sampled rows are done long before the others
    find_keys(view, search, s.dtype, stream);
  }
}

}  // namespace rootdk::cuda
