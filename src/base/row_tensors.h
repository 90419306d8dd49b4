// The per-row tensors of full statistics: what each is called and where its value comes from.
#pragma once

#include <cstdint>
#include <limits>

#include "base/row_record.h"
#include "rootdk/stats.h"

namespace rootdk::base {

struct FullRowTensor {
  const char* name;
  Tensor RowTensors::*tensor;
  bool recorded;  ///< merging reads it back into the record
  double (*value)(const RowRecord& row, const FullRecord& full);
};

struct BasicRowTensor {
  const char* name;
  Tensor RowTensors::*tensor;
};

inline constexpr BasicRowTensor kBasicRowTensors[] = {
#define ROOTDK_BASIC_ROW(name, doc) {"rows." #name, &RowTensors::name},
#include "rootdk/statistics.def"
};

// What the formulas of rows are written with.

/// What only rows with a visible key have.
inline double of_keys(std::int32_t visible, double x) {
  return visible > 0 ? x : std::numeric_limits<double>::quiet_NaN();
}
inline double variance(std::int32_t visible, double m2) { return visible > 1 ? m2 / (visible - 1) : 0; }

/// Of the table.
namespace words {
inline constexpr bool recorded = true, derived = false;
}

inline constexpr FullRowTensor kFullRowTensors[] = {
#define ROOTDK_FULL_ROW(merges, name, formula, doc)                    \
  {"rows." #name, &RowTensors::name, words::merges,                    \
   [](const RowRecord& row, [[maybe_unused]] const FullRecord& full) { \
     [[maybe_unused]] const std::int32_t visible = row.visible;        \
     return static_cast<double>(formula);                              \
   }},
#include "rootdk/statistics.def"
};

}  // namespace rootdk::base
