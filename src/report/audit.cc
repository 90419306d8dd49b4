#include "report/audit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

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
using theory::Verdict;

// A head and where it is.
struct HeadPlace {
  const Layer* layer;
  const Head* head;
};

std::vector<HeadPlace> all_heads(const audit::Audit& audit) {
  std::vector<HeadPlace> out;
  for (const Layer& layer : audit.layers)
    for (const Head& head : layer.heads) out.push_back({&layer, &head});
  return out;
}

bool several_kinds(const audit::Audit& audit) {
  return std::any_of(audit.layers.begin(), audit.layers.end(), [&](const Layer& l) { return l.attention.kind != audit.layers.front().attention.kind; });
}

const AtContext* at_judged(const audit::Audit& audit, const Head& head) {
  for (const AtContext& at : head.contexts)
    if (at.context == audit.judged_at) return &at;
  return head.contexts.empty() ? nullptr : &head.contexts.back();
}

// The most serious first; of the same verdict, those furthest from a spread of 1.
std::vector<HeadPlace> worst_first(const audit::Audit& audit) {
  std::vector<HeadPlace> out = all_heads(audit);
  const auto distance = [](const Head& head) {
    const double x = std::fabs(std::log(head.surest_sigma()));
    return std::isnan(x) ? HUGE_VAL : x;
  };
  std::stable_sort(out.begin(), out.end(), [&](const HeadPlace& a, const HeadPlace& b) {
    if (a.head->judgement.verdict != b.head->judgement.verdict) return a.head->judgement.verdict > b.head->judgement.verdict;
    return distance(*a.head) > distance(*b.head);
  });
  return out;
}

std::map<Verdict, std::size_t> counted(const audit::Audit& audit) {
  std::map<Verdict, std::size_t> out;
  for (const HeadPlace& place : all_heads(audit)) ++out[place.head->judgement.verdict];
  return out;
}

// The map -----------------------------------------------------------------------------------------------------------------

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
  if (head.not_finite > 0) return 201;
  const AtContext* at = at_judged(audit, head);
  if (at == nullptr) return 240;
  constexpr std::pair<double, int> kSteps[] = {{0.02, 19}, {0.05, 26}, {0.1, 31}, {0.2, 35}, {0.35, 40}, {0.5, 148}, {0.7, 220}, {1, 208}};
  for (const auto& [limit, colour] : kSteps)
    if (at->sigma_over_critical <= limit) return colour;
  return 196;
}

std::string map_of(const audit::Audit& audit, bool colour) {
  const bool kinds = several_kinds(audit);
  std::size_t label = 0, heads = 0;
  const auto label_of = [&](const Layer& layer) {
    return kinds ? fmt::format("{} {}", layer.attention.kind, layer.attention.layer) : fmt::format("{}", layer.attention.layer);
  };
  for (const Layer& layer : audit.layers) {
    label = std::max(label, label_of(layer).size());
    heads = std::max(heads, layer.heads.size());
  }
  label = std::max<std::size_t>(label, 5);
  const std::size_t cell = heads > 32 ? 1 : 2;
  std::string out = fmt::format("  {:>{}}  heads 0 … {}\n", "layer", label, heads - 1);
  for (const Layer& layer : audit.layers) {
    out += fmt::format("  {:>{}}  ", label_of(layer), label);
    for (const Head& head : layer.heads) {
      const std::string text = std::string(1, letter_of(head.judgement.verdict)) + std::string(cell - 1, ' ');
      out += colour ? fmt::format("\x1b[48;5;{}m\x1b[38;5;16m{}\x1b[0m", colour_of(audit, head), text) : text;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out + "  . soft   _ uniform   + sharp   # frozen   X exploding   ! not finite\n";
}

std::string head_name(const audit::Audit& audit, const HeadPlace& place) {
  const std::string name = fmt::format("{}.{}", place.layer->attention.layer, place.head->head);
  return several_kinds(audit) ? place.layer->attention.kind + " " + name : name;
}

std::string model_text(const audit::Audit& audit) {
  const audit::Model& model = audit.model;
  if (audit.layers.empty()) return wrap(fmt::format("{}: no attention was found.", model.name));
  const Attention& a = audit.layers.front().attention;
  std::string text = fmt::format("{}, a {} model: {} attention layers of {} heads", model.name, model.family, audit.layers.size(), a.heads_q);
  if (a.heads_kv != a.heads_q) text += fmt::format(" on {} of keys", a.heads_kv);
  text += fmt::format(", d_k {}, scale {} ({}).", a.dim_qk, model.scale_rule, number(a.scale, 4));
  if (a.q_norm.kind != theory::Norm::Kind::kNone) text += " With QK-norm.";
  if (a.soft_cap) text += fmt::format(" Soft-capped at {}.", number(*a.soft_cap));
  const std::vector<HeadPlace> heads = all_heads(audit);
  const bool measured = std::any_of(heads.begin(), heads.end(), [](const HeadPlace& p) { return p.head->measured.has_value(); });
  text += measured ? " σ is that of the activations that were given."
                   : " Inputs are taken as isotropic, queries and keys as independent: real tokens are neither.";
  std::string out = wrap(text);
  for (const std::string& note : model.notes) out += wrap("Note: " + note + ".");
  return out;
}

Json finite(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json head_json(const Head& head) {
  Json out;
  out["head"] = head.head;
  out["kv_head"] = head.kv_head;
  out["d_k"] = head.d_k;
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"variance", head.variance}, {"variance_in_context", head.variance_in_context}, {"mean", head.mean}, {"scale", head.scale},
           {"sigma", head.sigma}, {"unit_divisor", head.unit_divisor}, {"ratio", head.ratio}, {"bound", head.bound},
           {"f16_headroom", head.f16_headroom}, {"bf16_rounding", head.bf16_rounding}, {"sigma_q", head.sigma_q}, {"sigma_k", head.sigma_k},
           {"key_mean_norm", head.key_mean_norm}, {"alignment", head.alignment}, {"largest_singular_value", head.largest_singular_value},
           {"effective_rank", head.effective_rank}})
    out[name] = finite(value);
  out["not_finite"] = head.not_finite;
  for (const char* name : {"keys", "sigma_over_critical", "entropy", "effective_keys", "p_max", "verdicts"}) out[name] = Json::object();
  for (const AtContext& at : head.contexts) {
    const std::string key = std::to_string(at.context);
    out["keys"][key] = finite(at.keys);
    out["sigma_over_critical"][key] = finite(at.sigma_over_critical);
    out["entropy"][key] = finite(at.entropy);
    out["effective_keys"][key] = finite(at.effective_keys);
    out["p_max"][key] = finite(at.p_max);
    out["verdicts"][key] = theory::name_of(at.verdict);
  }
  out["verdict"] = theory::name_of(head.judgement.verdict);
  out["words"] = head.judgement.words;
  out["fix"] = head.judgement.fix;
  if (!head.curve.empty()) {
    Json curve = Json::array();
    for (const theory::AtDistance& at : head.curve) curve.push_back({{"distance", at.distance}, {"mean", finite(at.mean)}, {"variance", finite(at.variance)}});
    out["curve"] = std::move(curve);
  }
  if (!head.spectrum.empty()) out["spectrum"] = head.spectrum;
  out["ground"] = theory::name_of(head.judgement.ground);
  if (head.on_embeddings) out["embeddings"] = {{"sigma", head.on_embeddings->sigma}, {"variance", head.on_embeddings->variance}};
  if (head.measured) {
    const audit::Measured& m = *head.measured;
    out["measured"] = {{"variance", finite(m.variance)}, {"sigma", finite(m.sigma)}, {"unit_divisor", finite(m.unit_divisor)}, {"ratio", finite(m.ratio)},
                       {"sigma_over_isotropic", finite(m.sigma_over_isotropic)}, {"largest_score", finite(m.largest_score)},
                       {"largest_raw", finite(m.largest_raw)}, {"clip_factor", finite(m.clip_factor)}};
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
             {"score_sigma", m.score_sigma}, {"keys", m.keys}, {"entropy", m.entropy}, {"effective_keys", m.effective_keys},
             {"p_max", m.p_max}, {"trace_j", m.trace_j}})
      out["measured"][name] = finite(value);
  }
  return out;
}

}  // namespace

Json json_of(const audit::Audit& audit) {
  Json out;
  out["model"] = audit.model.name;
  out["family"] = audit.model.family;
  out["scale_rule"] = audit.model.scale_rule;
  out["contexts"] = audit.contexts;
  out["judged_at"] = audit.judged_at;
  out["notes"] = audit.model.notes;
  out["complete"] = audit.complete;
  if (audit.ran) out["run"] = {{"sequences", audit.ran->sequences}, {"length", audit.ran->length}};
  out["layers"] = Json::array();
  for (const Layer& layer : audit.layers) {
    const Attention& a = layer.attention;
    Json one = {{"layer", a.layer}, {"attention", a.kind}, {"heads_q", a.heads_q}, {"heads_kv", a.heads_kv}, {"scale", finite(a.scale)},
                {"rotary_pairs", a.rotary.frequencies.size()}, {"qk_norm", a.q_norm.kind != theory::Norm::Kind::kNone},
                {"soft_cap", a.soft_cap ? Json(*a.soft_cap) : Json(nullptr)}, {"window", a.window ? Json(*a.window) : Json(nullptr)}};
    one["heads"] = Json::array();
    for (const Head& head : layer.heads) one["heads"].push_back(head_json(head));
    out["layers"].push_back(std::move(one));
  }
  return out;
}

std::string conclusion_of(const audit::Audit& audit) {
  std::vector<double> ratios;
  std::size_t near = 0;
  for (const HeadPlace& place : all_heads(audit)) {
    const double ratio = place.head->surest_ratio();
    if (!std::isfinite(ratio)) continue;
    ratios.push_back(ratio);
    near += ratio > 0.8 && ratio < 1.25;
  }
  if (ratios.empty()) return "No head has finite weights.";
  std::sort(ratios.begin(), ratios.end());
  std::vector<std::string> parts;
  for (const auto& [verdict, count] : counted(audit)) parts.push_back(fmt::format("{} {}", count, theory::name_of(verdict)));
  std::reverse(parts.begin(), parts.end());
  return fmt::format("√d_k is within a quarter of the divisor that gives unit variance for {} of {} heads; that divisor is {} times √d_k in the middle, from {} to {}. "
                     "At {} keys: {}.",
                     near, ratios.size(), number(ratios[ratios.size() / 2]), number(ratios.front()), number(ratios.back()), whole(audit.judged_at), listed(parts));
}

std::string text_of(const audit::Audit& audit, const AuditText& options) {
  std::string out = model_text(audit);
  if (audit.layers.empty()) return out;
  out += "\n" + map_of(audit, options.colour) + "\n";
  Table table({{"head", Table::Align::kLeft}, {"σ"}, {"unit divisor"}, {"÷√d_k"}, {"σ/σ_c"}, {"entropy"}, {"of"}, {"p_max"}, {"bound"}, {"verdict", Table::Align::kLeft}});
  std::vector<HeadPlace> worst = worst_first(audit);
  worst.resize(std::min(worst.size(), options.worst));
  for (const HeadPlace& place : worst) {
    const Head& head = *place.head;
    const AtContext* at = at_judged(audit, head);
    table.add({head_name(audit, place), number(head.surest_sigma()), number(head.surest_divisor()),
               number(head.surest_ratio()), at != nullptr ? number(at->sigma_over_critical) : "–",
               at != nullptr ? fixed(at->entropy, 2) : "–", at != nullptr ? fixed(std::log(at->keys), 2) : "–", at != nullptr ? number(at->p_max) : "–",
               number(head.bound), theory::name_of(head.judgement.verdict)});
  }
  if (!worst.empty()) {
    out += fmt::format("The {} furthest from right, at {} keys (layer.head):\n\n", worst.size(), whole(audit.judged_at)) + table.text() + "\n";
    const theory::Judgement& judgement = worst.front().head->judgement;
    out += wrap(fmt::format("{}: {} {}", head_name(audit, worst.front()), judgement.words, judgement.fix)) + "\n";
  }
  return out + unfinished(audit.complete) + wrap(conclusion_of(audit));
}

std::string csv_of(const audit::Audit& audit) {
  std::string out = "attention,layer,head,kv_head,d_k,scale,variance,variance_in_context,mean,sigma,unit_divisor,ratio,bound,f16_headroom,bf16_rounding,sigma_q,"
                    "sigma_k,key_mean_norm,alignment,largest_singular_value,effective_rank,not_finite,verdict";
  for (const std::int64_t n : audit.contexts) out += fmt::format(",sigma_over_critical_{0},entropy_{0},effective_keys_{0},p_max_{0}", n);
  const bool measured = std::any_of(audit.layers.begin(), audit.layers.end(), [](const Layer& l) {
    return std::any_of(l.heads.begin(), l.heads.end(), [](const Head& h) { return h.measured.has_value(); });
  });
  if (measured) out += ",measured_sigma,measured_unit_divisor,measured_largest_raw,clip_factor";
  if (measured && audit.ran) out += ",measured_score_sigma,measured_keys,measured_entropy,measured_effective_keys,measured_p_max,measured_trace_j";
  out += "\n";
  const auto put = [&](double x) { out += std::isfinite(x) ? fmt::format(",{}", x) : ","; };
  for (const HeadPlace& place : all_heads(audit)) {
    const Head& h = *place.head;
    out += fmt::format("{},{},{},{},{}", place.layer->attention.kind, place.layer->attention.layer, h.head, h.kv_head, h.d_k);
    for (const double x : {h.scale, h.variance, h.variance_in_context, h.mean, h.sigma, h.unit_divisor, h.ratio, h.bound, h.f16_headroom, h.bf16_rounding, h.sigma_q, h.sigma_k,
                           h.key_mean_norm, h.alignment, h.largest_singular_value, h.effective_rank})
      put(x);
    out += fmt::format(",{},{}", h.not_finite, theory::name_of(h.judgement.verdict));
    for (std::size_t i = 0; i < audit.contexts.size(); ++i) {
      const AtContext at = i < h.contexts.size() ? h.contexts[i] : AtContext{0, NAN, NAN, NAN, NAN, NAN, Verdict::kUnknown};
      for (const double x : {at.sigma_over_critical, at.entropy, at.effective_keys, at.p_max}) put(x);
    }
    if (measured) {
      const audit::Measured m = h.measured.value_or(audit::Measured{{NAN, NAN, NAN, NAN, NAN}, NAN, NAN, NAN});
      for (const double x : {m.sigma, m.unit_divisor, m.largest_raw, m.clip_factor}) put(x);
      if (audit.ran)
        for (const double x : {m.score_sigma, m.keys, m.entropy, m.effective_keys, m.p_max, m.trace_j}) put(x);
    }
    out += "\n";
  }
  return out;
}

// Two checkpoints -----------------------------------------------------------------------------------------------------------

Json json_of(const std::vector<audit::HeadDrift>& drift) {
  Json out = Json::array();
  for (const audit::HeadDrift& d : drift)
    out.push_back({{"attention", d.kind}, {"layer", d.layer}, {"head", d.head}, {"sigma_before", finite(d.sigma_before)}, {"sigma_after", finite(d.sigma_after)},
                   {"growth", finite(d.growth)}, {"verdict_before", theory::name_of(d.verdict_before)}, {"verdict_after", theory::name_of(d.verdict_after)}});
  return out;
}

std::string text_of(const std::vector<audit::HeadDrift>& drift, std::size_t worst) {
  const bool kinds = std::any_of(drift.begin(), drift.end(), [&](const audit::HeadDrift& d) { return d.kind != drift.front().kind; });
  Table table({{"head", Table::Align::kLeft}, {"σ before"}, {"σ after"}, {"growth"}, {"verdict before", Table::Align::kLeft}, {"after", Table::Align::kLeft}});
  std::vector<double> growths;
  for (const audit::HeadDrift& d : drift)
    if (std::isfinite(d.growth)) growths.push_back(d.growth);
  for (std::size_t i = 0; i < (worst == 0 ? drift.size() : std::min(worst, drift.size())); ++i) {
    const audit::HeadDrift& d = drift[i];
    table.add({(kinds ? d.kind + " " : "") + fmt::format("{}.{}", d.layer, d.head), number(d.sigma_before), number(d.sigma_after), number(d.growth),
               theory::name_of(d.verdict_before), theory::name_of(d.verdict_after)});
  }
  std::string out = "What moved most since the earlier checkpoint (layer.head):\n\n" + table.text() + "\n";
  if (growths.empty()) return out;
  std::sort(growths.begin(), growths.end());
  return out + wrap(fmt::format("σ has become {} times what it was in the middle, from {} to {}.", number(growths[growths.size() / 2]), number(growths.front()), number(growths.back())));
}

// QK-clip --------------------------------------------------------------------------------------------------------------------

Json json_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out) {
  Json json = {{"threshold", clip.threshold}, {"dry_run", clip.dry_run}, {"out", clip.dry_run ? Json(nullptr) : Json(out)}};
  json["heads"] = Json::array();
  for (const audit::ClippedHead& h : clipped.heads)
    json["heads"].push_back({{"attention", h.observed.kind}, {"layer", h.observed.layer}, {"head", h.observed.head}, {"largest_raw", h.observed.largest_raw},
                             {"gamma", h.gamma}, {"on_queries", h.on_queries}, {"on_keys", h.on_keys}});
  json["tensors"] = clipped.tensors;
  return json;
}

std::string text_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out) {
  if (clipped.heads.empty())
    return wrap(fmt::format("No head's largest score passed {}; {}.", number(clip.threshold), clip.dry_run ? "nothing would change" : "the copy in " + out + " has the same weights"));
  Table table({{"layer.head", Table::Align::kLeft}, {"largest score"}, {"γ"}, {"queries ×"}, {"keys ×"}});
  for (const audit::ClippedHead& h : clipped.heads)
    table.add({fmt::format("{}{}.{}", h.observed.kind == "self" ? "" : h.observed.kind + " ", h.observed.layer, h.observed.head), number(h.observed.largest_raw), number(h.gamma, 4),
               number(h.on_queries, 4), number(h.on_keys, 4)});
  return table.text() + "\n" +
         wrap(fmt::format("{} heads in {} tensors {}: the same inputs now give at most {}.", clipped.heads.size(), clipped.tensors.size(),
                          clip.dry_run ? "would be shrunk" : "were shrunk, in " + out, number(clip.threshold)));
}

}  // namespace rootdk::report
