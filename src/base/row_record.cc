// Rows added up by blocks of queries, blocks in order: moments, softmax's means, histograms, counts.
#include "base/row_record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "base/block_record.h"

namespace rootdk::base {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Means = std::array<double, SoftmaxMeans::kCount>;

/// Totals over the rows of one block of queries.
struct BlockTotals {
  Means x = {};
  double rows = 0, raw_m2 = 0, score_m2 = 0, degrees = 0;
};

double logit(double p) {
  p = std::min(1.0, p);  // it may be rounded up
  return std::log(p / (1 - p));
}

void add(BlockSums& sums, double x, double n) {
  sums.xx += x * x;
  sums.xn += x * n;
  sums.nn += n * n;
}

/// Gathers rows, in ascending order of their queries.
class HeadReducer {
 public:
  /// `full` is null where full statistics are not wanted, or not of this row.
  void observe(std::int64_t query, const RowRecord& row, const FullRecord* full) {
    enter_block(query / kSampleBlock, full != nullptr);
    const bool sampled = full != nullptr;
#define ROOTDK_ROW_COUNT(level, name, when, doc) head_.name += when;
#include "rootdk/statistics.def"
    if (!row.finite) return;
    observe_max(head_.raw, row.raw_max, row, query, full ? full->raw.argmax : -1);
    observe_max(head_.score, row.score_max, row, query, full ? full->score.argmax : -1);
    if (full && row.visible > 0) {
      observe(head_.raw, row, full->raw);
      observe(head_.score, row, full->score);
      block_.raw_m2 += full->raw.m2;
      block_.score_m2 += full->score.m2;
      block_.degrees += row.visible - 1;
    }
    if (row.visible < 2) return;
#define ROOTDK_MEAN(name, value, doc) head_.name += value;
#include "rootdk/statistics.def"
    if (full) observe(row, *full);
  }

  /// Rows of a block that was not sampled, all at once.
  void observe(std::int64_t first_query, const BlockRecord& block) {
    enter_block(first_query / kSampleBlock, false);
#define ROOTDK_COUNT_basic(name) head_.name += block.name;
#define ROOTDK_COUNT_full(name)
#define ROOTDK_ROW_COUNT(level, name, when, doc) ROOTDK_COUNT_##level(name)
#define ROOTDK_MEAN(name, value, doc) head_.name += block.name;
#include "rootdk/statistics.def"
#undef ROOTDK_COUNT_basic
#undef ROOTDK_COUNT_full
    for (const auto& [spread, max] : {std::pair{&head_.raw, block.raw_max}, {&head_.score, block.score_max}})
      if (max > spread->max) spread->max = max, spread->max_query = spread->max_key = -1;
  }

  HeadStats finish(bool full) {
    leave_block();
    const auto counted = static_cast<double>(head_.rows_counted), sampled = static_cast<double>(head_.rows_sampled);
    head_.raw_max = static_cast<float>(head_.raw.max);
    head_.score_max = static_cast<float>(head_.score.max);
#define ROOTDK_MEAN(name, value, doc) head_.name = counted > 0 ? head_.name / counted : kNan;
#include "rootdk/statistics.def"
    for (std::size_t i = 0; i < means_.size(); ++i)
      head_.softmax.*SoftmaxMeans::all()[i] = sampled > 0 ? means_[i] / sampled : kNan;
    for (Spread* spread : {&head_.raw, &head_.score}) {
      if (spread->pairs == 0) spread->mean = spread->min = kNan;
      if (!full || spread->max == -kInfinity) spread->max = kNan, spread->max_query = spread->max_key = -1;
    }
    if (!full) head_.blocks = {};
    return std::move(head_);
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  void enter_block(std::int64_t block, bool seen) {
    if (block == block_number_) return;
    leave_block();
    block_number_ = block;
    block_seen_ = seen;
  }

  void leave_block() {
    if (block_number_ < 0) return;
    auto& blocks = head_.blocks;
    blocks.all += 1;
    if (block_seen_) {
      blocks.seen += 1;
      for (std::size_t i = 0; i < means_.size(); ++i) {
        add(blocks.means[i], block_.x[i], block_.rows);
        means_[i] += block_.x[i];
      }
      add(blocks.raw_within_row_variance, block_.raw_m2, block_.degrees);
      add(blocks.score_within_row_variance, block_.score_m2, block_.degrees);
    }
    block_ = {};
  }

  /// Maxima are exact whatever is sampled.
  static void observe_max(Spread& spread, double max, const RowRecord& row, std::int64_t query, std::int32_t argmax) {
    if (row.visible > 0 && max > spread.max)
      spread.max = max, spread.max_query = argmax < 0 ? -1 : query, spread.max_key = argmax;
  }

  static void observe(Spread& spread, const RowRecord& row, const RowMoments& moments) {
    const auto n = static_cast<double>(row.visible), before = static_cast<double>(spread.pairs), total = before + n;
    const double delta = moments.mean - spread.mean;  // Chan's update
    spread.mean += delta * n / total;
    spread.m2 += moments.m2 + delta * delta * before * n / total;
    spread.within_m2 += moments.m2;
    spread.within_degrees += row.visible - 1;
    spread.min = spread.pairs == 0 ? moments.min : std::min(spread.min, moments.min);
    spread.pairs += row.visible;
  }

  void observe(const RowRecord& row, const FullRecord& full) {
    SoftmaxStats& stats = head_.softmax;
    if (row.visible != visible_) visible_ = row.visible, log_visible_ = std::log(static_cast<double>(visible_));
    const double log_visible = log_visible_;
    SoftmaxMeans means;
#define ROOTDK_SOFTMAX_MEAN(name, value, doc) means.name = value;
#include "rootdk/statistics.def"
    for (std::size_t i = 0; i < means_.size(); ++i) block_.x[i] += means.*SoftmaxMeans::all()[i];
    block_.rows += 1;

#define ROOTDK_SOFTMAX_COUNT(name, when, doc) stats.rows_##name += when;
#define ROOTDK_HISTOGRAM(name, low, high, value, of, back, doc) stats.name.add(value);
#include "rootdk/statistics.def"
  }

  static HeadStats nothing() {
    HeadStats head;
    for (Spread* spread : {&head.raw, &head.score}) spread->mean = 0, spread->max = -kInfinity;
    return head;
  }

  HeadStats head_ = nothing();  // its means are sums until it is finished
  Means means_ = {};
  BlockTotals block_;
  std::int64_t block_number_ = -1;
  bool block_seen_ = false;
  std::int32_t visible_ = 0;
  double log_visible_ = 0;
};

std::int64_t bucket_of(std::int32_t visible) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint32_t>(visible)));
}

}  // namespace

HeadStats reduce_rows(std::span<const RowRecord> rows, std::span<const FullRecord> full, const StatsOptions& options) {
  HeadReducer whole;
  std::map<std::int64_t, HeadReducer> buckets;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].visible < 0) continue;
    const auto query = static_cast<std::int64_t>(i);
    const FullRecord* record = !full.empty() && is_sampled(options, query) ? &full[i] : nullptr;
    whole.observe(options.first_query + query, rows[i], record);
    if (options.by_keys) buckets[bucket_of(rows[i].visible)].observe(options.first_query + query, rows[i], record);
  }
  HeadStats head = whole.finish(!full.empty());
  for (auto& [from, reducer] : buckets) head.by_keys.push_back({from, reducer.finish(!full.empty())});
  return head;
}

HeadStats reduce_blocks(std::span<const BlockRecord> blocks, std::span<const RowRecord> rows,
                        std::span<const FullRecord> full, const StatsOptions& options) {
  HeadReducer whole;
  const auto len_q = static_cast<std::int64_t>(rows.size());
  std::size_t block = 0;
  for (std::int64_t i = 0, end = 0; i < len_q; i = end, ++block) {
    end = block_end(options, i, len_q);
    if (full.empty() || !is_sampled(options, i)) {
      if (blocks[block].row_count > 0) whole.observe(options.first_query + i, blocks[block]);  // else all are padding
      continue;
    }
    for (std::int64_t row = i; row < end; ++row)
      if (rows[static_cast<std::size_t>(row)].visible >= 0)
        whole.observe(options.first_query + row, rows[static_cast<std::size_t>(row)],
                      &full[static_cast<std::size_t>(row)]);
  }
  return whole.finish(!full.empty());
}

}  // namespace rootdk::base
