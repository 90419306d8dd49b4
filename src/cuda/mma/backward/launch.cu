// The mma backward: which problems it takes, its workspace, and the launches.
#include <algorithm>

#include "base/visibility.h"
#include "cuda/common/launch.h"
#include "cuda/mma/backward/shapes.cuh"
#include "cuda/mma/loads.cuh"
#include "cuda/mma/mma.h"
#include "cuda/mma/scores.cuh"
#include "cuda/plain/plain.h"

namespace rootdk::cuda {

namespace {

using namespace mma::back;

/// Of a main kernel's tile.
struct TileSize {
  int rows, keys, bytes;
};

template <int kDim>
TileSize tile_size_of(Kind kind) {
  const auto of = []<class Tile>(Tile) { return TileSize{Tile::kRows, Tile::kKeys, Tile::kBytes}; };
  if (kind == Kind::kScaled) return of(TileFor<kDim, Kind::kScaled>{});
  if (kind == Kind::kRich) return of(TileFor<kDim, Kind::kRich>{});
  return of(TileFor<kDim, Kind::kSmall>{});
}

TileSize tile_size(int dim, Kind kind) {
  return dim == 64 ? tile_size_of<64>(kind) : dim == 128 ? tile_size_of<128>(kind) : tile_size_of<256>(kind);
}

/// Every query sees every key.
bool shows_all(const Mask& mask) {
  return base::sees_everything(mask) && !mask.allowed.present() && !mask.bias.present();
}

/// Whether scores are more than scaled by a number that is the same in all rows of a head.
bool is_rich(const Problem& problem) {
  const Mask& mask = problem.mask;
  return mask.allowed.present() || mask.bias.present() || !mask.alibi_slopes.empty() || problem.soft_cap ||
         problem.dropout.p > 0 || problem.scale.by_row();
}

int most_shared_memory() {
  static PerDevice<int> known;
  return known.get([] {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
    return bytes;
  });
}

}  // namespace

std::string mma_backward_misfit(const Problem& problem, const Shape& s) {
  if (s.dtype != DType::kF16 && s.dtype != DType::kBF16)
    return std::string("takes f16 and bf16, not ") + name_of(s.dtype);
  if (std::max(s.dim_qk, s.dim_v) > 256) return "takes dims up to 256";
  constexpr std::int64_t kFarthest = std::int64_t{1} << 28, kMostTiles = std::int64_t{1} << 24;
  const std::int64_t offset = problem.mask.diagonal.offset;
  if (std::max(s.len_q, s.len_kv) > kFarthest || offset > kFarthest || offset < -kFarthest)
    return "takes lengths and offsets up to 2^28";
  if (divide_up(std::max(s.len_q, s.len_kv), 32) > kMostTiles / std::max<std::int64_t>(1, s.batch * s.heads_q))
    return "takes fewer rows";
  return {};
}

// The card is not known where a plan is made, so there is room for any size of tiles.
MmaBackwardMemory mma_backward_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  const int dim = backward_dim(s.dim_qk, s.dim_v);
  std::int64_t rows = 0, tiles = 0;
  for (const Kind kind : {Kind::kScaled, Kind::kRich, Kind::kSmall}) {
    const std::int64_t of_tile = tile_size(dim, kind).rows, count = divide_up(s.len_q, of_tile);
    rows = std::max(rows, count * of_tile), tiles = std::max(tiles, count);
  }
  const std::int64_t heads = s.batch * s.heads_q;
  MmaBackwardMemory memory;
  memory.numbers = arena.take<float>(heads * rows * kRowNumbers);
  memory.places = arena.take<int>(s.batch * rows * kRowPlaces);
  memory.tiles = arena.take<RowTile>(s.batch * tiles);
  memory.turns = arena.take<int>(heads * tiles);
  memory.next_task = arena.take<int>(1), memory.trouble = arena.take<int>(1);
  memory.reference = arena.take<float>(s.heads_q);
  memory.d_q = arena.take<float>(heads * rows * dim);
  return memory;
}

void mma_backward(const BackwardView& view, const base::BackwardCall& call, const MmaBackwardMemory& memory,
                  cudaStream_t stream) {
  const Problem& problem = call.plan.problem;
  const Shape& s = call.plan.shape;
  const int dim = backward_dim(s.dim_qk, s.dim_v);
  Arguments a;
  a.f = view;
  a.numbers = memory.numbers, a.places = memory.places, a.tiles = memory.tiles, a.turns = memory.turns;
  a.next_task = memory.next_task, a.reference = memory.reference;
  if (!shows_all(problem.mask)) a.trouble = memory.trouble;
  a.sums = view.d_scale || view.d_log_n_gain || view.d_log_n_offset || view.stats;
  if (view.d_q.data || view.stats) a.d_q = memory.d_q;
  a.dense = problem.mask.allowed.present() || problem.mask.bias.present();
  a.q_width = mma::copy_width(view.q), a.k_width = mma::copy_width(view.k), a.v_width = mma::copy_width(view.v);
  a.o_width = mma::copy_width(view.o), a.d_o_width = mma::copy_width(view.d_o);
  a.bias_pairs = static_cast<unsigned char>(mma::pairs_of(view.p.bias));
  a.allowed_pairs = static_cast<unsigned char>(mma::pairs_of(view.p.allowed));
  Kind kind = is_rich(problem) ? Kind::kRich : Kind::kScaled;
  if (tile_size(dim, kind).bytes > most_shared_memory()) kind = Kind::kSmall;
  const TileSize tile = tile_size(dim, kind);
  a.rows = tile.rows, a.keys = tile.keys;
  a.natural = kind != Kind::kScaled;
  a.row_tiles = s.batch * s.heads_q == 0 ? 0 : static_cast<int>(divide_up(s.len_q, tile.rows));
  a.key_tiles = static_cast<int>(divide_up(s.len_kv, tile.keys));
  launch_prepare(a, s.dtype, stream);
  if (dim == 64) launch_backward_64(a, s.dtype, kind, stream);
  else if (dim == 128) launch_backward_128(a, s.dtype, kind, stream);
  else launch_backward_256(a, s.dtype, kind, stream);
  if (view.d_bias.data) launch_bias_gradient(a, s.dtype, dim, stream);
  if (a.sums || view.d_sink) plain_head_sums(view, stream);
}

}  // namespace rootdk::cuda
