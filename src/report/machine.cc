// What the command says of the machine: its health, and how fast attention is on it.
#include <fmt/format.h>

#include <algorithm>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

Json json_of(const lab::Health& h) {
  Json out{{"experiment", "doctor"},
           {"rootdk", h.version},
           {"compiler", h.compiler},
           {"libraries", h.libraries},
           {"processor", h.processor},
           {"memory_bytes", h.memory_bytes},
           {"free_memory_bytes", h.free.bytes},
           {"cores", h.cores},
           {"threads", h.threads},
           {"isas", h.isas},
           {"plan", h.plan}};
  out["checks"] = Json::array();
  for (const lab::KernelCheck& c : h.checks)
    out["checks"].push_back({{"kernel", c.kernel},
                             {"isa", c.isa},
                             {"dtype", c.dtype},
                             {"error", c.error},
                             {"allowed", c.allowed},
                             {"passed", c.passed()}});
  out["healthy"] = h.healthy();
  out["conclusion"] = conclusion_of(h);
  return out;
}

std::string conclusion_of(const lab::Health& h) {
  const auto failed =
      std::count_if(h.checks.begin(), h.checks.end(), [](const lab::KernelCheck& c) { return !c.passed(); });
  if (failed > 0)
    return fmt::format("{} of {} checks failed: do not trust this build on this machine.", failed, h.checks.size());
  return fmt::format("All {} checks passed: every kernel that can run here agrees with the double reference.",
                     h.checks.size());
}

std::string text_of(const lab::Health& h, const Layout& layout) {
  std::string out;
  const auto line = [&](std::string_view what, const std::string& text) { out += layout.hanging(what, 12, text); };
  line("rootdk", fmt::format("{}, built with {}", h.version, h.compiler));
  line("libraries", listed(h.libraries));
  line("processor", h.processor);
  line("threads",
       fmt::format("{} a call; {} for this process", h.threads, counted_of(static_cast<std::size_t>(h.cores), "core")));
  if (h.memory_bytes > 0)
    line("memory", fmt::format("{:.1f} GiB, {:.1f} of them free{}", static_cast<double>(h.memory_bytes) / 0x1p30,
                               static_cast<double>(std::min(h.free.bytes, h.memory_bytes)) / 0x1p30,
                               h.free.limit.empty() ? "" : fmt::format(" ({})", h.free.limit)));
  line("SIMD", fmt::format("{} (best first)", listed(h.isas)));
  out += "\nA usual problem:\n";
  for (std::string_view plan = h.plan; !plan.empty();) {
    const std::size_t end = std::min(plan.find('\n'), plan.size());
    if (end > 0) out += layout.wrap(plan.substr(0, end), "  ");
    plan.remove_prefix(std::min(end + 1, plan.size()));
  }
  Table table({{"kernel", Table::Align::kLeft, Table::Place::kKey},
               {"SIMD", Table::Align::kLeft, Table::Place::kKey},
               {"dtype", Table::Align::kLeft, Table::Place::kKey},
               {"error", Table::Align::kRight, Table::Place::kLater},
               {"allowed", Table::Align::kRight, Table::Place::kLater},
               {""}});
  for (const lab::KernelCheck& c : h.checks)
    table.add({c.kernel, c.isa, c.dtype, number(c.error, 2), number(c.allowed, 2), c.passed() ? "ok" : "FAILED"});
  return out + "\n" + table.text(layout.columns) + "\n" + layout.wrap(conclusion_of(h));
}

Json json_of(const lab::Timing& t) {
  Json out{{"experiment", "bench"}, {"threads", t.threads}, {"isa", t.isa}, {"peak_gflops", t.peak_gflops}};
  out["rows"] = Json::array();
  for (const lab::TimingRow& r : t.rows)
    out["rows"].push_back({{"heads", r.shape.heads},
                           {"length", r.shape.len},
                           {"dim", r.shape.dim},
                           {"causal", r.shape.causal},
                           {"milliseconds", r.milliseconds},
                           {"spread", r.spread},
                           {"gflops", r.gflops},
                           {"of_peak", r.of_peak}});
  out["complete"] = t.complete;
  out["conclusion"] = conclusion_of(t);
  return out;
}

std::string conclusion_of(const lab::Timing& t) {
  if (t.rows.empty()) return "Nothing was finished.";
  const auto [least, most] = std::minmax_element(t.rows.begin(), t.rows.end(),
                                                 [](const auto& a, const auto& b) { return a.of_peak < b.of_peak; });
  const std::string low = fixed(least->of_peak, 2), high = fixed(most->of_peak, 2);
  if (most->of_peak > 1)
    return fmt::format(
        "Other work disturbed the timing: forward came to {} of the multiply-adds that {} did beside it, more than can "
        "be. On a machine that is free this says how near to its peak it is.",
        high, counted_of(static_cast<std::size_t>(t.threads), "thread"));
  return fmt::format(
      "Forward reaches {} of the {} GFLOP/s of multiply-adds that {} here can do. In a checkout, ./run bench "
      "compares with PyTorch and others.",
      low == high ? low : low + " to " + high, number(t.peak_gflops),
      counted_of(static_cast<std::size_t>(t.threads), "thread"));
}

std::string text_of(const lab::Timing& t, const Layout& layout) {
  std::string out = layout.wrap(fmt::format("Forward in f32 on {}, {}; medians of rounds in turn with the peak",
                                            counted_of(static_cast<std::size_t>(t.threads), "thread"), t.isa)) +
                    "\n";
  Table table({{"heads", Table::Align::kRight, Table::Place::kKey},
               {"length", Table::Align::kRight, Table::Place::kKey},
               {"dim", Table::Align::kRight, Table::Place::kKey},
               {"mask", Table::Align::kLeft, Table::Place::kKey},
               {"ms"},
               {"spread"},
               {"GFLOP/s"},
               {"of peak"}});
  for (const lab::TimingRow& r : t.rows)
    table.add({fmt::format("{}", r.shape.heads), whole(r.shape.len), fmt::format("{}", r.shape.dim),
               r.shape.causal ? "causal" : "", number(r.milliseconds), percent(r.spread), number(r.gflops),
               fixed(r.of_peak, 2)});
  return out + table.text(layout.columns) + unfinished(t.complete, layout) + "\n" + layout.wrap(conclusion_of(t));
}

}  // namespace rootdk::report
