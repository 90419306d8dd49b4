// What the audit says in a terminal: a map, the heads furthest from right with their words, and what follows from all
// of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/visible.h"
#include "report/audit.h"
#include "report/audit_heads.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"

namespace rootdk::report {

namespace {

using audit::Attention;
using audit::AtContext;
using audit::Head;
using audit::Layer;
using theory::Ground;
using theory::Verdict;

bool several_kinds(const audit::Audit& audit) {
  return std::any_of(audit.layers.begin(), audit.layers.end(),
                     [&](const Layer& l) { return l.attention.kind != audit.layers.front().attention.kind; });
}

const AtContext* at_judged(const audit::Audit& audit, const Head& head) {
  for (const AtContext& at : head.contexts)
    if (at.context == audit.judged_at) return &at;
  return head.contexts.empty() ? nullptr : &head.contexts.back();
}

std::map<Verdict, std::size_t> counted(const audit::Audit& audit) {
  std::map<Verdict, std::size_t> out;
  for (const HeadPlace& place : all_heads(audit)) ++out[place.head->judgement.verdict];
  return out;
}

// What verdicts stand on ------------------------------------------------------------------------------------------

/// What is not finite is so for any input, as if it had been measured.
Ground ground_of(const Head& head) { return head.finite() ? head.judgement.ground : Ground::kMeasured; }

std::map<Ground, std::size_t> grounds_of(const audit::Audit& audit) {
  std::map<Ground, std::size_t> out;
  for (const HeadPlace& place : all_heads(audit))
    if (place.head->finite()) ++out[place.head->judgement.ground];
  return out;
}

const char* in_words(Ground ground) {
  switch (ground) {
    case Ground::kMeasured: return "measured";
    case Ground::kEmbeddings: return "on the embeddings";
    case Ground::kWeights: return "from the weights alone";
  }
  return "";
}

std::string listed_grounds(const std::map<Ground, std::size_t>& grounds) {
  std::vector<std::string> parts;
  for (const auto& [ground, count] : grounds) parts.push_back(fmt::format("{} {}", count, in_words(ground)));
  return listed(parts);
}

std::string how_to_measure(const audit::Audit& audit) {
  if (audit.model.network && audit.model.embedding.known())
    return "A run on tokens (--tokens ids.npy, run=) gives measured ones; --tokens random needs no text and comes near "
           "them.";
  return "Inputs that were recorded (--inputs, inputs=) give measured ones.";
}

std::string ground_text(const audit::Audit& audit) {
  const std::map<Ground, std::size_t> grounds = grounds_of(audit);
  if (grounds.empty()) return "";
  const Ground least = grounds.rbegin()->first;
  if (least == Ground::kMeasured) return "All verdicts here are measured.";
  const std::string holds =
      grounds.size() > 1 ? fmt::format("Verdicts here: {}. Those {} hold", listed_grounds(grounds), in_words(least))
                         : fmt::format("All verdicts here are {}: they hold", in_words(least));
  const char* condition = "if every layer's inputs are like the normalised embeddings";
  if (least == Ground::kWeights)
    condition = "if inputs are isotropic, and queries and keys independent, which in a trained model is not so: "
                "σ is often several times as large";
  return fmt::format("{} {}. {}", holds, condition, how_to_measure(audit));
}

/// "not finite"
std::string in_words(Verdict verdict) {
  std::string name = theory::name_of(verdict);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// The map --------------------------------------------------------------------------------------------------------

char letter_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSoft: return '.';
    case Verdict::kUniform: return '_';
    case Verdict::kSharp: return '+';
    case Verdict::kFrozen: return '#';
    case Verdict::kExploding: return 'X';
    case Verdict::kNotFinite: return '!';
    default: return '?';
  }
}

// Of the 256 a terminal has: blue where all keys get the same, green around a spread of 1, red where one takes all.
int colour_of(const audit::Audit& audit, const Head& head) {
  if (!head.finite()) return 201;
  const AtContext* at = at_judged(audit, head);
  if (at == nullptr) return 240;
  constexpr std::pair<double, int> kSteps[] = {{0.02, 19}, {0.05, 26}, {0.1, 31},  {0.2, 35},
                                               {0.35, 40}, {0.5, 148}, {0.7, 220}, {1, 208}};
  for (const auto& [limit, colour] : kSteps)
    if (at->sigma_over_critical <= limit) return colour;
  return 196;
}

// The map's letters, a few to a line where a terminal is narrow.
std::string legend_of(const Layout& layout) {
  std::string out = " ";
  std::size_t used = display_width(out);
  for (const char* item : {". soft", "_ uniform", "+ sharp", "# frozen", "X exploding", "! not finite"}) {
    const std::string_view gap = used == 1 ? " " : "   ";
    const std::size_t wide = display_width(item);
    if (used + gap.size() + wide > layout.prose) {
      out += "\n  ";
      used = 2;
    } else {
      out += gap;
      used += gap.size();
    }
    out += item;
    used += wide;
  }
  return out + "\n";
}

std::string map_of(const audit::Audit& audit, const AuditText& options) {
  const bool kinds = several_kinds(audit);
  std::size_t label = 0, heads = 0;
  const auto label_of = [&](const Layer& layer) {
    return kinds ? fmt::format("{} {}", base::visible(layer.attention.kind), layer.attention.layer)
                 : fmt::format("{}", layer.attention.layer);
  };
  for (const Layer& layer : audit.layers) {
    label = std::max(label, display_width(label_of(layer)));
    heads = std::max(heads, layer.heads.size());
  }
  label = std::max<std::size_t>(label, 5);
  constexpr std::size_t kMargins = 4, kStep = 8;
  const std::size_t room = options.layout.columns - std::min(options.layout.columns - kStep, label + kMargins);
  const std::size_t cell = heads > 32 || 2 * heads > room ? 1 : 2;
  const std::size_t a_line = heads * cell <= room ? heads : std::max(kStep, room / kStep * kStep);
  const std::string title = heads > 1 ? fmt::format("heads 0 … {}", heads - 1) : "head 0";
  const std::string margin = fmt::format("  {:>{}}  ", "", label);
  std::string out = fmt::format("  {:>{}}  {}", "layer", label, title);
  if (a_line < heads) {
    const std::string note = fmt::format("{} a line", a_line);
    out += display_width(out + ", " + note) <= options.layout.columns ? ", " + note : ",\n" + margin + note;
  }
  out += "\n";
  for (const Layer& layer : audit.layers)
    for (std::size_t first = 0; first < layer.heads.size(); first += a_line) {
      out += first == 0 ? fmt::format("  {:>{}}  ", label_of(layer), label) : margin;
      for (std::size_t h = first; h < std::min(first + a_line, layer.heads.size()); ++h) {
        const Head& head = layer.heads[h];
        const std::string text = std::string(1, letter_of(head.judgement.verdict)) + std::string(cell - 1, ' ');
        out += options.colour ? fmt::format("\x1b[48;5;{}m\x1b[38;5;16m{}\x1b[0m", colour_of(audit, head), text) : text;
      }
      out.erase(out.find_last_not_of(' ') + 1);
      out += "\n";
    }
  return out + legend_of(options.layout);
}

std::string model_text(const audit::Audit& audit, const Layout& layout) {
  const audit::Model& model = audit.model;
  const std::string name = base::visible(model.name);
  if (audit.layers.empty()) return layout.wrap(fmt::format("{}: no attention was found.", name));
  const Attention& a = audit.layers.front().attention;
  std::string text = fmt::format("{}, a {} model: {} of {}", name, base::visible(model.family),
                                 counted_of(audit.layers.size(), "attention layer"),
                                 counted_of(static_cast<std::size_t>(a.heads_q), "head"));
  if (a.heads_kv != a.heads_q) text += fmt::format(" on {} of keys", a.heads_kv);
  text += fmt::format(", d_k {}, scale {} ({}).", a.dim_qk, base::visible(model.scale_rule), number(a.scale, 4));
  if (a.q_norm.kind != theory::Norm::Kind::kNone) text += " With QK-norm.";
  if (a.soft_cap) text += fmt::format(" Soft-capped at {}.", number(*a.soft_cap));
  std::string out = layout.wrap(text);
  for (const std::string& note : model.notes) out += layout.wrap("Note: " + base::visible(note) + ".");
  if (const std::string ground = ground_text(audit); !ground.empty()) out += "\n" + layout.wrap(ground);
  return out;
}

// The table ------------------------------------------------------------------------------------------------------

/// Where σ is known in more than one way, all of them stand side by side.
std::string table_of(const audit::Audit& audit, const std::vector<HeadPlace>& heads, const Layout& layout) {
  using enum Table::Align;
  using enum Table::Place;
  const bool embeddings = any_head(audit, [](const Head& h) { return h.on_embeddings.has_value(); });
  const bool measured = any_head(audit, [](const Head& h) { return h.measured.has_value(); });
  const bool several = embeddings || measured;
  std::vector<Table::Column> columns = {{"head", kLeft, kKey}, {several ? "σ weights" : "σ"}};
  if (embeddings) columns.push_back({"σ embed."});
  if (measured) columns.push_back({"σ meas."});
  columns.insert(columns.end(), {{"unit divisor", kRight, kLater},
                                 {"÷√d_k", kRight, kLater},
                                 {"σ/σ_c"},
                                 {"entropy", kRight, kLater},
                                 {"of", kRight, kWithPrevious},
                                 {"p_max"}});
  if (!several) columns.push_back({"bound", kRight, kLater});
  columns.push_back({"verdict", kLeft});
  Table table(columns);
  for (const HeadPlace& place : heads) {
    const Head& head = *place.head;
    const AtContext* at = at_judged(audit, head);
    std::vector<std::string> cells = {head_name(audit, place), number(head.sigma)};
    if (embeddings) cells.push_back(head.on_embeddings ? number(head.on_embeddings->sigma) : "–");
    if (measured) cells.push_back(head.measured ? number(head.measured->sigma) : "–");
    for (const double x : {head.surest_divisor(), head.surest_ratio()}) cells.push_back(number(x));
    cells.push_back(at != nullptr ? number(at->sigma_over_critical) : "–");
    cells.push_back(at != nullptr ? fixed(at->entropy, 2) : "–");
    cells.push_back(at != nullptr ? fixed(std::log(at->keys), 2) : "–");
    cells.push_back(at != nullptr ? number(at->p_max) : "–");
    if (!several) cells.push_back(number(head.bound));
    cells.emplace_back(theory::name_of(head.judgement.verdict));
    table.add(cells);
  }
  return table.text(layout.columns);
}

bool is_bad(const HeadPlace& place) { return place.head->judgement.verdict > Verdict::kSoft; }

/// The words and the fix of every head that is not soft, among those in the table; of the first if all are.
std::string words_of(const audit::Audit& audit, const std::vector<HeadPlace>& shown, const Layout& layout) {
  std::string out;
  for (std::size_t i = 0; i < shown.size() && (i == 0 || is_bad(shown[i])); ++i) {
    const theory::Judgement& judgement = shown[i].head->judgement;
    out += layout.wrap(fmt::format("{}: {} {}", head_name(audit, shown[i]), judgement.words, judgement.fix)) + "\n";
  }
  return out;
}

}  // namespace

std::vector<HeadPlace> worst_first(const audit::Audit& audit) {
  std::vector<HeadPlace> out = all_heads(audit);
  const auto distance = [](const Head& head) {
    const double x = std::fabs(std::log(head.surest_sigma()));
    return std::isnan(x) ? HUGE_VAL : x;
  };
  std::stable_sort(out.begin(), out.end(), [&](const HeadPlace& a, const HeadPlace& b) {
    if (a.head->judgement.verdict != b.head->judgement.verdict)
      return a.head->judgement.verdict > b.head->judgement.verdict;
    return distance(*a.head) > distance(*b.head);
  });
  return out;
}

std::string head_name(const audit::Audit& audit, const HeadPlace& place) {
  const std::string name = fmt::format("{}.{}", place.layer->attention.layer, place.head->head);
  return several_kinds(audit) ? base::visible(place.layer->attention.kind) + " " + name : name;
}

std::string headline_of(const audit::Audit& audit) {
  const std::vector<HeadPlace> heads = all_heads(audit);
  if (heads.empty()) return "No attention was found";
  const std::map<Verdict, std::size_t> counts = counted(audit);
  const auto count_of = [&](Verdict verdict) { return counts.contains(verdict) ? counts.at(verdict) : 0; };
  const std::string all = counted_of(heads.size(), "head"), keys = fmt::format("at {} keys", whole(audit.judged_at));
  // "are" where it was measured of all of them, else "would be".
  const auto are = [&](Verdict verdict, std::size_t count) {
    const bool fact = std::none_of(heads.begin(), heads.end(), [&](const HeadPlace& place) {
      return place.head->judgement.verdict == verdict && ground_of(*place.head) != Ground::kMeasured;
    });
    return fact ? count == 1 ? "is" : "are" : "would be";
  };
  std::string out;
  for (const Verdict verdict : {Verdict::kNotFinite, Verdict::kExploding, Verdict::kFrozen, Verdict::kUniform}) {
    const std::size_t count = count_of(verdict);
    if (count == 0) continue;
    const std::string number = whole(static_cast<std::int64_t>(count));
    out += out.empty() ? fmt::format("{} of {} {}", number, all, are(verdict, count))
                       : fmt::format(", {} {}", number, are(verdict, count));
    out += " " + in_words(verdict);
  }
  const bool by_keys = count_of(Verdict::kFrozen) + count_of(Verdict::kUniform) > 0;
  if (!out.empty()) return by_keys ? out + " " + keys : out;
  const std::size_t sharp = count_of(Verdict::kSharp);
  const char* is = grounds_of(audit).rbegin()->first == Ground::kMeasured ? "is" : "would be";
  return sharp > 0 ? fmt::format("No head {} frozen {}; {} of {} {} sharp", is, keys,
                                 whole(static_cast<std::int64_t>(sharp)), all, are(Verdict::kSharp, sharp))
                   : fmt::format("No head {} near freezing {}", is, keys);
}

// What was found first, then how far off √d_k is.
std::string conclusion_of(const audit::Audit& audit) {
  std::vector<double> ratios;
  std::int64_t near = 0;
  for (const HeadPlace& place : all_heads(audit)) {
    const double ratio = place.head->surest_ratio();
    if (!std::isfinite(ratio)) continue;
    ratios.push_back(ratio);
    near += ratio > 0.8 && ratio < 1.25;
  }
  if (ratios.empty())
    return any_head(audit, [](const Head& h) { return h.overflows; })
               ? "No head is finite: weights are not, or products of them overflow f32."
               : "No head has finite weights.";
  std::sort(ratios.begin(), ratios.end());
  std::vector<std::string> parts;
  for (const auto& [verdict, count] : counted(audit))
    parts.push_back(whole(static_cast<std::int64_t>(count)) + " " + in_words(verdict));
  std::reverse(parts.begin(), parts.end());
  const std::map<Ground, std::size_t> grounds = grounds_of(audit);
  const Ground least = grounds.empty() ? Ground::kMeasured : grounds.rbegin()->first;
  const char *condition = "", *is = "is";
  if (least == Ground::kWeights) condition = "If inputs were isotropic, ", is = "would be";
  if (least == Ground::kEmbeddings) condition = "If every layer's inputs were like the embeddings, ", is = "would be";
  const std::string only = least == Ground::kMeasured ? "" : in_words(least);
  const std::string on = grounds.size() > 1 ? listed_grounds(grounds) : only;
  return fmt::format(
      "At {} keys{}: {}. {}√d_k {} within a quarter of the divisor that gives unit variance for {} of {}; "
      "that divisor {} {} times √d_k at the median, from {} to {}.",
      whole(audit.judged_at), on.empty() ? "" : " (" + on + ")", listed(parts), condition, is, whole(near),
      counted_of(ratios.size(), "head"), is, number(median_of(ratios)), number(ratios.front()), number(ratios.back()));
}

std::string text_of(const audit::Audit& audit, const AuditText& options) {
  const Layout& layout = options.layout;
  std::string out = model_text(audit, layout);
  if (audit.layers.empty()) return out;
  out += "\n" + map_of(audit, options) + "\n";
  std::vector<HeadPlace> worst = worst_first(audit);
  const auto bad = static_cast<std::size_t>(std::count_if(worst.begin(), worst.end(), is_bad));
  worst.resize(std::min(worst.size(), options.worst));
  if (!worst.empty()) {
    const std::string which = worst.size() == 1 ? "The head" : fmt::format("The {} heads", worst.size());
    out += layout.wrap(fmt::format("{} furthest from right, at {} keys (layer.head):", which, whole(audit.judged_at))) +
           "\n" + table_of(audit, worst, layout) + "\n" + words_of(audit, worst, layout);
    if (bad > worst.size())
      out += layout.wrap(fmt::format("… and {} that {} not soft: --worst {} shows all of them.",
                                     counted_of(bad - worst.size(), "more head"),
                                     bad - worst.size() == 1 ? "is" : "are", bad)) +
             "\n";
  }
  return out + unfinished(audit.complete, layout) + layout.wrap(conclusion_of(audit));
}

std::string heads_that_are(const audit::Audit& audit, const std::vector<Verdict>& verdicts) {
  std::map<std::pair<Verdict, Ground>, std::vector<std::string>> found;
  for (const HeadPlace& place : all_heads(audit))
    for (const Verdict code : place.head->judgement.codes)
      if (std::find(verdicts.begin(), verdicts.end(), code) != verdicts.end())
        found[{code, ground_of(*place.head)}].push_back(head_name(audit, place));
  std::vector<std::string> parts;
  for (auto each = found.rbegin(); each != found.rend(); ++each) {
    const auto& [verdict, ground] = each->first;
    parts.push_back(fmt::format("{} ({}{}): {}", theory::name_of(verdict), counted_of(each->second.size(), "head"),
                                ground == Ground::kMeasured ? "" : fmt::format(", {}", in_words(ground)),
                                fmt::join(each->second, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace rootdk::report
