// Bf16Products on Intel's AMX tiles: 16 × 16 sums of 32 products each in one instruction. The build compiles this file
// alone for them; where it does not, there is nothing here. No inline function may be left to the linker from here: it
// could be taken for the whole program, and must run on any machine.
//
// Lanes are the columns of every sum: [16 keys][16 lanes] of scores, [16 d][16 lanes] of outputs. The left operand is
// then K as it lies, or V transposed; the right one is q or p in the pairs they come in.
#include "cpu/products/bf16.h"

#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) && \
    defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOTDK_UNROLL _Pragma("GCC unroll 8")

namespace rootdk::cpu {
namespace {

constexpr std::size_t kTile = 16;          // rows of a tile; f32 or pairs in a row
constexpr std::size_t kDepth = 2 * kTile;  // bf16 in a row of a tile
constexpr std::size_t kPanel = 2 * kTile;  // rows whose sums are held at once, by as many lanes

constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

// To some compilers a tile load reads no memory: what was written before this is there for it.
inline void written() { __asm__ volatile("" ::: "memory"); }

// The tiles: 0 and 1 are the sums of the panel's first 16 rows by two tiles of lanes, 2 and 3 those of its second; 4
// and 5 the rows' operands, 6 and 7 the lanes'. The instructions want these numbers as literals.
struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

/// For a panel of 1 to kPanel rows. Also makes all tiles 0.
void configure(std::size_t panel_rows) {
  const auto first = static_cast<std::uint8_t>(panel_rows < kTile ? panel_rows : kTile);
  const auto second = static_cast<std::uint8_t>(panel_rows > kTile ? panel_rows - kTile : kTile);
  TileConfig config = {
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {first, first, second, second, first, second, kTile, kTile}};
  __asm__ volatile("" ::"r"(&config) : "memory");  // as written(), for a local
  _tile_loadconfig(&config);
}

/// sums[row][lane] += Σ a[row][i]·b[i][lane] over i < depth; a is rows of bf16, b is [depth/2][width] pairs.
template <int kRowTiles, int kLaneTiles>
inline void add_products(Bf16Rows a, const std::uint32_t* b, std::size_t width, std::size_t depth) {
  const std::size_t a_bytes = a.stride * sizeof(std::uint16_t), b_bytes = width * sizeof(std::uint32_t);
  for (std::size_t i = 0; i < depth; i += kDepth) {
    const std::uint16_t* rows = a.data + i;
    const std::uint32_t* pairs = b + i / 2 * width;
    _tile_loadd(6, pairs, b_bytes);
    _tile_loadd(4, rows, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kLaneTiles > 1) {
      _tile_loadd(7, pairs + kTile, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles > 1) {
      _tile_loadd(5, rows + kTile * a.stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kLaneTiles > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

/// The sums are [row][width] in memory.
template <int kRowTiles, int kLaneTiles>
inline void load_sums(const float* sums, std::size_t width) {
  const std::size_t bytes = width * sizeof(float);
  _tile_loadd(0, sums, bytes);
  if constexpr (kLaneTiles > 1) _tile_loadd(1, sums + kTile, bytes);
  if constexpr (kRowTiles > 1) _tile_loadd(2, sums + kTile * width, bytes);
  if constexpr (kRowTiles > 1 && kLaneTiles > 1) _tile_loadd(3, sums + kTile * width + kTile, bytes);
}

template <int kRowTiles, int kLaneTiles>
inline void store_sums(float* sums, std::size_t width) {
  const std::size_t bytes = width * sizeof(float);
  _tile_stored(0, sums, bytes);
  if constexpr (kLaneTiles > 1) _tile_stored(1, sums + kTile, bytes);
  if constexpr (kRowTiles > 1) _tile_stored(2, sums + kTile * width, bytes);
  if constexpr (kRowTiles > 1 && kLaneTiles > 1) _tile_stored(3, sums + kTile * width + kTile, bytes);
}

/// rows[i][lane] *= factor[lane]
void multiply_lanes(float* rows, std::size_t count, std::size_t width, const float* factor) {
  for (float* x = rows; x != rows + count * width; x += width)
    for (std::size_t lane = 0; lane < width; lane += kTile)
      _mm512_storeu_ps(x + lane, _mm512_mul_ps(_mm512_loadu_ps(x + lane), _mm512_loadu_ps(factor + lane)));
}

bool all_ones(const float* factor, std::size_t width) {
  for (std::size_t lane = 0; lane < width; lane += kTile)
    if (_mm512_cmp_ps_mask(_mm512_loadu_ps(factor + lane), _mm512_set1_ps(1), _CMP_NEQ_UQ)) return false;
  return true;
}

// Scores -------------------------------------------------------------------------------------------------------------

template <int kLaneTiles>
inline void score_block(const std::uint32_t* q, std::size_t width, Bf16Rows k, std::size_t dim, float* s) {
  zero_sums();
  add_products<2, kLaneTiles>(k, q, width, dim);
  store_sums<2, kLaneTiles>(s, width);
}

void scores(const std::uint32_t* q, std::size_t width, Bf16Rows k, std::size_t keys, std::size_t dim,
            const float* scale, float* s) {
  written();
  configure(kPanel);
  // A panel is scaled after the tiles of the next have been issued: it has then left them, and is still near.
  for (std::size_t key = 0; key <= keys; key += kPanel) {
    if (key < keys) {
      const Bf16Rows rows = {k.data + key * k.stride, k.stride};
      std::size_t lane = 0;
      for (; lane + 2 * kTile <= width; lane += 2 * kTile)
        score_block<2>(q + lane, width, rows, dim, s + key * width + lane);
      if (lane < width) score_block<1>(q + lane, width, rows, dim, s + key * width + lane);
    }
    if (key > 0) multiply_lanes(s + (key - kPanel) * width, kPanel, width, scale);
  }
  _tile_release();
}

// Values: V transposed, [dim, up to a multiple of 16][keys, up to a multiple of 32] ----------------------------------

constexpr std::size_t kPackDims = 8;  // that are transposed at once, for kDepth keys

std::size_t packed_values(std::size_t keys, std::size_t dim) { return round_up(dim, kTile) * round_up(keys, kDepth); }

/// Turns the six bits of an element's place in every 128-bit lane, three of the vector and three of the element, by
/// one.
inline void turn(const __m512i (&x)[8], __m512i (&y)[8]) {
  ROOTDK_UNROLL for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm512_unpacklo_epi16(x[i], x[i + 4]);
    y[2 * i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 4]);
  }
}

/// out[d][key] = in[key][d] for 8 d and 32 keys. A 128-bit lane transposes 8 keys: three turns exchange vector and
/// element. Not inline: 32 addresses would be kept across the loops around it, and there are not so many registers.
__attribute__((noinline)) void transpose(Bf16Rows in, std::uint16_t* out, std::size_t out_stride) {
  const auto row = [&](std::size_t key) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in.data + key * in.stride));
  };
  __m512i x[8], y[8];
  ROOTDK_UNROLL for (std::size_t i = 0; i < 8; ++i) {  // keys i, 8 + i, 16 + i and 24 + i
    x[i] = _mm512_castsi128_si512(row(i));
    x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x00F0, row(8 + i));
    x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x0F00, row(16 + i));
    x[i] = _mm512_mask_broadcast_i32x4(x[i], 0xF000, row(24 + i));
  }
  turn(x, y);
  turn(y, x);
  turn(x, y);
  ROOTDK_UNROLL for (std::size_t d = 0; d < 8; ++d) _mm512_storeu_si512(out + d * out_stride, y[d]);
}

void pack_values(Bf16Rows v, std::size_t keys, std::size_t dim, std::uint16_t* packed) {
  const std::size_t packed_keys = round_up(keys, kDepth), packed_dim = round_up(dim, kTile);
  for (std::size_t key = 0; key < packed_keys; key += kDepth) {
    for (std::size_t d = 0; d < packed_dim; d += kPackDims) {
      std::uint16_t* out = packed + d * packed_keys + key;
      if (key + kDepth <= keys && d + kPackDims <= dim) {
        transpose({v.data + key * v.stride + d, v.stride}, out, packed_keys);
        continue;
      }
      // Past an edge of V: from a copy with zeros around it.
      alignas(16) std::uint16_t copy[kDepth][kPackDims];
      const std::size_t dims = d >= dim ? 0 : dim - d < kPackDims ? dim - d : kPackDims;
      const auto valid = static_cast<__mmask8>((1u << dims) - 1);
      for (std::size_t i = 0; i < kDepth; ++i) {
        __m128i row = _mm_setzero_si128();
        if (key + i < keys && dims > 0) row = _mm_maskz_loadu_epi16(valid, v.data + (key + i) * v.stride + d);
        _mm_store_si128(reinterpret_cast<__m128i*>(copy[i]), row);
      }
      transpose({copy[0], kPackDims}, out, packed_keys);
    }
  }
}

// Weights ------------------------------------------------------------------------------------------------------------

void pack_weights(float* p, std::size_t width, std::size_t keys) {
  bf16_dot()->pack_weights(p, width, keys);
  const std::size_t end = round_up(keys, kDepth) / 2 * width;
  for (std::size_t i = round_up(keys, 2) / 2 * width; i < end; i += kTile) _mm512_storeu_ps(p + i, _mm512_setzero_ps());
}

// Weighted sum -------------------------------------------------------------------------------------------------------

template <int kRowTiles, int kLaneTiles>
inline void sum_block(const std::uint32_t* p, std::size_t width, Bf16Rows values, std::size_t keys, float* o) {
  load_sums<kRowTiles, kLaneTiles>(o, width);
  add_products<kRowTiles, kLaneTiles>(values, p, width, keys);
  store_sums<kRowTiles, kLaneTiles>(o, width);
}

template <int kRowTiles>
inline void sum_panel(const std::uint32_t* p, std::size_t width, Bf16Rows values, std::size_t keys, float* o) {
  std::size_t lane = 0;
  for (; lane + 2 * kTile <= width; lane += 2 * kTile) sum_block<kRowTiles, 2>(p + lane, width, values, keys, o + lane);
  if (lane < width) sum_block<kRowTiles, 1>(p + lane, width, values, keys, o + lane);
}

void weighted_sum(const std::uint32_t* p, std::size_t width, PackedValues v, std::size_t keys, std::size_t dim,
                  const float* rescale, float* o) {
  const auto panel_rows = [&](std::size_t d) { return dim - d < kPanel ? dim - d : kPanel; };
  const std::size_t stride = round_up(v.keys, kDepth);
  const bool rescales = !all_ones(rescale, width);  // most blocks of keys do not move a maximum
  if (rescales) multiply_lanes(o, panel_rows(0), width, rescale);
  for (std::size_t d = 0; d < dim; d += kPanel) {
    // One panel ahead of the tiles, whose loads would otherwise wait for these stores.
    if (rescales && d + kPanel < dim) multiply_lanes(o + (d + kPanel) * width, panel_rows(d + kPanel), width, rescale);
    written();
    const std::size_t rows = panel_rows(d);
    if (d == 0 || rows < kPanel) configure(rows);
    const Bf16Rows values = {v.data + d * stride, stride};
    if (rows > kTile) {
      sum_panel<2>(p, width, values, keys, o + d * width);
    } else {
      sum_panel<1>(p, width, values, keys, o + d * width);
    }
  }
  _tile_release();
}

// The machine --------------------------------------------------------------------------------------------------------

/// The processor has the tiles, the system saves them, and lets this process use them.
__attribute__((target("xsave"))) bool may_use_tiles() {
  constexpr unsigned kOsxsave = 1u << 27;                             // leaf 1, ecx
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;        // leaf 7, edx
  constexpr unsigned long long kTileState = 1ull << 17 | 1ull << 18;  // XCR0: configuration and data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;         // ARCH_REQ_XCOMP_PERM
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kAmxBf16) || !(d & kAmxTile)) return false;
  if ((_xgetbv(0) & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Few rows would leave most of a tile empty: they are done without.
const Bf16Products* find() {
  const Bf16Products* dot = bf16_dot();
  if (!dot || !may_use_tiles()) return nullptr;
  static const Bf16Products products = {.isa = "AVX3_AMX",
                                        .pays = true,
                                        .dim_step = kDepth,
                                        .key_step = kDepth,
                                        .packed_values = &packed_values,
                                        .scores = &scores,
                                        .pack_values = &pack_values,
                                        .pack_weights = &pack_weights,
                                        .weighted_sum = &weighted_sum,
                                        .narrow_scores = dot->narrow_scores,
                                        .narrow_pack_weights = dot->narrow_pack_weights,
                                        .narrow_sum = dot->narrow_sum};
  return &products;
}

}  // namespace

const Bf16Products* bf16_amx() {
  static const Bf16Products* const found = find();
  return found;
}

}  // namespace rootdk::cpu

#else

namespace rootdk::cpu {

const Bf16Products* bf16_amx() { return nullptr; }

}  // namespace rootdk::cpu

#endif
