// The schedules of backward: sweeps over key heads, key blocks or query tiles, and what each writes when it is done.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/call.h"
#include "base/element.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_BACKWARD_SWEEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BACKWARD_SWEEPS_INL_H_
#undef ROOTDK_CPU_BACKWARD_SWEEPS_INL_H_
#else
#define ROOTDK_CPU_BACKWARD_SWEEPS_INL_H_
#endif

#include "cpu/backward/tile-inl.h"
#include "cpu/backward/workspace-inl.h"
#include "cpu/blocks-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// Which gradients a visit to a tile adds to.
struct Wanted {
  bool d_q = false, d_k = false, d_v = false;
};

/// Who meets whom, and where the sums go.
class Backward : TileGradients {
 public:
  Backward(const base::BackwardCall& call, const BackwardWorkspace& workspace) : TileGradients(call, workspace) {}

  std::int64_t tiles_per_head() const { return BackwardScratch::tiles_per_head(shape_); }
  std::int64_t key_blocks() const { return BackwardScratch::key_blocks(shape_); }

  bool wants_scale() const {
    return !call_.grad.d_scale.empty() || !call_.grad.d_log_n_gain.empty() || !call_.grad.d_log_n_offset.empty();
  }

  Wanted wanted() const {
    return {call_.grad.d_q.present() || wants_scale() || call_.stats, call_.grad.d_k.present(),
            call_.grad.d_v.present()};
  }

  /// D = dO·O − dLSE for the rows of one head, in double because it is small where P is saturated. A row that sees no
  /// key has O = 0, and its dO may hold anything.
  HWY_NOINLINE void row_deltas(std::int64_t b, std::int64_t h) const {
    if (shape_.dtype == DType::kF32)
      deltas_of(b, h, [](const void* data, std::int64_t offset) {
        return static_cast<double>(static_cast<const float*>(data)[offset]);
      });
    else
      deltas_of(b, h, [dtype = shape_.dtype](const void* data, std::int64_t offset) {
        return base::read(dtype, data, offset);
      });
  }

  /// One key head: all gradients in one sweep.
  HWY_NOINLINE void sweep_kv_head(std::int64_t b, std::int64_t kv_head, const BackwardScratch& scratch) const {
    const Wanted want = wanted();
    const std::size_t k_row = static_cast<std::size_t>(padded(shape_.dim_qk)),
                      v_row = static_cast<std::size_t>(padded(shape_.dim_v));
    std::memset(scratch.d_k, 0, static_cast<std::size_t>(shape_.len_kv) * k_row * sizeof(float));
    std::memset(scratch.d_v, 0, static_cast<std::size_t>(shape_.len_kv) * v_row * sizeof(float));
    for (std::int64_t h = kv_head * shape_.group(); h < (kv_head + 1) * shape_.group(); ++h) {
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) load_tile(b, h, t, scratch.tiles[t]);
      for (std::int64_t n = 0; n < key_blocks(); ++n) {
        const KeyBlock block = load_block(b, kv_head, n, scratch);
        for (std::int64_t t = 0; t < tiles_per_head(); ++t)
          visit(scratch.tiles[t], block, want, scratch, scratch.d_k + static_cast<std::size_t>(block.key0) * k_row,
                scratch.d_v + static_cast<std::size_t>(block.key0) * v_row);
      }
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) finish_queries(b, h, t, scratch.tiles[t], scratch);
    }
    write_keys(b, kv_head, 0, shape_.len_kv, scratch);
  }

  /// One block of keys: dK and dV.
  HWY_NOINLINE void sweep_key_block(std::int64_t b, std::int64_t kv_head, std::int64_t n,
                                    const BackwardScratch& scratch) const {
    const Wanted want{false, call_.grad.d_k.present(), call_.grad.d_v.present()};
    std::memset(scratch.d_k, 0, static_cast<std::size_t>(kKeys * padded(shape_.dim_qk)) * sizeof(float));
    std::memset(scratch.d_v, 0, static_cast<std::size_t>(kKeys * padded(shape_.dim_v)) * sizeof(float));
    const KeyBlock block = load_block(b, kv_head, n, scratch);
    for (std::int64_t h = kv_head * shape_.group(); h < (kv_head + 1) * shape_.group(); ++h)
      for (std::int64_t t = 0; t < tiles_per_head(); ++t) {
        load_tile(b, h, t, scratch.tiles[0], &block);
        visit(scratch.tiles[0], block, want, scratch, scratch.d_k, scratch.d_v);
      }
    write_keys(b, kv_head, block.key0, static_cast<std::int64_t>(block.keys), scratch);
  }

  /// One tile of queries: dQ.
  HWY_NOINLINE void sweep_query_tile(std::int64_t b, std::int64_t h, std::int64_t t,
                                     const BackwardScratch& scratch) const {
    const Wanted want{true, false, false};
    load_tile(b, h, t, scratch.tiles[0]);
    for (std::int64_t n = 0; n < key_blocks(); ++n) {
      if (!scratch.tiles[0].lanes->sees_block(n * kKeys, kKeys)) continue;
      visit(scratch.tiles[0], load_block(b, h / shape_.group(), n, scratch), want, scratch, nullptr, nullptr);
    }
    finish_queries(b, h, t, scratch.tiles[0], scratch);
  }

  /// The gradient of the bias, owned by (batch, head, query tile, key block) of its own shape; the axes it is broadcast
  /// over are summed in order.
  HWY_NOINLINE void bias_task(std::int64_t task, const BackwardScratch& scratch) const {
    const BiasTasks tasks(*this);
    const Tensor& out = call_.grad.d_bias;
    const auto [b0, b1] = tasks.range(task / tasks.per_batch(), tasks.batches, shape_.batch);
    const auto [h0, h1] = tasks.range(task / tasks.per_head() % tasks.heads, tasks.heads, shape_.heads_q);
    const auto [t0, t1] = tasks.range(task / tasks.blocks % tasks.tiles, tasks.tiles, tiles_per_head());
    const auto [n0, n1] = tasks.range(task % tasks.blocks, tasks.blocks, key_blocks());
    const std::int64_t rows = out.shape[2] == 1 ? 1 : std::min<std::int64_t>(kTileRows, shape_.len_q - t0 * kTileRows);
    const std::int64_t keys = out.shape[3] == 1 ? 1 : std::min(kKeys, shape_.len_kv - n0 * kKeys);
    std::fill_n(scratch.d_bias, rows * keys, 0.0);
    for (std::int64_t b = b0; b < b1; ++b)
      for (std::int64_t h = h0; h < h1; ++h)
        for (std::int64_t t = t0; t < t1; ++t) {
          const QueryTile& tile = scratch.tiles[0];
          load_tile(b, h, t, scratch.tiles[0]);
          for (std::int64_t n = n0; n < n1; ++n) {
            if (!tile.lanes->sees_block(n * kKeys, kKeys)) continue;
            const KeyBlock block = load_block(b, h / shape_.group(), n, scratch);
            const std::size_t seen = score_gradient(tile, block, scratch);
            for (std::size_t k = 0; k < seen; ++k)
              for (int r = 0; r < tile.lanes->count; ++r)
                scratch.d_bias[(out.shape[2] == 1 ? 0 : r) * keys +
                               (out.shape[3] == 1 ? 0 : static_cast<std::int64_t>(k))] +=
                    static_cast<double>(
                        scratch.d_s[k * static_cast<std::size_t>(tile.width()) + static_cast<std::size_t>(r)]);
          }
        }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < keys; ++k)
        base::write(out, b0, h0, out.shape[2] == 1 ? 0 : t0 * kTileRows + r, out.shape[3] == 1 ? 0 : n0 * kKeys + k,
                    scratch.d_bias[r * keys + k]);
  }

  /// Sums up what the sweeps left.
  HeadGradients head_gradients(std::int64_t b, std::int64_t h) const {
    HeadGradients sum;
    for (std::int64_t t = 0; t < tiles_per_head(); ++t) {
      const HeadGradients& part = workspace_.queries[(b * shape_.heads_q + h) * tiles_per_head() + t];
      sum.d_scores += part.d_scores;
      sum.d_log_scale += part.d_log_scale;
      sum.d_q += part.d_q;
    }
    for (std::int64_t n = 0; n < key_blocks() && (call_.grad.d_k.present() || call_.grad.d_v.present()); ++n) {
      const KeySquares& part = workspace_.keys[(b * shape_.heads_kv + h / shape_.group()) * key_blocks() + n];
      sum.d_k += part.d_k;
      sum.d_v += part.d_v;
    }
    if (!call_.grad.d_k.present()) sum.d_k = std::numeric_limits<double>::quiet_NaN();
    if (!call_.grad.d_v.present()) sum.d_v = std::numeric_limits<double>::quiet_NaN();
    return sum;
  }

  std::int64_t bias_task_count() const { return BiasTasks(*this).total(); }

 private:
  /// Each row's sum runs over ascending d; several rows side by side, so that no sum waits for itself.
  template <class Read>
  HWY_INLINE void deltas_of(std::int64_t b, std::int64_t h, const Read& read) const {
    constexpr std::int64_t kRows = 8;
    const BackwardInputs& in = call_.in;
    const auto step = [](const ConstTensor& t) { return t.shape[3] == 1 ? 0 : t.strides[3]; };
    const std::int64_t o_step = step(in.o), d_o_step = step(in.d_o);
    float* delta = workspace_.delta + (b * shape_.heads_q + h) * shape_.len_q;
    for (std::int64_t first = 0; first < shape_.len_q; first += kRows) {
      std::int64_t o[kRows], d_o[kRows];
      double sums[kRows];
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::int64_t i = std::min(first + r, shape_.len_q - 1);  // the last again: nothing else may be read
        o[r] = base::offset_of(in.o, b, h, i, 0);
        d_o[r] = base::offset_of(in.d_o, b, h, i, 0);
        sums[r] = in.d_lse.present() ? -base::read(in.d_lse, b, h, i, 0) : 0;
      }
      for (std::int64_t d = 0; d < shape_.dim_v; ++d)
        for (std::int64_t r = 0; r < kRows; ++r) {
          const double value = read(in.o.data, o[r] + d * o_step);
          sums[r] = value != 0 ? sums[r] + read(in.d_o.data, d_o[r] + d * d_o_step) * value : sums[r];
        }
      for (std::int64_t r = 0; r < std::min(kRows, shape_.len_q - first); ++r)
        delta[first + r] = static_cast<float>(sums[r]);
    }
  }

  struct BiasTasks {
    std::int64_t batches, heads, tiles, blocks;
    explicit BiasTasks(const Backward& self)
        : batches(self.call_.grad.d_bias.shape[0]),
          heads(self.call_.grad.d_bias.shape[1]),
          tiles(self.call_.grad.d_bias.shape[2] == 1 ? 1 : self.tiles_per_head()),
          blocks(self.call_.grad.d_bias.shape[3] == 1 ? 1 : self.key_blocks()) {}
    std::int64_t per_head() const { return tiles * blocks; }
    std::int64_t per_batch() const { return heads * per_head(); }
    std::int64_t total() const { return batches * per_batch(); }
    // The indices an owner covers on an axis: its own one, or all of them where the axis is summed over.
    struct Range {
      std::int64_t first, last;
    };
    static Range range(std::int64_t own, std::int64_t owners, std::int64_t size) {
      return owners == 1 ? Range{0, size} : Range{own, own + 1};
    }
  };

  HWY_NOINLINE void visit(QueryTile& tile, const KeyBlock& block, const Wanted& want, const BackwardScratch& scratch,
                          float* d_k, float* d_v) const {
    if (!tile.lanes->sees_block(block.key0, static_cast<std::int64_t>(block.keys))) return;
    const std::size_t keys = score_gradient(tile, block, scratch);
    if (call_.stats && want.d_q) tile.d_scores += score_squares(tile, scratch.d_s, keys);
    if (want.d_v) add_keys(tile, scratch.s, tile.d_o_rows, keys, shape_.dim_v, d_v);
    if (scratch.slope) apply_slope(keys * static_cast<std::size_t>(tile.width()), scratch);
    if (want.d_k) add_keys(tile, scratch.d_s, tile.q_rows, keys, shape_.dim_qk, d_k);
    if (!want.d_q) return;
    switch (tile.width() / kLanes) {
      case 1: add_queries<1>(tile, block, keys, scratch); break;
      case 2: add_queries<2>(tile, block, keys, scratch); break;
      case 3:
        if constexpr (kMr > 2) add_queries<3>(tile, block, keys, scratch);
        break;
      case 4:
        if constexpr (kMr > 3) add_queries<4>(tile, block, keys, scratch);
        break;
    }
  }

  /// Writes dQ = c·Σ dS·k and leaves the tile's part of dL/dc = Σ q·(Σ dS·k), taken before the scale so that c = 0 is
  /// legal.
  HWY_INLINE void finish_queries(std::int64_t b, std::int64_t h, std::int64_t t, const QueryTile& tile,
                                 const BackwardScratch& scratch) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk);
    const Lanes& lanes = *tile.lanes;
    const auto count = static_cast<std::size_t>(lanes.count);
    float* rows = scratch.rows;
    transpose(tile.d_qt, static_cast<std::size_t>(tile.width()), dim, count, rows, dim);
    const std::int64_t index = (b * shape_.heads_q + h) * tiles_per_head() + t;
    if (wants_scale()) workspace_.d_scale[index] = scale_gradient(b, h, t, count, rows);
    if (!call_.grad.d_q.present() && !call_.stats) return;
    const double d_log_scale =
        call_.stats ? query_dot_products(tile, rows) : 0;  // rows still lack c, which q_rows have
    scale_rows(lanes, dim, rows);
    if (call_.stats)
      workspace_.queries[index] = {tile.d_scores, d_log_scale, dot_product(rows, rows, count * dim), 0, 0};
    if (!call_.grad.d_q.present()) return;
    store_tile_rows(call_.grad.d_q, lanes, rows, dim);
  }

  /// Σ over the tile's rows of its scaled queries with rows [count][dim_qk]. Rows of zeros are left out: their queries
  /// may see nothing, and hold anything.
  HWY_INLINE double query_dot_products(const QueryTile& tile, const float* rows) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk), stride = static_cast<std::size_t>(padded(shape_.dim_qk));
    double sum = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(tile.lanes->count); ++r)
      if (const float* row = rows + r * dim; std::any_of(row, row + dim, [](float x) { return x != 0; }))
        sum += dot_product(tile.q_rows + r * stride, row, dim);
    return sum;
  }

  /// A tile's part of the gradients of what c is made of; `rows` is Σ dS·k, [count][dim_qk].
  HWY_INLINE ScaleSums scale_gradient(std::int64_t b, std::int64_t h, std::int64_t t, std::size_t count,
                                      const float* rows) const {
    const auto dim = static_cast<std::size_t>(shape_.dim_qk);
    ScaleSums sums{};
    for (std::size_t r = 0; r < count; ++r) {
      const std::int64_t i = t * kTileRows + static_cast<std::int64_t>(r);
      double d_c = 0;
      for (std::size_t d = 0; d < dim; ++d)
        if (const float sum = rows[r * dim + d]; sum != 0)
          d_c += base::read(call_.in.q, b, h, i, static_cast<std::int64_t>(d)) * static_cast<double>(sum);
      const ScaleRow row =
          problem_.scale.by_row() ? base::visible_keys(problem_.mask, shape_, b, i).scale_row() : ScaleRow{};
      const Scale::Slopes slopes = problem_.scale.slopes(h, shape_.dim_qk, row);
      sums.rule += slopes.rule * d_c;
      sums.log_n_gain += slopes.log_n_gain * d_c;
      sums.log_n_offset += slopes.log_n_offset * d_c;
    }
    return sums;
  }

  HWY_INLINE void write_keys(std::int64_t b, std::int64_t kv_head, std::int64_t key0, std::int64_t keys,
                             const BackwardScratch& scratch) const {
    if (call_.stats)
      for (std::int64_t first = 0; first < keys; first += kKeys) {
        const std::int64_t here = std::min(kKeys, keys - first), k_row = padded(shape_.dim_qk),
                           v_row = padded(shape_.dim_v);
        const float *d_k = scratch.d_k + first * k_row, *d_v = scratch.d_v + first * v_row;
        workspace_.keys[(b * shape_.heads_kv + kv_head) * key_blocks() + (key0 + first) / kKeys] = {
            dot_product(d_k, d_k, static_cast<std::size_t>(here * k_row)),
            dot_product(d_v, d_v, static_cast<std::size_t>(here * v_row))};
      }
    for (std::int64_t k = 0; k < keys; ++k) {
      write_key(call_.grad.d_k, b, kv_head, key0 + k, scratch.d_k + k * padded(shape_.dim_qk));
      write_key(call_.grad.d_v, b, kv_head, key0 + k, scratch.d_v + k * padded(shape_.dim_v));
    }
  }

  HWY_INLINE void write_key(const Tensor& t, std::int64_t b, std::int64_t head, std::int64_t key,
                            const float* row) const {
    if (t.present())
      store_row(t.dtype, t.data, base::offset_of(t, b, head, key, 0), t.strides[3],
                static_cast<std::size_t>(t.shape[3]), row);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
