// `rootdk plan`: a row for each way of sharing attention out over ranks, beside what others have measured.
#include <fmt/format.h>

#include <algorithm>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

/// Parallel efficiencies that others report of their own measurements.
struct Published {
  const char *who, *what;
  double low, high;
};
constexpr Published kPublished[] = {
    {"Meta's context parallel (arXiv 2411.01783)", "128 H100, prefill of 1M tokens of Llama 3 405B, forward only", 0.93,
     0.93},
    {"ring-flash-attention (its README)", "8 H800, zigzag, from forward alone to forward with backward", 0.85, 0.90}};

std::string scaled(double x, std::string_view unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  while (x >= 1000 && i + 1 < std::size(kPrefixes)) x /= 1000, ++i;
  return fmt::format("{} {}{}", number(x), kPrefixes[i], unit);
}

std::string time_text(double seconds) {
  return seconds >= 1      ? number(seconds) + " s"
         : seconds >= 1e-3 ? number(seconds * 1e3) + " ms"
                           : number(seconds * 1e6) + " µs";
}

std::int64_t most(const std::vector<std::int64_t>& x) { return *std::max_element(x.begin(), x.end()); }
double most(const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }

Json json_of(const distributed::PassCost& pass) {
  std::int64_t all = 0;
  for (const std::int64_t sent : pass.sent) all += sent;
  return {{"seconds", pass.seconds},   {"bytes_sent_by_a_rank", most(pass.sent)}, {"bytes_sent", all},
          {"messages", pass.messages}, {"flops_of_a_rank", most(pass.flops)},     {"memory_bytes", pass.memory}};
}

const distributed::Cost& chosen(const RankPlan& plan) {
  return plan.choice.costs[static_cast<std::size_t>(plan.choice.way)];
}

std::string published_text(const Published& p) {
  return fmt::format("{}, {}: {}", p.who, p.what,
                     p.low == p.high ? percent(p.low) : fmt::format("{:g} to {}", 100 * p.low, percent(p.high)));
}

}  // namespace

Json json_of(const RankPlan& plan) {
  const Shape& s = plan.shape;
  const distributed::Cluster& m = plan.cluster;
  Json out{{"experiment", "plan"},  {"ranks", plan.ranks},    {"tokens", s.len_q}, {"batch", s.batch},
           {"heads", s.heads_q},    {"kv_heads", s.heads_kv}, {"dim", s.dim_qk},   {"dtype", name_of(s.dtype)},
           {"causal", plan.causal}, {"layout", plan.layout}};
  out["cluster"] = {{"flops", m.flops},
                    {"ranks_per_node", m.ranks_per_node},
                    {"link", m.link_between},
                    {"latency", m.latency_between},
                    {"link_inside", m.link},
                    {"latency_inside", m.latency},
                    {"memory", m.memory ? Json(*m.memory) : Json(nullptr)}};
  out["ways"] = Json::array();
  for (const distributed::Cost& cost : plan.choice.costs) {
    Json one{{"way", distributed::name_of(cost.way)}};
    if (!cost.refused.empty()) {
      one["refused"] = cost.refused;
    } else {
      one["seconds"] = cost.seconds();
      one["efficiency"] = cost.efficiency;
      one["memory_bytes"] = cost.memory();
      one["forward"] = json_of(cost.forward);
      one["backward"] = json_of(cost.backward);
    }
    out["ways"].push_back(std::move(one));
  }
  out["way"] = distributed::name_of(plan.choice.way);
  out["why"] = plan.choice.why;
  out["published"] = Json::array();
  for (const Published& p : kPublished)
    out["published"].push_back({{"who", p.who}, {"what", p.what}, {"efficiency", {p.low, p.high}}});
  out["conclusion"] = conclusion_of(plan);
  return out;
}

std::string conclusion_of(const RankPlan& plan) {
  const distributed::Cost& best = chosen(plan);
  return fmt::format("{} is {}: {} forward and backward, {} of what {} could do, with {} of memory on top on each.",
                     distributed::name_of(best.way), plan.choice.why, time_text(best.seconds()),
                     percent(best.efficiency), counted_of(static_cast<std::size_t>(plan.ranks), "rank"),
                     scaled(static_cast<double>(best.memory()), "B"));
}

std::string text_of(const RankPlan& plan, const Layout& layout) {
  const Shape& s = plan.shape;
  const distributed::Cluster& m = plan.cluster;
  std::string out = layout.wrap(fmt::format(
      "{} tokens{} over {} ({}), batch {}, {} on {}, d = {}, {}: what attention costs, by a model of kernels "
      "of {} and links of {} between nodes and {} inside those of {}. Bytes are exact.",
      whole(s.len_q), plan.causal ? ", causal," : "", counted_of(static_cast<std::size_t>(plan.ranks), "rank"),
      plan.layout, s.batch, counted_of(static_cast<std::size_t>(s.heads_q), "head"),
      counted_of(static_cast<std::size_t>(s.heads_kv), "key head"), s.dim_qk, name_of(s.dtype),
      scaled(m.flops, "FLOP/s"), scaled(m.link_between, "B/s"), scaled(m.link, "B/s"), m.ranks_per_node));
  out += "\n";
  Table table({{"way", Table::Align::kLeft, Table::Place::kKey},
               {"forward"},
               {"sent", Table::Align::kRight, Table::Place::kWithPrevious},
               {"memory", Table::Align::kRight, Table::Place::kWithPrevious},
               {"backward"},
               {"sent", Table::Align::kRight, Table::Place::kWithPrevious},
               {"memory", Table::Align::kRight, Table::Place::kWithPrevious},
               {"of ideal"}});
  std::string refused;
  for (const distributed::Cost& cost : plan.choice.costs) {
    const std::string name = distributed::name_of(cost.way);
    if (!cost.refused.empty()) {
      refused += layout.wrap(fmt::format("{}: {}", name, cost.refused), "  ");
      continue;
    }
    const auto bytes = [](std::int64_t count) { return scaled(static_cast<double>(count), "B"); };
    table.add({name + (cost.way == plan.choice.way ? " *" : ""), time_text(cost.forward.seconds),
               bytes(most(cost.forward.sent)), bytes(cost.forward.memory), time_text(cost.backward.seconds),
               bytes(most(cost.backward.sent)), bytes(cost.backward.memory), percent(cost.efficiency)});
  }
  out += table.text(layout.columns) + refused;
  out += layout.wrap(
      "sent: by the rank that sends most; memory: of the rank that takes most, beside inputs, outputs and the kernel's "
      "workspace; of ideal: the time that all flops at once on all ranks take, over forward and backward",
      "  ");
  std::vector<std::string> others;
  for (const Published& p : kPublished) others.push_back(published_text(p));
  out += "\n" + layout.wrap("Published, measured by others on their own problems: " + listed(others) + ".");
  return out + "\n" + layout.wrap(conclusion_of(plan));
}

}  // namespace rootdk::report
