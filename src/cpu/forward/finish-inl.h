// Epilogue: a tile that has met all its keys is divided by its sum, lets the sink in, and writes O, lse and statistics.
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/call.h"
#include "base/row_state.h"
#include "base/row_tensors.h"
#include "base/softmax_sums.h"
#include "base/visibility.h"
#include "cpu/lanes.h"

#if defined(ROOTDK_CPU_FORWARD_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_FORWARD_FINISH_INL_H_
#undef ROOTDK_CPU_FORWARD_FINISH_INL_H_
#else
#define ROOTDK_CPU_FORWARD_FINISH_INL_H_
#endif

#include "cpu/blocks-inl.h"
#include "cpu/forward/state-inl.h"
#include "cpu/passes-inl.h"
#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

/// x [dim][width] times a factor for each lane.
HWY_INLINE void scale_lanes(const float* factor, std::size_t width, std::size_t dim, float* x) {
  for (std::size_t d = 0; d < dim; ++d)
    for (std::size_t m = 0; m < width; m += kLanes)
      hn::Store(hn::Mul(hn::Load(f32, x + d * width + m), hn::Load(f32, factor + m)), f32, x + d * width + m);
}

HWY_INLINE void write_row_value(const Tensor& t, const Lanes& lanes, int r, float value) {
  if (t.present())
    static_cast<float*>(t.data)[base::offset_of(t, lanes.batch, lanes.head[r], lanes.query[r], 0)] = value;
}

HWY_INLINE base::FullRecord full_record(const Problem& problem, const Passes& passes, const Lanes& lanes,
                                        const TileState& state, int r) {
  const base::RowMoments score = state.score.row(r);
  const float* sink = problem.sink.empty() ? nullptr : &problem.sink[lanes.head[r]];
  return base::full_record(passes.raw_differs() ? state.raw.row(r) : score, score, state.sums(r), sink);
}

/// Divides by the sum, lets the sink in, writes O, lse and statistics.
HWY_INLINE void finish_tile(const base::ForwardCall& call, const Passes& passes, const Lanes& lanes,
                            const TileState& state, float* rows) {
  const Shape& shape = call.plan.shape;
  const Problem& problem = call.plan.problem;
  const Outputs& out = call.out;
  const auto dim = static_cast<std::size_t>(shape.dim_v);
  const int width = width_of(lanes.count);
  alignas(64) float gain[kMaxTileRows] = {};  // what turns Σ e^{s−m}·v into o; also the largest probability
  alignas(64) float lse[kMaxTileRows] = {};
  for (int r = 0; r < lanes.count; ++r) {
    base::RowState<float> row;
    row.max = state.max[r];
    row.sum = state.sum[r];
    base::SinkResult<float> total{row.lse(), 1};
    if (!problem.sink.empty()) total = base::with_sink(total.lse, problem.sink[lanes.head[r]]);
    lse[r] = total.lse;
    gain[r] = row.p_max(total.share);
  }
  const auto found = find_tile_rows(out.o, lanes);
  const Matrix result = found.data && !call.plan.narrow ? Matrix{found.data, found.stride} : Matrix{rows, dim};
  if (call.plan.narrow) {
    for (int r = 0; r < lanes.count; ++r)
      for (std::size_t d = 0; d < dim; ++d)
        rows[static_cast<std::size_t>(r) * dim + d] = state.o[static_cast<std::size_t>(r) * dim + d] * gain[r];
  } else {
    scale_lanes(gain, static_cast<std::size_t>(width), dim, state.o);
    transpose(state.o, static_cast<std::size_t>(width), dim, static_cast<std::size_t>(lanes.count),
              found.data ? found.data : rows, result.stride);
  }
  if (result.data == rows) store_tile_rows(out.o, lanes, rows, dim);

  const base::MaskView mask = base::view_of(problem.mask, shape);
  for (int r = 0; r < lanes.count; ++r) {
    const float raw_max = passes.raw_differs() ? state.raw_max[r] : state.max[r];
    write_row_value(out.lse, lanes, r, lse[r]);
    write_row_value(out.rows.raw_max, lanes, r, raw_max);
    write_row_value(out.rows.score_max, lanes, r, state.max[r]);
    write_row_value(out.rows.p_max, lanes, r, gain[r]);
    if (!call.records) continue;
    const bool finite = (std::isfinite(lse[r]) || lse[r] == base::RowState<float>::kNothing) &&
                        all_finite(Matrix{result.data + static_cast<std::size_t>(r) * result.stride, dim}, 1, dim);
    const std::int32_t visible = !base::is_query(mask, lanes.batch, lanes.query[r]) ? -1
                                 : passes.hides_keys() ? static_cast<std::int32_t>(state.visible[r])
                                                       : lanes.end[r] - lanes.begin[r];
    const std::int64_t index = (lanes.batch * shape.heads_q + lanes.head[r]) * shape.len_q + lanes.query[r];
    const base::RowRecord record = {static_cast<double>(raw_max),
                                    static_cast<double>(state.max[r]),
                                    static_cast<double>(gain[r]),
                                    static_cast<double>(lse[r]),
                                    visible,
                                    finite};
    call.records[index] = record;
    if (!call.full) continue;
    const bool sampled = base::is_sampled(problem.stats_options, lanes.query[r]);
    if (sampled) call.full[index] = full_record(problem, passes, lanes, state, r);
    for (const base::FullRowTensor& t : base::kFullRowTensors)
      if (const Tensor& tensor = out.rows.*t.tensor; tensor.present())
        write_row_value(
            tensor, lanes, r,
            sampled ? static_cast<float>(t.value(record, call.full[index])) : std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
