// A checked problem as kernels see it: plain data, passed by value, with pointers into device memory only.
#pragma once

#include <cstdint>

#include "base/row_record.h"
#include "base/visibility.h"
#include "rootdk/attention.h"

namespace rootdk::cuda {

/// A tensor; an axis of size 1 has stride 0, so that it repeats.
struct View {
  char* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t strides[4] = {};

  View() = default;
  explicit View(const ConstTensor& t) : data(static_cast<char*>(const_cast<void*>(t.data))), dtype(t.dtype) {
    for (int axis = 0; axis < 4; ++axis)
      strides[axis] = t.shape[static_cast<std::size_t>(axis)] == 1 ? 0 : t.strides[static_cast<std::size_t>(axis)];
  }
};

/// Scale, masks and transforms. Arrays lie in the workspace, where the call put them; null means absent.
struct ProblemView : base::MaskView {
  std::int64_t batch = 0, heads_q = 0, heads_kv = 0, group = 1, dim_qk = 0, dim_v = 0;

  const double* factor = nullptr;  ///< [heads_q] rule × YaRN; null where all heads have `factor_of_all`
  double factor_of_all = 1;
  double yarn = 1;                                              ///< the part of `factor` that is YaRN's
  const double *log_n_gain = nullptr, *log_n_offset = nullptr;  ///< [heads_q], for SSMax
  Scale::Length length = Scale::Length::kNone;
  float cap = 0;  ///< 0: off

  View allowed, bias;
  const float *slopes = nullptr, *sink = nullptr;

  bool dropout = false;
  std::uint32_t keep_threshold = 0, seed_low = 0, seed_high = 0;
  const std::uint64_t* seed = nullptr;  ///< in device memory, in place of the two words
  float keep_gain = 1;

  const std::int32_t* pages = nullptr;
  std::int64_t pages_per_item = 0, page_size = 0;

  // Statistics
  std::int64_t sample = 1, sample_offset = 0, first_query = 0;
};

/// Of rows at StatsLevel::kFull, by name; absent ones are not written.
struct FullRowViews {
#define ROOTDK_FULL_ROW(merges, name, value, doc) View name;
#include "rootdk/statistics.def"

  bool any() const {
    return false
#define ROOTDK_FULL_ROW(merges, name, value, doc) || name.data
#include "rootdk/statistics.def"
        ;
  }
};

struct ForwardView {
  ProblemView p;
  View q, k, v, o, lse, raw_max, score_max, p_max;
  FullRowViews full_rows;
  View key_mass;
  base::RowRecord* records = nullptr;
  base::FullRecord* full = nullptr;
  Causes* causes = nullptr;
  std::int64_t* gaps = nullptr;
};

/// What backward adds up of each query row.
struct RowSums {
  double d_c, d_sink, d_scores, d_q;
};

struct BackwardView {
  ProblemView p;
  View q, k, v, o, lse, d_o, d_lse, d_q, d_k, d_v, d_bias;
  std::int64_t bias_shape[4] = {};
  float *d_scale = nullptr, *d_sink = nullptr, *d_log_n_gain = nullptr, *d_log_n_offset = nullptr;
  HeadGradients* stats = nullptr;
  float* delta = nullptr;         ///< [batch, heads_q, len_q]: dO·O − dLSE
  RowSums* rows = nullptr;        ///< the same
  double* key_squares = nullptr;  ///< [2][batch, heads_kv, len_kv]: of dK, of dV
  double* head_sums = nullptr;    ///< [batch, heads_q][4]: by the rule, a, b, the sink
};

}  // namespace rootdk::cuda
