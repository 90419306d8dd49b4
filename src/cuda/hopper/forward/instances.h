// The tiles of the Hopper kernel, one translation unit for each head size so that they compile side by side.
#pragma once

#include <type_traits>

#include "cuda/hopper/forward/kernel.cuh"

namespace rootdk::cuda {

enum class HopperLayout {
  kWide,    ///< many keys a block
  kShort,   ///< rows that see few keys: many rows, and queries ahead, since tiles come and go
  kCapped,  ///< a soft-cap
  kRich,    ///< rich scores need registers, as do full statistics: fewer keys
  kFull,
  kPacked,  ///< few queries: two blocks per multiprocessor, to keep memory busy
  kPackedCapped,
  kPackedRich,
};

template <int kDim>
struct HopperTiles;
template <>
struct HopperTiles<64> {
  using Wide = HopperTile<TileShape{
      .dim = 64, .warpgroups = 3, .keys = 128, .producer_registers = 32, .consumer_registers = 160, .tail = 64}>;
  using Short = HopperTile<TileShape{.dim = 64,
                                     .warpgroups = 4,
                                     .keys = 64,
                                     .stages = 8,
                                     .producer_registers = 32,
                                     .consumer_registers = 112,
                                     .query_tiles = 2}>;
  using Capped = HopperTile<TileShape{
      .dim = 64, .warpgroups = 3, .keys = 96, .producer_registers = 56, .consumer_registers = 152}>;
  using Full = HopperTile<TileShape{
      .dim = 64, .warpgroups = 3, .keys = 80, .producer_registers = 32, .consumer_registers = 160}>;
  using Rich = HopperTile<TileShape{
      .dim = 64, .warpgroups = 2, .keys = 96, .producer_registers = 40, .consumer_registers = 232}>;
  using Packed = HopperTile<TileShape{.dim = 64,
                                      .warpgroups = 1,
                                      .keys = 128,
                                      .stages = 3,
                                      .blocks = 2,
                                      .producer_registers = 40,
                                      .consumer_registers = 216}>;
  using PackedRich = HopperTile<TileShape{.dim = 64,
                                          .warpgroups = 1,
                                          .keys = 64,
                                          .stages = 3,
                                          .blocks = 2,
                                          .producer_registers = 40,
                                          .consumer_registers = 216}>;
};
template <>
struct HopperTiles<128> {
  using Wide = HopperTile<TileShape{
      .dim = 128, .warpgroups = 2, .keys = 176, .producer_registers = 24, .consumer_registers = 240, .tail = 64}>;
  using Short = void;
  using Capped = HopperTile<TileShape{
      .dim = 128, .warpgroups = 2, .keys = 128, .producer_registers = 40, .consumer_registers = 232}>;
  using Full = HopperTile<TileShape{
      .dim = 128, .warpgroups = 2, .keys = 128, .producer_registers = 24, .consumer_registers = 240}>;
  using Rich = HopperTile<TileShape{
      .dim = 128, .warpgroups = 2, .keys = 80, .producer_registers = 40, .consumer_registers = 232}>;
  using Packed = HopperTile<TileShape{.dim = 128,
                                      .warpgroups = 1,
                                      .keys = 64,
                                      .stages = 3,
                                      .blocks = 2,
                                      .producer_registers = 40,
                                      .consumer_registers = 216}>;
  using PackedRich = Packed;
};
template <>
struct HopperTiles<256> {
  using Wide = HopperTile<TileShape{
      .dim = 256, .warpgroups = 2, .keys = 80, .producer_registers = 40, .consumer_registers = 232}>;
  using Short = void;
  using Capped = HopperTile<TileShape{
      .dim = 256, .warpgroups = 2, .keys = 48, .producer_registers = 40, .consumer_registers = 232}>;
  using Full = HopperTile<TileShape{
      .dim = 256, .warpgroups = 2, .keys = 48, .producer_registers = 40, .consumer_registers = 232}>;
  using Rich = HopperTile<TileShape{
      .dim = 256, .warpgroups = 2, .keys = 16, .producer_registers = 40, .consumer_registers = 232}>;
  using Packed = HopperTile<TileShape{
      .dim = 256, .warpgroups = 1, .keys = 64, .producer_registers = 40, .consumer_registers = 240}>;
  using PackedRich = void;  ///< too many registers: rows are not packed then
};

/// The tile of a layout, as a value: f(Tile{}).
template <int kDim, class F>
auto with_tile(HopperLayout layout, const F& f) {
  using Tiles = HopperTiles<kDim>;
  switch (layout) {
    case HopperLayout::kShort:
      if constexpr (!std::is_void_v<typename Tiles::Short>) return f(typename Tiles::Short{});
      else return f(typename Tiles::Wide{});
    case HopperLayout::kCapped: return f(typename Tiles::Capped{});
    case HopperLayout::kRich: return f(typename Tiles::Rich{});
    case HopperLayout::kFull: return f(typename Tiles::Full{});
    case HopperLayout::kPacked: return f(typename Tiles::Packed{});
    case HopperLayout::kPackedCapped: return f(typename Tiles::Packed{});
    case HopperLayout::kPackedRich:
      if constexpr (!std::is_void_v<typename Tiles::PackedRich>) return f(typename Tiles::PackedRich{});
      [[fallthrough]];
    default: return f(typename Tiles::Wide{});
  }
}

struct HopperTileSizes {
  int rows, keys, blocks;  ///< blocks: at a time on a multiprocessor
};

/// The head size that a kernel is compiled for and that holds `dim`: TMA fills up with zeros.
inline std::int64_t padded_dim(std::int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

inline HopperTileSizes hopper_tile(std::int64_t dim, HopperLayout layout) {
  const auto sizes = []<class Tile>(Tile) { return HopperTileSizes{Tile::kRows, Tile::kKeys, Tile::kBlocks}; };
  return dim == 64    ? with_tile<64>(layout, sizes)
         : dim == 128 ? with_tile<128>(layout, sizes)
                      : with_tile<256>(layout, sizes);
}

/// Scaled scores, with statistics; scores that are more than scaled, without full ones.
template <int kDim>
void hopper_scaled(const HopperArguments& a, DType dtype, HopperLayout layout, const HopperGrid& grid,
                   cudaStream_t stream);
template <int kDim>
void hopper_rich(const HopperArguments& a, DType dtype, HopperLayout layout, ScoreKind kind, const HopperGrid& grid,
                 cudaStream_t stream);

template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16) f(__nv_bfloat16{});
  else f(__half{});
}

#define ROOTDK_HOPPER_SCALED(DIM)                                                                             \
  template <>                                                                                                 \
  void hopper_scaled<DIM>(const HopperArguments& a, DType dtype, HopperLayout layout, const HopperGrid& grid, \
                          cudaStream_t stream) {                                                              \
    using Tiles = HopperTiles<DIM>;                                                                           \
    constexpr ScoreKind kScaled = ScoreKind::kScaled;                                                         \
    with_type(dtype, [&]<class T>(T) {                                                                        \
      switch (layout) {                                                                                       \
        case HopperLayout::kShort:                                                                            \
          if constexpr (!std::is_void_v<Tiles::Short>)                                                        \
            return hopper_launch<Tiles::Short, T, false, kScaled>(a, grid, stream);                           \
          [[fallthrough]];                                                                                    \
        case HopperLayout::kWide: return hopper_launch<Tiles::Wide, T, false, kScaled>(a, grid, stream);      \
        case HopperLayout::kFull: return hopper_launch<Tiles::Full, T, true, kScaled>(a, grid, stream);       \
        default: return hopper_launch<Tiles::Packed, T, false, kScaled>(a, grid, stream);                     \
      }                                                                                                       \
    });                                                                                                       \
  }

#define ROOTDK_HOPPER_RICH(DIM)                                                                     \
  template <>                                                                                       \
  void hopper_rich<DIM>(const HopperArguments& a, DType dtype, HopperLayout layout, ScoreKind kind, \
                        const HopperGrid& grid, cudaStream_t stream) {                              \
    using Tiles = HopperTiles<DIM>;                                                                 \
    with_type(dtype, [&]<class T>(T) {                                                              \
      if (layout == HopperLayout::kPackedCapped)                                                    \
        return hopper_launch<Tiles::Packed, T, false, ScoreKind::kCapped>(a, grid, stream);         \
      if constexpr (!std::is_void_v<Tiles::PackedRich>)                                             \
        if (layout == HopperLayout::kPackedRich)                                                    \
          return hopper_launch<Tiles::PackedRich, T, false, ScoreKind::kRich>(a, grid, stream);     \
      if (kind == ScoreKind::kCapped)                                                               \
        return hopper_launch<Tiles::Capped, T, false, ScoreKind::kCapped>(a, grid, stream);         \
      hopper_launch<Tiles::Rich, T, false, ScoreKind::kRich>(a, grid, stream);                      \
    });                                                                                             \
  }

}  // namespace rootdk::cuda
