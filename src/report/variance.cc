// `rootdk variance`: measured variance with its interval by distribution and d_k, and the terms of the square.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"
#include "rootdk/theory/dot_product.h"

namespace rootdk::report {

namespace {

bool contains(const lab::VarianceRow& row, double value) { return row.low <= value && value <= row.high; }

constexpr double kNearlyOne = 1.1;  // of a variance that should be 1: a twentieth of its root

std::string intervals_text(lab::IntervalFrom from) {
  return from == lab::IntervalFrom::kKnownMoments
             ? "Intervals are 95 %: ±1.96·√(κ₄/N + 2κ₂²/(N−1)) with the cumulants κ of q·k, which are known because "
               "the "
               "components' "
               "moments are. (Measured fourth moments would do for all but student_t5, whose products have no eighth.)"
             : "Intervals are 95 %: ±1.96·√(κ₄/N + 2κ₂²/(N−1)) with the cumulants κ as measured, since components are "
               "correlated.";
}

std::string terms_text(const lab::Variance& v, const Layout& layout) {
  if (v.terms.empty()) return {};
  std::string out = "\n" + layout.wrap(fmt::format("(q₁k₁ + q₂k₂ + q₃k₃)² has nine terms; their means over {} pairs:",
                                                   whole(v.options.pairs)));
  Table table({{"", Table::Align::kLeft, Table::Place::kKey}, {"q₁k₁"}, {"q₂k₂"}, {"q₃k₃"}});
  const char* names[] = {"q₁k₁", "q₂k₂", "q₃k₃"};
  double sum = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<std::string> cells = {names[i]};
    for (std::size_t j = 0; j < 3; ++j) {
      const lab::SquareTerm& term = v.terms[3 * i + j];
      cells.push_back(fmt::format("{:.4f} ±{:.4f}", term.mean, 2 * term.standard_error));
      sum += term.mean;
    }
    table.add(cells);
  }
  out += table.text(layout.columns);
  const theory::SquareTerms at64 = theory::square_terms(64);
  return out + layout.wrap(fmt::format("expected {:g} on the diagonal and {:g} beside it; the nine add up to {}. At "
                                       "d_k = 64 there are {} terms, {} on "
                                       "the diagonal and {} beside it.",
                                       v.terms[0].expected, v.terms[1].expected, fixed(sum, 3), whole(at64.all),
                                       whole(at64.diagonal), whole(at64.off_diagonal)),
                           "  ");
}

/// The same counts under each rule: dividing q·k moves the edges and nothing else.
Json histograms_json(const lab::Variance& v) {
  Json out = Json::array();
  for (const lab::ProductHistogram& h : v.histograms)
    for (const Scale& rule : {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()}) {
      const double factor = rule.factor(0, h.dk), steps = static_cast<double>(h.counts.size());
      Json edges = Json::array();
      for (std::size_t i = 0; i <= h.counts.size(); ++i)
        edges.push_back(factor * (h.low + (h.high - h.low) * static_cast<double>(i) / steps));
      out.push_back({{"rule", rule.name()},
                     {"dk", h.dk},
                     {"edges", edges},
                     {"counts", h.counts},
                     {"below", h.below},
                     {"above", h.above}});
    }
  return out;
}

}  // namespace

Json json_of(const lab::Variance& v) {
  const lab::VarianceOptions& o = v.options;
  Json out{{"experiment", "variance"},
           {"seed", o.seed},
           {"pairs", o.pairs},
           {"sigma_q", o.sigma_q},
           {"sigma_k", o.sigma_k},
           {"mean", o.mean},
           {"correlation", o.correlation},
           {"interval", v.intervals == lab::IntervalFrom::kKnownMoments ? "known moments" : "measured moments"}};
  out["rows"] = Json::array();
  for (const lab::VarianceRow& row : v.rows)
    out["rows"].push_back({{"distribution", lab::name_of(row.component)},
                           {"dk", row.dk},
                           {"mean", row.mean},
                           {"mean_ci95", {row.mean_low, row.mean_high}},
                           {"mean_expected", row.mean_expected},
                           {"variance", row.variance},
                           {"ci95", {row.low, row.high}},
                           {"expected", row.expected},
                           {"variance_over_sqrt_dk", row.after_sqrt_dk},
                           {"variance_over_dk", row.after_dk}});
  out["square_terms"] = Json::array();
  for (const lab::SquareTerm& term : v.terms)
    out["square_terms"].push_back({{"i", term.i},
                                   {"j", term.j},
                                   {"mean", term.mean},
                                   {"standard_error", term.standard_error},
                                   {"expected", term.expected}});
  out["histograms"] = histograms_json(v);
  out["division"] = {{"numbers", v.divided.numbers},
                     {"divisor", v.divided.divisor},
                     {"variance", v.divided.variance},
                     {"variance_divided", v.divided.variance_divided},
                     {"ratio", v.divided.variance / v.divided.variance_divided}};
  if (!v.walks.sums.empty()) out["walks"] = {{"terms", v.walks.terms}, {"sums", v.walks.sums}};
  out["complete"] = v.complete;
  out["conclusion"] = conclusion_of(v);
  return out;
}

std::string conclusion_of(const lab::Variance& v) {
  if (v.rows.empty()) return "Nothing was finished.";
  std::size_t inside = 0, inside_dk = 0;
  double furthest = 0;
  bool is_dk = true;
  for (const lab::VarianceRow& row : v.rows) {
    const auto dk = static_cast<double>(row.dk);
    inside += contains(row, row.expected);
    inside_dk += contains(row, dk);
    furthest = std::max(furthest, std::fabs(row.after_sqrt_dk - 1));
    is_dk = is_dk && row.expected == dk;
  }
  const lab::VarianceRow& last =
      *std::max_element(v.rows.begin(), v.rows.end(), [](const auto& a, const auto& b) { return a.dk < b.dk; });
  if (is_dk)
    return fmt::format("{}: {} of {} intervals contain it (19 in 20 should). Dividing q·k by √d_k leaves a variance "
                       "within {} of 1 at every "
                       "size and distribution here.",
                       5 * inside >= 4 * v.rows.size() ? "Var(q·k) = d_k" : "Var(q·k) = d_k does not hold here", inside,
                       v.rows.size(), percent(furthest));
  const double ratio = last.variance / static_cast<double>(last.dk);
  return fmt::format("√d_k {} here: at d_k = {} the variance is {}, {} d_k, and unit variance takes a divisor of {} "
                     "(√d_k is {}). {} of {} "
                     "intervals contain what the general formula says (19 in 20 should), {} contain d_k.",
                     ratio > kNearlyOne       ? "is too small a divisor"
                     : ratio < 1 / kNearlyOne ? "is too large a divisor"
                                              : "is about right",
                     last.dk, number(last.variance, 4), number(ratio, 3) + " times",
                     number(std::sqrt(last.variance), 3), number(std::sqrt(static_cast<double>(last.dk)), 3), inside,
                     v.rows.size(), inside_dk);
}

std::string text_of(const lab::Variance& v, const Layout& layout) {
  const lab::VarianceOptions& o = v.options;
  const Detail detail = layout.detail;
  std::string out = layout.wrap(fmt::format(
      "The variance of q·k over {} pairs of random vectors; components of q have standard deviation {:g}, of k {:g}, "
      "mean {:g}, correlation {:g}.",
      whole(o.pairs), o.sigma_q, o.sigma_k, o.mean, o.correlation));
  out += "\n";
  Table table({{"components", Table::Align::kLeft, Table::Place::kKey},
               {"d_k", Table::Align::kRight, Table::Place::kKey},
               {"mean"},
               {"variance"},
               {"95 % interval"},
               {"expected"},
               {"/√d_k"},
               {"/d_k"}});
  for (std::size_t i = 0; i < v.rows.size(); ++i) {
    const lab::VarianceRow& row = v.rows[i];
    const bool first = i == 0 || v.rows[i - 1].component != row.component;
    const bool last = i + 1 == v.rows.size() || v.rows[i + 1].component != row.component;
    if (detail == Detail::kShort && row.component != v.rows.front().component && !last)
      continue;  // one row for all but the first kind
    if (detail == Detail::kAll && first && i > 0) table.gap();
    table.add(
        {first || detail == Detail::kShort ? std::string(lab::name_of(row.component)) : "", fmt::format("{}", row.dk),
         fmt::format("{:.3f}", row.mean), number(row.variance, 5),
         fmt::format("{} – {}", number(row.low, 4), number(row.high, 4)) + (contains(row, row.expected) ? "" : " !"),
         number(row.expected, 5), fixed(row.after_sqrt_dk, 3), number(row.after_dk, 3)});
  }
  out += table.text(layout.columns) + "\n";
  if (detail == Detail::kAll) out += layout.wrap(intervals_text(v.intervals));
  out += layout.wrap("A ! marks an interval that misses; the last columns are the variance after dividing.");
  out += terms_text(v, layout);
  out += "\n" + layout.wrap(fmt::format(
                    "Dividing by c divides the variance by c²: [2, 4, 6] has {}, over {:g} it has {}, {:g} times less.",
                    fixed(v.divided.variance, 2), v.divided.divisor, fixed(v.divided.variance_divided, 2),
                    v.divided.variance / v.divided.variance_divided));
  return out + unfinished(v.complete, layout) + "\n" + layout.wrap(conclusion_of(v));
}

}  // namespace rootdk::report
