// Which problems the mma forward takes, with which kernel, and what is launched for them.
#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/mma/forward/instances.h"
#include "cuda/mma/loads.cuh"
#include "cuda/mma/mma.h"

namespace rootdk::cuda {

namespace {

using namespace mma;

constexpr std::int64_t kFewQueries = 16;  ///< at most, for heads that share keys to share a tile, and keys to be split
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
constexpr std::int64_t kCacheBytes =
    std::int64_t{8} << 20;  ///< of K and V that stay in the second-level cache, also where each half of it keeps a copy

Kind kind_of(const Problem& problem, const Shape& s) {
  if (problem.stats == StatsLevel::kFull) return Kind::kFull;
  if (s.len_q <= kFewQueries) return Kind::kFew;
  const Mask& mask = problem.mask;
  if (mask.allowed.present() || mask.bias.present() || !mask.alibi_slopes.empty() || problem.dropout.p > 0 ||
      problem.soft_cap || problem.scale.by_row())
    return Kind::kRich;
  for (std::int64_t h = 0; h < s.heads_q; ++h)
    if (!(problem.scale.factor(h, s.dim_qk) >= 0x1p-100)) return Kind::kRich;  // q·k's maximum is not that of scores
  return Kind::kScaled;
}

template <int kDim>
int rows_of_tile(Kind kind) {
  switch (kind) {
    case Kind::kScaled: return Tile<shape_of<kDim, Kind::kScaled>()>::kRows;
    case Kind::kRich: return Tile<shape_of<kDim, Kind::kRich>()>::kRows;
    case Kind::kFull: return Tile<shape_of<kDim, Kind::kFull>()>::kRows;
    case Kind::kFew: return Tile<shape_of<kDim, Kind::kFew>()>::kRows;
  }
  return 1;
}

std::int64_t row_tiles(const Shape& s, Kind kind) {
  const std::int64_t dim = kernel_dim(s.dim_qk, s.dim_v), rows = dim == 64    ? rows_of_tile<64>(kind)
                                                                 : dim == 128 ? rows_of_tile<128>(kind)
                                                                              : rows_of_tile<256>(kind);
  return divide_up(kind == Kind::kFew ? s.len_q * s.group() : s.len_q, rows);
}

/// Of any sequence of the batch.
std::int64_t most_splits(const Shape& s, Kind kind) {
  if (kind != Kind::kFew || s.len_kv == 0) return 1;
  const std::int64_t rows = s.len_q * s.group();
  std::int64_t most = divide_up(s.len_kv, split_keys(static_cast<int>(s.len_kv), rows));
  for (const int length : {8191, 32767})
    if (s.len_kv > length) most = std::max(most, divide_up(length, split_keys(length, rows)));
  return most;
}

/// Batch items of one launch, where keys are split: as many as keep a card busy. Those after them have the same memory.
std::int64_t items_of_launch(const Shape& s, Kind kind) {
  constexpr std::int64_t kBusy = 3072;  // blocks: 12 times what an H200 runs at once
  const std::int64_t blocks = s.heads_kv * row_tiles(s, kind) * most_splits(s, kind);
  return std::min(s.batch, divide_up(kBusy, std::max<std::int64_t>(1, blocks)));
}

}  // namespace

std::string mma_misfit(const Problem& problem, const Shape& s) {
  if (s.dtype != DType::kF16 && s.dtype != DType::kBF16)
    return std::string("takes f16 and bf16, not ") + name_of(s.dtype);
  if (std::max(s.dim_qk, s.dim_v) > 256) return "takes dims up to 256";
  constexpr std::int64_t kFarthest = std::int64_t{1} << 28;
  const std::int64_t offset = problem.mask.diagonal.offset;
  if (std::max(s.len_q, s.len_kv) > kFarthest || offset > kFarthest || offset < -kFarthest)
    return "takes lengths and offsets up to 2^28";
  const Kind kind = kind_of(problem, s);
  const std::int64_t heads = std::max<std::int64_t>(1, s.batch * s.heads_q), each = kMostBlocks / heads;
  if (row_tiles(s, kind) * most_splits(s, kind) > each || s.len_q > each) return "takes fewer rows";
  return {};
}

MmaMemory mma_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  const Kind kind = kind_of(plan.problem, s);
  const std::int64_t splits = most_splits(s, kind);
  MmaMemory memory;
  if (splits == 1) return memory;
  const std::int64_t rows = items_of_launch(s, kind) * s.heads_q * s.len_q;
  memory.o = arena.take<float>(splits * rows * s.dim_v);
  memory.rows = arena.take<float4>(splits * rows);
  return memory;
}

void mma_forward(const ForwardView& view, const base::ForwardCall& call, const MmaMemory& memory, cudaStream_t stream) {
  const Shape& s = call.plan.shape;
  if (s.batch * s.heads_q * s.len_q == 0) return;
  const Kind kind = kind_of(call.plan.problem, s);
  Arguments a;
  a.f = view;
  a.width_q = copy_width(view.q), a.width_k = copy_width(view.k), a.width_v = copy_width(view.v),
  a.width_o = copy_width(view.o);
  a.allowed = pairs_of(view.p.allowed), a.bias = pairs_of(view.p.bias);
  a.full_rows = view.full_rows.any();
  a.row_tiles = static_cast<int>(row_tiles(s, kind));
  a.near_heads = static_cast<int>(
      std::clamp<std::int64_t>(kCacheBytes * s.group() / std::max<std::int64_t>(1, s.len_kv * (s.dim_qk + s.dim_v) * 2),
                               1, s.batch * s.heads_q));
  a.splits = static_cast<int>(most_splits(s, kind));
  a.part_o = memory.o, a.part_rows = memory.rows;
  const std::int64_t heads = (kind == Kind::kFew ? s.heads_kv : s.heads_q), dim = kernel_dim(s.dim_qk, s.dim_v);
  const auto launch = dim == 64 ? &launch_forward<64> : dim == 128 ? &launch_forward<128> : &launch_forward<256>;
  const std::int64_t items = a.splits > 1 ? items_of_launch(s, kind) : s.batch;
  for (std::int64_t first = 0; first < s.batch; first += items) {
    a.first_item = static_cast<int>(first), a.items = static_cast<int>(std::min(items, s.batch - first));
    launch(a, s.dtype, kind, static_cast<unsigned>(a.items * heads * a.row_tiles * a.splits), stream);
    if (a.splits > 1) combine_parts(a, s.dtype, stream);
  }
}

}  // namespace rootdk::cuda
