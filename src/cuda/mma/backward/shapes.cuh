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

/// `kScoresDown`, …: how many warps are above each other in a product's result. `kStages`: of Q and dO.
template <int kDim_, int kRows_, int kKeys_, int kThreads_, int kStages_, int kScoresDown, int kKeysDown,
          int kQueriesDown>
struct Tile {
  static constexpr int kDim = kDim_, kRows = kRows_, kKeys = kKeys_, kThreads = kThreads_, kStages = kStages_;
  static constexpr int kWarps = kThreads / 32;
  using Scores = Warps<kRows, kKeys, kWarps / kScoresDown, kScoresDown>;      // S, dP
  using KeySums = Warps<kKeys, kDim, kWarps / kKeysDown, kKeysDown>;          // dV, dK
  using QuerySums = Warps<kRows, kDim, kWarps / kQueriesDown, kQueriesDown>;  // dQ
  static constexpr int kScoreColumns = kKeys < 64 ? 64 : kKeys;               ///< a tile has at least 64

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
struct TileFor;
template <>
struct TileFor<64, Kind::kScaled> {
  using Type = Tile<64, 128, 128, 256, 2, 4, 4, 4>;
};
template <>
struct TileFor<64, Kind::kRich> {  // more rows would not leave it registers
  using Type = Tile<64, 64, 128, 256, 2, 2, 4, 2>;
};
template <>
struct TileFor<64, Kind::kSmall> {
  using Type = Tile<64, 64, 64, 256, 2, 4, 2, 2>;
};
template <>
struct TileFor<128, Kind::kScaled> {
  using Type = Tile<128, 64, 128, 256, 2, 2, 4, 2>;
};
template <>
struct TileFor<128, Kind::kRich> : TileFor<128, Kind::kScaled> {};
template <>
struct TileFor<128, Kind::kSmall> {
  using Type = Tile<128, 32, 64, 256, 2, 2, 2, 2>;
};
template <>
struct TileFor<256, Kind::kScaled> {
  using Type = Tile<256, 64, 64, 256, 2, 4, 2, 2>;
};
template <>
struct TileFor<256, Kind::kRich> : TileFor<256, Kind::kScaled> {};
template <>
struct TileFor<256, Kind::kSmall> {
  using Type = Tile<256, 32, 32, 128, 1, 2, 1, 1>;
};
static_assert(TileFor<64, Kind::kSmall>::Type::kBytes <= 101376 && TileFor<128, Kind::kSmall>::Type::kBytes <= 101376 &&
              TileFor<256, Kind::kSmall>::Type::kBytes <= 101376);

}  // namespace rootdk::cuda::mma::back
