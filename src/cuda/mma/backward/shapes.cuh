// The mma backward's shapes: tiles of keys and of query rows, how warps share each product, and how a block's shared
// memory is laid out. The large ones want more than 99 KB of shared memory, which compute capability 8.6 and 12.0 have
// not.
#pragma once

#include "cuda/mma/backward/backward.h"
#include "cuda/mma/tile.cuh"

namespace rootdk::cuda::mma::back {

/// Warps in a grid over a result of kHeight × kWidth, each with kM × kN tiles of 16 × 8.
template <int kHeight, int kWidth, int kAcross, int kDown>
struct Warps {
  static constexpr int kColumns = kAcross, kRows = kDown, kM = kHeight / kDown / 16, kN = kWidth / kAcross / 8;
  static_assert(kM * kDown * 16 == kHeight && kN * kAcross * 8 == kWidth && kN % 2 == 0);

  static __device__ __forceinline__ int first_row() { return thread_now() / 32 / kAcross * (kHeight / kDown); }
  static __device__ __forceinline__ int first_column() { return thread_now() / 32 % kAcross * (kWidth / kAcross); }
  static __device__ __forceinline__ int column() { return thread_now() / 32 % kAcross; }
};

struct TileShape {
  int dim;
  int rows;  ///< of queries
  int keys;
  int threads = 256;
  int stages = 2;       ///< of Q and dO in shared memory
  int scores_down;      ///< warps above each other in S and dP,
  int key_sums_down;    ///< in dV and dK,
  int query_sums_down;  ///< in dQ
};

template <TileShape kShape>
struct Tile {
  static constexpr int kDim = kShape.dim, kRows = kShape.rows, kKeys = kShape.keys, kThreads = kShape.threads,
                       kStages = kShape.stages;
  static constexpr int kWarps = kThreads / 32;
  using Scores = Warps<kRows, kKeys, kWarps / kShape.scores_down, kShape.scores_down>;            // S, dP
  using KeySums = Warps<kKeys, kDim, kWarps / kShape.key_sums_down, kShape.key_sums_down>;        // dV, dK
  using QuerySums = Warps<kRows, kDim, kWarps / kShape.query_sums_down, kShape.query_sums_down>;  // dQ
  static constexpr int kScoreColumns = kKeys < 64 ? 64 : kKeys;  ///< a tile has at least 64

  // Offsets in shared memory
  static constexpr int kKeyBytes = kKeys * kDim * 2, kRowBytes = kRows * kDim * 2,
                       kScoreBytes = kRows * kScoreColumns * 2;
  static constexpr int kK = 0, kV = kK + kKeyBytes, kQ = kV + kKeyBytes, kDO = kQ + kStages * kRowBytes;
  static constexpr int kP = kDO + kStages * kRowBytes, kDS = kP + kScoreBytes, kNumbers = kDS + kScoreBytes;
  static constexpr int kNumberBytes = (kRowNumbers + kRowPlaces) * kRows * 4;  ///< of a stage, numbers before places
  static constexpr int kSums = kNumbers + kStages * kNumberBytes;     ///< d_c and d_scores, [columns of warps][rows]
  static constexpr int kSick = kSums + Scores::kColumns * kRows * 8;  ///< keys that were not finite
  static constexpr int kBytes = kSick + kKeys * 4;
  static_assert(kBytes <= 232448 && kKeyBytes % 1024 == 0 && kRowBytes % 1024 == 0 && kScoreBytes % 1024 == 0);
};

template <int kDim, Kind kKind>
consteval TileShape shape_of() {
  constexpr bool kSmall = kKind == Kind::kSmall;
  if (kDim == 64 && kKind == Kind::kScaled)
    return {.dim = 64, .rows = 128, .keys = 128, .scores_down = 4, .key_sums_down = 4, .query_sums_down = 4};
  if (kDim == 64 && kKind == Kind::kRich)  // more rows would not leave it registers
    return {.dim = 64, .rows = 64, .keys = 128, .scores_down = 2, .key_sums_down = 4, .query_sums_down = 2};
  if (kDim == 64)
    return {.dim = 64, .rows = 64, .keys = 64, .scores_down = 4, .key_sums_down = 2, .query_sums_down = 2};
  if (kDim == 128 && kSmall)
    return {.dim = 128, .rows = 32, .keys = 64, .scores_down = 2, .key_sums_down = 2, .query_sums_down = 2};
  if (kDim == 128)
    return {.dim = 128, .rows = 64, .keys = 128, .scores_down = 2, .key_sums_down = 4, .query_sums_down = 2};
  if (kSmall)
    return {.dim = 256,
            .rows = 32,
            .keys = 32,
            .threads = 128,
            .stages = 1,
            .scores_down = 2,
            .key_sums_down = 1,
            .query_sums_down = 1};
  return {.dim = 256, .rows = 64, .keys = 64, .scores_down = 4, .key_sums_down = 2, .query_sums_down = 2};
}
template <int kDim, Kind kKind>
using TileFor = Tile<shape_of<kDim, kKind>()>;
static_assert(TileFor<64, Kind::kSmall>::kBytes <= 101376 && TileFor<128, Kind::kSmall>::kBytes <= 101376 &&
              TileFor<256, Kind::kSmall>::kBytes <= 101376);

}  // namespace rootdk::cuda::mma::back
