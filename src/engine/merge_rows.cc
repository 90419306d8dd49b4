// Row statistics of attention over part of the keys, merged, and what they say of each head.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "base/memory_errors.h"
#include "base/row_tensors.h"
#include "base/validate.h"
#include "rootdk/attention.h"

namespace rootdk {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct Row {
  base::RowRecord record;
  base::FullRecord full;
};

Row read_row(const RowTensors& t, const ConstTensor& lse_tensor, std::int64_t b, std::int64_t h, std::int64_t i) {
  const auto at = [&](const ConstTensor& tensor) { return base::read(tensor, b, h, i, 0); };
  const double lse = at(lse_tensor), p_max = at(t.p_max), visible = at(t.visible);
  const auto keys = visible > 0   ? static_cast<std::int32_t>(std::min(visible, 0x1p30))
                    : visible < 0 ? -1
                                  : 0;  // NaN: not sampled
  const auto moments = [&](const Tensor& mean, const Tensor& variance, const Tensor& min, const Tensor& argmax) {
    const double place = at(argmax);
    return base::RowMoments{keys > 0 ? at(mean) : 0, keys > 1 ? at(variance) * (keys - 1) : 0,
                            keys > 0 ? at(min) : std::numeric_limits<double>::infinity(),
                            place >= 0 && place < 0x1p30 ? static_cast<std::int32_t>(place) : -1};
  };
  Row row;
  row.record = {at(t.raw_max), at(t.score_max),
                p_max,         lse,
                keys,          (std::isfinite(lse) || lse == kNothing) && std::isfinite(p_max)};
  row.full.raw = moments(t.raw_mean, t.raw_variance, t.raw_min, t.raw_argmax);
  row.full.score = moments(t.score_mean, t.score_variance, t.score_min, t.score_argmax);
#define ROOTDK_ROW_NUMBER(name, merged) row.full.name = at(t.name);
#include "rootdk/statistics.def"
  return row;
}

// `later_max`: b's maximum is larger, or the only one.
base::RowMoments merged(const base::RowMoments& a, std::int32_t keys_a, const base::RowMoments& b, std::int32_t keys_b,
                        bool later_max) {
  if (keys_a <= 0 || keys_b <= 0) return keys_a <= 0 ? b : a;
  const double n = keys_a, m = keys_b, delta = b.mean - a.mean;
  return {a.mean + delta * m / (n + m), a.m2 + b.m2 + delta * delta * n * m / (n + m), std::min(a.min, b.min),
          later_max ? b.argmax : a.argmax};
}

Row merged(const Row& x, const Row& y) {
  const double high = std::max(x.record.lse, y.record.lse);
  const double lse =
      high == kNothing ? kNothing : high + std::log(std::exp(x.record.lse - high) + std::exp(y.record.lse - high));
  const auto share = [lse](const Row& row) { return row.record.lse == kNothing ? 0 : std::exp(row.record.lse - lse); };
  const double w = share(x), v = share(y);
  Row out;
  out.record = {std::max(x.record.raw_max, y.record.raw_max),
                std::max(x.record.score_max, y.record.score_max),
                std::max(w * x.record.p_max, v * y.record.p_max),
                lse,
                std::max(x.record.visible + y.record.visible, -1),  // padding is padding in both
                x.record.finite && y.record.finite};
  out.full.raw =
      merged(x.full.raw, x.record.visible, y.full.raw, y.record.visible, y.record.raw_max > x.record.raw_max);
  out.full.score =
      merged(x.full.score, x.record.visible, y.full.score, y.record.visible, y.record.score_max > x.record.score_max);
#define ROOTDK_ROW_NUMBER(name, formula)           \
  {                                                \
    const double a = x.full.name, b = y.full.name; \
    out.full.name = formula;                       \
  }
#include "rootdk/statistics.def"
  return out;
}

void write_row(const RowTensors& t, std::int64_t b, std::int64_t h, std::int64_t i, const Row& row) {
  base::write(t.raw_max, b, h, i, 0, row.record.raw_max);
  base::write(t.score_max, b, h, i, 0, row.record.score_max);
  base::write(t.p_max, b, h, i, 0, row.record.p_max);
  for (const base::FullRowTensor& tensor : base::kFullRowTensors)
    if ((t.*tensor.tensor).present()) base::write(t.*tensor.tensor, b, h, i, 0, tensor.value(row.record, row.full));
}

}  // namespace

void merge(const Outputs& into, const Outputs& other, std::int64_t other_first_key) {
  base::check_merge(into.o, into.lse, other.o, other.lse);
  base::check_merge_rows(into, other);
  const Extents& shape = into.lse.shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i) {
        Row later = read_row(other.rows, other.lse, b, h, i);
        for (base::RowMoments* moments : {&later.full.raw, &later.full.score})
          if (moments->argmax >= 0) moments->argmax += static_cast<std::int32_t>(other_first_key);
        write_row(into.rows, b, h, i, merged(read_row(into.rows, into.lse, b, h, i), later));
      }
  merge(into.o, into.lse, other.o, other.lse);
}

Stats stats_of_rows(const RowTensors& rows, const ConstTensor& lse, const StatsOptions& options) {
  return base::with_memory_errors([&] {
    base::check_rows(rows, lse, "");
    base::check_stats_options(options);
    Stats stats{StatsLevel::kFull, lse.shape[0], lse.shape[1], {}};
    std::vector<base::RowRecord> records(static_cast<std::size_t>(lse.shape[2]));
    std::vector<base::FullRecord> full(records.size());
    for (std::int64_t b = 0; b < lse.shape[0]; ++b)
      for (std::int64_t h = 0; h < lse.shape[1]; ++h) {
        for (std::size_t i = 0; i < records.size(); ++i) {
          const Row row = read_row(rows, lse, b, h, static_cast<std::int64_t>(i));
          records[i] = row.record, full[i] = row.full;
        }
        stats.per_head.push_back(base::reduce_rows(records, full, options));
      }
    return stats;
  });
}

}  // namespace rootdk
