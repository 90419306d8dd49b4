// `rootdk attend`: statistics of each head as JSON and tables, and one sentence over all rows.
#include <fmt/format.h>

#include <cmath>

#include "base/head_columns.h"
#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

constexpr std::size_t kMostHeads = 32;  // of a table in the terminal

/// Every column of a head that its level has, by name.
Json json_of(const HeadStats& head, StatsLevel level) {
  Json out = Json::object();
  for (const auto& column : base::kHeadColumns<std::int64_t>) {
    if (column.level > level) continue;
    const double value = column.value(head);
    out[column.name] = column.whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  return out;
}

const char* name_of_level(StatsLevel level) {
  switch (level) {
    case StatsLevel::kNone: return "none";
    case StatsLevel::kBasic: return "basic";
    case StatsLevel::kFull: return "full";
  }
  return "unknown";
}

}  // namespace

Json json_of(const Attended& a) {
  const Shape& s = a.shape;
  Json out{{"experiment", "attend"},
           {"batch", s.batch},
           {"heads_q", s.heads_q},
           {"heads_kv", s.heads_kv},
           {"len_q", s.len_q},
           {"len_kv", s.len_kv},
           {"dk", s.dim_qk},
           {"dim_v", s.dim_v},
           {"dtype", name_of(s.dtype)},
           {"rule", a.rule},
           {"causal", a.causal},
           {"kernel", a.kernel},
           {"isa", a.isa},
           {"stats", name_of_level(a.stats.level)}};
  out["heads"] = Json::array();
  for (std::int64_t b = 0; b < a.stats.batch && a.stats.level != StatsLevel::kNone; ++b)
    for (std::int64_t h = 0; h < a.stats.heads; ++h) {
      Json one{{"batch", b}, {"head", h}};
      one.update(json_of(a.stats.at(b, h), a.stats.level));
      out["heads"].push_back(std::move(one));
    }
  out["conclusion"] = conclusion_of(a);
  return out;
}

std::string conclusion_of(const Attended& a) {
  if (a.stats.level == StatsLevel::kNone) return "No statistics were asked for.";
  std::int64_t counted = 0, bad = 0, masked = 0;
  double largest = -INFINITY, p_max = 0;
  for (const HeadStats& head : a.stats.per_head) {
    counted += head.rows_counted, bad += head.rows_not_finite, masked += head.rows_masked;
    largest = std::max(largest, static_cast<double>(head.score_max));
    if (head.rows_counted > 0) p_max += head.mean_p_max * static_cast<double>(head.rows_counted);
  }
  std::string out = counted == 0 ? "No row has two finite scores to compare"
                                 : fmt::format("Over {} the largest weight is {} on average and the largest score {}",
                                               counted_of(static_cast<std::size_t>(counted), "row"),
                                               fixed(p_max / static_cast<double>(counted), 3), number(largest));
  if (masked > 0) out += fmt::format("; rows that see no key: {}", whole(masked));
  out += bad > 0
             ? fmt::format(
                   "; rows that are not finite: {}; look for NaN or Inf in q, k or v, and for scores that overflow {}",
                   whole(bad), name_of(a.shape.dtype))
             : "; every row is finite";
  return out + ".";
}

std::string text_of(const Attended& a, const Layout& layout) {
  const Shape& s = a.shape;
  std::string out = layout.wrap(
      fmt::format("{} on {}, {} queries × {} keys, d_k = {}, dim_v = {}, batch {}, {}{}; rule {}; kernel {} {}",
                  counted_of(static_cast<std::size_t>(s.heads_q), "query head"),
                  counted_of(static_cast<std::size_t>(s.heads_kv), "key head"), whole(s.len_q), whole(s.len_kv),
                  s.dim_qk, s.dim_v, s.batch, name_of(s.dtype), a.causal ? ", causal" : "", a.rule, a.kernel, a.isa));
  if (a.stats.level != StatsLevel::kNone) {
    using enum Table::Align;
    using enum Table::Place;
    const bool full = a.stats.level == StatsLevel::kFull;
    std::vector<Table::Column> columns = {
        {"batch", kRight, kKey}, {"head", kRight, kKey}, {"largest"}, {"p_max"}, {"lse"}};
    if (full) columns.insert(columns.end(), {{"spread"}, {"H"}, {"eff. keys"}, {"tr J"}, {"p_max>.99"}});
    Table table(columns);
    for (std::size_t i = 0; i < std::min(a.stats.per_head.size(), kMostHeads); ++i) {
      const HeadStats& head = a.stats.per_head[i];
      std::vector<std::string> cells = {fmt::format("{}", static_cast<std::int64_t>(i) / a.stats.heads),
                                        fmt::format("{}", static_cast<std::int64_t>(i) % a.stats.heads),
                                        number(static_cast<double>(head.score_max)), fixed(head.mean_p_max, 3),
                                        number(head.mean_lse)};
      if (full)
        for (const std::string& cell :
             {number(std::sqrt(head.score.within_row_variance())), fixed(head.softmax.entropy, 2),
              number(head.softmax.effective_keys), fixed(head.softmax.trace_j, 3),
              percent(base::head_values::share_p_max_over_99pct(head))})
          cells.push_back(cell);
      table.add(cells);
    }
    out += "\n" + table.text(layout.columns);
    if (a.stats.per_head.size() > kMostHeads)
      out += layout.wrap(fmt::format("… and {} more; --json has them all", a.stats.per_head.size() - kMostHeads), "  ");
  }
  return out + "\n" + layout.wrap(conclusion_of(a));
}

}  // namespace rootdk::report
