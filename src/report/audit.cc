// The audit as JSON and as a table of commas; and what is said of two checkpoints, and of QK-clip.
#include "report/audit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/visible.h"
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
using theory::Verdict;

Json finite(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json on_inputs_json(const audit::OnInputs& on) {
  return {{"variance", finite(on.variance)},
          {"sigma", finite(on.sigma)},
          {"unit_divisor", finite(on.unit_divisor)},
          {"ratio", finite(on.ratio)},
          {"sigma_over_isotropic", finite(on.sigma_over_isotropic)}};
}

Json head_json(const Head& head) {
  Json out;
  out["head"] = head.head;
  out["kv_head"] = head.kv_head;
  out["d_k"] = head.d_k;
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, double>>{{"variance", head.variance},
                                                             {"variance_in_context", head.variance_in_context},
                                                             {"mean", head.mean},
                                                             {"scale", head.scale},
                                                             {"sigma", head.sigma},
                                                             {"unit_divisor", head.unit_divisor},
                                                             {"ratio", head.ratio},
                                                             {"bound", head.bound},
                                                             {"f16_headroom", head.f16_headroom},
                                                             {"bf16_rounding", head.bf16_rounding},
                                                             {"sigma_q", head.sigma_q},
                                                             {"sigma_k", head.sigma_k},
                                                             {"key_mean_norm", head.key_mean_norm},
                                                             {"alignment", head.alignment},
                                                             {"largest_singular_value", head.largest_singular_value},
                                                             {"effective_rank", head.effective_rank}})
    out[name] = finite(value);
  out["not_finite"] = head.not_finite;
  out["overflows"] = head.overflows;
  for (const char* name : {"keys", "sigma_over_critical", "entropy", "participation", "p_max", "verdicts"})
    out[name] = Json::object();
  for (const AtContext& at : head.contexts) {
    const std::string key = std::to_string(at.context);
    out["keys"][key] = finite(at.keys);
    out["sigma_over_critical"][key] = finite(at.sigma_over_critical);
    out["entropy"][key] = finite(at.entropy);
    out["participation"][key] = finite(at.participation);
    out["p_max"][key] = finite(at.p_max);
    out["verdicts"][key] = theory::name_of(at.verdict);
  }
  out["verdict"] = theory::name_of(head.judgement.verdict);
  out["ground"] = theory::name_of(head.judgement.ground);
  out["words"] = head.judgement.words;
  out["fix"] = head.judgement.fix;
  if (!head.curve.empty()) {
    Json curve = Json::array();
    for (const theory::AtDistance& at : head.curve)
      curve.push_back({{"distance", at.distance}, {"mean", finite(at.mean)}, {"variance", finite(at.variance)}});
    out["curve"] = std::move(curve);
  }
  if (!head.spectrum.empty()) out["spectrum"] = head.spectrum;
  if (head.on_embeddings) out["embeddings"] = on_inputs_json(*head.on_embeddings);
  if (head.measured) {
    const audit::Measured& m = *head.measured;
    out["measured"] = on_inputs_json(m);
    out["measured"].update({{"largest_score", finite(m.largest_score)},
                            {"largest_raw", finite(m.largest_raw)},
                            {"clip_factor", finite(m.clip_factor)}});
    for (const auto& [name, value] :
         std::initializer_list<std::pair<const char*, double>>{{"score_sigma", m.score_sigma},
                                                               {"keys", m.keys},
                                                               {"entropy", m.entropy},
                                                               {"participation", m.participation},
                                                               {"p_max", m.p_max},
                                                               {"trace_j", m.trace_j}})
      out["measured"][name] = finite(value);
  }
  return out;
}

}  // namespace

// As head_json writes them: texts count as so many numbers.
JsonSize json_size(const audit::Model& model, const audit::Options& options) {
  constexpr double kOwn = 24, kTexts = 12, kOfContext = 6, kOfDistance = 3, kOnInputs = 5, kMeasured = 14,
                   kMostContexts = 5;
  const double contexts = options.contexts.empty() ? kMostContexts : static_cast<double>(options.contexts.size());
  JsonSize size;
  for (const Attention& a : model.layers) {
    double named = kOwn + kTexts + kOfContext * contexts + kOnInputs;
    if (!a.rotary.frequencies.empty())
      named += kOfDistance * (2 + std::log2(static_cast<double>(std::max<std::int64_t>(a.context, 1))));
    if (options.run || !options.inputs.empty()) named += kMeasured;
    size.named += static_cast<double>(a.heads_q) * named;
    if (options.spectra) size.listed += static_cast<double>(a.heads_q) * static_cast<double>(a.dim_qk);
  }
  return size;
}

Json json_of(const audit::Audit& audit) {
  Json out{{"experiment", "audit"}};
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
    Json one = {{"layer", a.layer},
                {"attention", a.kind},
                {"heads_q", a.heads_q},
                {"heads_kv", a.heads_kv},
                {"scale", finite(a.scale)},
                {"rotary_pairs", a.rotary.frequencies.size()},
                {"qk_norm", a.q_norm.kind != theory::Norm::Kind::kNone},
                {"soft_cap", a.soft_cap ? Json(*a.soft_cap) : Json(nullptr)},
                {"window", a.window ? Json(*a.window) : Json(nullptr)}};
    one["heads"] = Json::array();
    for (const Head& head : layer.heads) one["heads"].push_back(head_json(head));
    out["layers"].push_back(std::move(one));
  }
  out["headline"] = headline_of(audit);
  out["conclusion"] = conclusion_of(audit);
  return out;
}

std::string csv_of(const audit::Audit& audit) {
  std::string out = "attention,layer,head,kv_head,d_k,scale,variance,variance_in_context,mean,sigma,unit_divisor,ratio,"
                    "bound,f16_headroom,bf16_rounding,sigma_q,"
                    "sigma_k,key_mean_norm,alignment,largest_singular_value,effective_rank,"
                    "not_finite,verdict,ground,embeddings_sigma";
  for (const std::int64_t n : audit.contexts)
    out += fmt::format(",sigma_over_critical_{0},entropy_{0},participation_{0},p_max_{0}", n);
  const bool measured = std::any_of(audit.layers.begin(), audit.layers.end(), [](const Layer& l) {
    return std::any_of(l.heads.begin(), l.heads.end(), [](const Head& h) { return h.measured.has_value(); });
  });
  if (measured) out += ",measured_sigma,measured_unit_divisor,measured_largest_raw,clip_factor";
  if (measured && audit.ran)
    out +=
        ",measured_score_sigma,measured_keys,measured_entropy,measured_participation,measured_p_max,measured_trace_j";
  out += "\n";
  const auto put = [&](double x) { out += std::isfinite(x) ? fmt::format(",{}", x) : ","; };
  for (const HeadPlace& place : all_heads(audit)) {
    const Head& h = *place.head;
    out += fmt::format("{},{},{},{},{}", base::visible(place.layer->attention.kind), place.layer->attention.layer,
                       h.head, h.kv_head, h.d_k);
    for (const double x : {h.scale, h.variance, h.variance_in_context, h.mean, h.sigma, h.unit_divisor, h.ratio,
                           h.bound, h.f16_headroom, h.bf16_rounding, h.sigma_q, h.sigma_k, h.key_mean_norm, h.alignment,
                           h.largest_singular_value, h.effective_rank})
      put(x);
    out += fmt::format(",{},{},{}", h.not_finite, theory::name_of(h.judgement.verdict),
                       theory::name_of(h.judgement.ground));
    put(h.on_embeddings ? h.on_embeddings->sigma : NAN);
    for (std::size_t i = 0; i < audit.contexts.size(); ++i) {
      const AtContext at =
          i < h.contexts.size() ? h.contexts[i] : AtContext{0, NAN, NAN, NAN, NAN, NAN, Verdict::kUnknown};
      for (const double x : {at.sigma_over_critical, at.entropy, at.participation, at.p_max}) put(x);
    }
    if (measured) {
      const audit::Measured m = h.measured.value_or(audit::Measured{{NAN, NAN, NAN, NAN, NAN}, NAN, NAN, NAN});
      for (const double x : {m.sigma, m.unit_divisor, m.largest_raw, m.clip_factor}) put(x);
      if (audit.ran)
        for (const double x : {m.score_sigma, m.keys, m.entropy, m.participation, m.p_max, m.trace_j}) put(x);
    }
    out += "\n";
  }
  return out;
}

// Two checkpoints ----------------------------------------------------------------------------------------------------

Json json_of(const std::vector<audit::HeadDrift>& drift) {
  Json out = Json::array();
  for (const audit::HeadDrift& d : drift)
    out.push_back({{"attention", d.kind},
                   {"layer", d.layer},
                   {"head", d.head},
                   {"ground", theory::name_of(d.ground)},
                   {"sigma_before", finite(d.sigma_before)},
                   {"sigma_after", finite(d.sigma_after)},
                   {"growth", finite(d.growth)},
                   {"verdict_before", theory::name_of(d.verdict_before)},
                   {"verdict_before_ground", theory::name_of(d.verdict_before_ground)},
                   {"verdict_after", theory::name_of(d.verdict_after)},
                   {"verdict_after_ground", theory::name_of(d.verdict_after_ground)}});
  return out;
}

namespace {

/// Its ground is named where it is not that of the numbers beside it.
std::string verdict_beside(Verdict verdict, theory::Ground own, theory::Ground ground) {
  return own == ground ? theory::name_of(verdict) : fmt::format("{} ({})", theory::name_of(verdict), name_of(own));
}

}  // namespace

std::string text_of(const std::vector<audit::HeadDrift>& drift, std::size_t worst, const Layout& layout) {
  const bool kinds =
      std::any_of(drift.begin(), drift.end(), [&](const audit::HeadDrift& d) { return d.kind != drift.front().kind; });
  Table table({{"head", Table::Align::kLeft, Table::Place::kKey},
               {"σ before"},
               {"σ after"},
               {"growth"},
               {"verdict before", Table::Align::kLeft},
               {"after", Table::Align::kLeft, Table::Place::kWithPrevious}});
  std::vector<double> growths;
  for (const audit::HeadDrift& d : drift)
    if (std::isfinite(d.growth)) growths.push_back(d.growth);
  for (std::size_t i = 0; i < (worst == 0 ? drift.size() : std::min(worst, drift.size())); ++i) {
    const audit::HeadDrift& d = drift[i];
    table.add({(kinds ? base::visible(d.kind) + " " : "") + fmt::format("{}.{}", d.layer, d.head),
               number(d.sigma_before), number(d.sigma_after), number(d.growth),
               verdict_beside(d.verdict_before, d.verdict_before_ground, d.ground),
               verdict_beside(d.verdict_after, d.verdict_after_ground, d.ground)});
  }
  const bool same = std::all_of(drift.begin(), drift.end(),
                                [&](const audit::HeadDrift& d) { return d.ground == drift.front().ground; });
  const std::string told = same && !drift.empty()
                               ? fmt::format("What moved most since the earlier checkpoint (layer.head; σ: {}):",
                                             theory::name_of(drift.front().ground))
                               : "What moved most since the earlier checkpoint (layer.head):";
  std::string out = layout.wrap(told) + "\n" + table.text(layout.columns) + "\n";
  if (growths.empty()) return out;
  std::sort(growths.begin(), growths.end());
  return out + layout.wrap(fmt::format("σ has become {} times what it was at the median, from {} to {}.",
                                       number(median_of(growths)), number(growths.front()), number(growths.back())));
}

// QK-clip ------------------------------------------------------------------------------------------------------------

namespace {

/// `where` is the copy's name as it is shown.
std::string sentence_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& where) {
  if (clipped.heads.empty())
    return fmt::format("No head's largest score passed {}; {}.", number(clip.threshold),
                       clip.dry_run ? "nothing would change" : "the copy in " + where + " has the same weights");
  return fmt::format("{} in {} {}: the same inputs {} at most {}.", counted_of(clipped.heads.size(), "head"),
                     counted_of(clipped.tensors.size(), "tensor"),
                     clip.dry_run ? "would be shrunk" : "shrunk, in " + where,
                     clip.dry_run ? "would then give" : "now give", number(clip.threshold));
}

}  // namespace

std::string conclusion_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out) {
  return sentence_of(clipped, clip, base::visible(out));
}

Json json_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out) {
  Json json = {{"experiment", "audit"},
               {"threshold", clip.threshold},
               {"dry_run", clip.dry_run},
               {"out", clip.dry_run ? Json(nullptr) : Json(out)}};
  json["heads"] = Json::array();
  for (const audit::ClippedHead& h : clipped.heads)
    json["heads"].push_back({{"attention", h.observed.kind},
                             {"layer", h.observed.layer},
                             {"head", h.observed.head},
                             {"largest_raw", h.observed.largest_raw},
                             {"gamma", h.gamma},
                             {"on_queries", h.on_queries},
                             {"on_keys", h.on_keys}});
  json["tensors"] = clipped.tensors;
  json["conclusion"] = conclusion_of(clipped, clip, out);
  return json;
}

std::string text_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out,
                    const Layout& layout) {
  const std::string conclusion = layout.wrap(sentence_of(clipped, clip, unbroken(base::visible(out))));
  if (clipped.heads.empty()) return conclusion;
  Table table(
      {{"layer.head", Table::Align::kLeft, Table::Place::kKey}, {"largest score"}, {"γ"}, {"queries ×"}, {"keys ×"}});
  for (const audit::ClippedHead& h : clipped.heads)
    table.add({fmt::format("{}{}.{}", h.observed.kind == "self" ? "" : base::visible(h.observed.kind) + " ",
                           h.observed.layer, h.observed.head),
               number(h.observed.largest_raw), number(h.gamma, 4), number(h.on_queries, 4), number(h.on_keys, 4)});
  return table.text(layout.columns) + "\n" + conclusion;
}

}  // namespace rootdk::report
