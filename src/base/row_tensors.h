// The per-row tensors of full statistics: what each is called and where its value comes from.
#pragma once

#include <limits>

#include "base/row_record.h"
#include "rootdk/stats.h"

namespace rootdk::base {

struct FullRowTensor {
  const char* name;
  Tensor RowTensors::*tensor;
  double (*value)(const RowRecord& row, const FullRecord& full);
};

struct BasicRowTensor {
  const char* name;
  Tensor RowTensors::*tensor;
};

inline constexpr BasicRowTensor kBasicRowTensors[] = {{"rows.raw_max", &RowTensors::raw_max},
                                                      {"rows.score_max", &RowTensors::score_max},
                                                      {"rows.p_max", &RowTensors::p_max}};

/// What only rows with a visible key have.
inline double of_keys(const RowRecord& row, double value) {
  return row.visible > 0 ? value : std::numeric_limits<double>::quiet_NaN();
}

inline constexpr FullRowTensor kFullRowTensors[] = {
    {"rows.visible", &RowTensors::visible,
     [](const RowRecord& r, const FullRecord&) { return static_cast<double>(r.visible); }},
    {"rows.entropy", &RowTensors::entropy, [](const RowRecord&, const FullRecord& f) { return f.entropy; }},
    {"rows.sum_p2", &RowTensors::sum_p2, [](const RowRecord&, const FullRecord& f) { return f.sum_p2; }},
    {"rows.sum_p3", &RowTensors::sum_p3, [](const RowRecord&, const FullRecord& f) { return f.sum_p3; }},
    {"rows.sink_mass", &RowTensors::sink_mass, [](const RowRecord&, const FullRecord& f) { return f.sink_mass; }},
    {"rows.raw_mean", &RowTensors::raw_mean,
     [](const RowRecord& r, const FullRecord& f) { return of_keys(r, f.raw.mean); }},
    {"rows.raw_variance", &RowTensors::raw_variance,
     [](const RowRecord& r, const FullRecord& f) { return f.raw.variance(r.visible); }},
    {"rows.raw_min", &RowTensors::raw_min,
     [](const RowRecord& r, const FullRecord& f) { return of_keys(r, f.raw.min); }},
    {"rows.score_mean", &RowTensors::score_mean,
     [](const RowRecord& r, const FullRecord& f) { return of_keys(r, f.score.mean); }},
    {"rows.score_variance", &RowTensors::score_variance,
     [](const RowRecord& r, const FullRecord& f) { return f.score.variance(r.visible); }},
    {"rows.score_min", &RowTensors::score_min,
     [](const RowRecord& r, const FullRecord& f) { return of_keys(r, f.score.min); }},
    {"rows.raw_argmax", &RowTensors::raw_argmax,
     [](const RowRecord&, const FullRecord& f) { return static_cast<double>(f.raw.argmax); }},
    {"rows.score_argmax", &RowTensors::score_argmax,
     [](const RowRecord&, const FullRecord& f) { return static_cast<double>(f.score.argmax); }},
};

}  // namespace rootdk::base
