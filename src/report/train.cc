// `rootdk train`: curves thinned for JSON, a table by rule, and who ends where.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "report/experiments.h"
#include "report/json.h"
#include "report/numbers.h"
#include "report/sentences.h"
#include "report/table.h"
#include "report/text.h"
#include "rootdk/lab/train/conclusions.h"
#include "rootdk/lab/train/experiment.h"

namespace rootdk::report {

namespace {

constexpr std::size_t kMostPoints = 200;  // of a curve: more than a screen shows

const char* name_of(lab::Outcome outcome) {
  switch (outcome) {
    case lab::Outcome::kNotStarted: return "not_started";
    case lab::Outcome::kFinished: return "finished";
    case lab::Outcome::kStopped: return "stopped";
    case lab::Outcome::kDiverged: return "diverged";
  }
  return "";
}

const char* name_of(lab::Standing standing) {
  switch (standing) {
    case lab::Standing::kUnfinished: return "unfinished";
    case lab::Standing::kReference: return "reference";
    case lab::Standing::kAhead: return "ahead";
    case lab::Standing::kLevel: return "level";
    case lab::Standing::kUnclear: return "unclear";
    case lab::Standing::kBehind: return "behind";
  }
  return "";
}

const char* name_of(lab::Measure measure) { return measure == lab::Measure::kAccuracy ? "accuracy" : "loss"; }

template <class Each, class Value>
Json column(const std::vector<Each>& rows, const Value& value) {
  Json out = Json::array();
  for (const Each& row : rows) out.push_back(value(row));
  return out;
}

Json evaluations_json(const lab::RunResult& run) {
  using lab::Evaluation;
  return {{"step", column(run.evaluations, [](const Evaluation& e) { return e.step; })},
          {"loss", column(run.evaluations, [](const Evaluation& e) { return shortest(e.loss); })},
          {"accuracy", column(run.evaluations, [](const Evaluation& e) { return shortest(e.accuracy); })}};
}

/// The steps that are shown: the first, the last and evenly between.
std::vector<const lab::StepTrace*> shown_steps(const lab::RunResult& run) {
  std::vector<const lab::StepTrace*> out;
  const std::size_t count = std::min(run.steps.size(), kMostPoints);
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(&run.steps[count == 1 ? 0 : i * (run.steps.size() - 1) / (count - 1)]);
  return out;
}

float mean_over_heads(const lab::StepTrace& step, float lab::HeadTrace::*member) {
  double sum = 0;
  for (const lab::HeadTrace& head : step.heads) sum += static_cast<double>(head.*member);
  return static_cast<float>(sum / static_cast<double>(step.heads.size()));
}

float largest_score(const lab::StepTrace& step) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const lab::HeadTrace& head : step.heads)
    largest = std::isnan(head.score_max) ? head.score_max : std::max(largest, head.score_max);
  return largest;
}

Json steps_json(const lab::RunResult& run, const std::vector<const lab::StepTrace*>& steps) {
  using lab::HeadTrace;
  using Step = const lab::StepTrace*;
  const auto mean = [&](float HeadTrace::*member) {
    return column(steps, [member](Step s) { return shortest(mean_over_heads(*s, member)); });
  };
  Json out{{"step", column(steps, [](Step s) { return s->step; })},
           {"loss", column(steps, [](Step s) { return shortest(s->loss); })},
           {"accuracy", column(steps, [](Step s) { return shortest(s->accuracy); })},
           {"gradient_norm", column(steps, [](Step s) { return shortest(s->gradient_norm); })},
           {"sigma", mean(&HeadTrace::sigma)},
           {"entropy", mean(&HeadTrace::entropy)},
           {"p_max", mean(&HeadTrace::p_max)},
           {"score_max", column(steps, [](Step s) { return shortest(largest_score(*s)); })},
           {"heads", Json::array()}};
  const std::size_t heads = run.steps.empty() ? 0 : run.steps.front().heads.size();
  const auto per_layer = static_cast<std::size_t>(std::max<std::int64_t>(1, run.options.model.heads));
  for (std::size_t h = 0; h < heads; ++h) {
    const auto of = [&](float HeadTrace::*member) {
      return column(steps, [h, member](Step s) { return shortest(s->heads[h].*member); });
    };
    out["heads"].push_back({{"layer", h / per_layer},
                            {"head", h % per_layer},
                            {"sigma", of(&HeadTrace::sigma)},
                            {"entropy", of(&HeadTrace::entropy)},
                            {"p_max", of(&HeadTrace::p_max)},
                            {"score_max", of(&HeadTrace::score_max)}});
  }
  return out;
}

Json tuning_json(const lab::RuleRuns& rule) {
  Json out = Json::array();
  for (const lab::RunResult& run : rule.tuning) {
    Json one{{"learning_rate", run.options.learning_rate},
             {"outcome", name_of(run.outcome)},
             {"loss", nullptr},
             {"accuracy", nullptr}};
    if (!run.evaluations.empty()) {
      one["loss"] = shortest(run.evaluations.back().loss);
      one["accuracy"] = shortest(run.evaluations.back().accuracy);
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json rule_json(const lab::RuleRuns& rule, const lab::RuleSummary& s) {
  const bool finished = s.seeds > 0;
  const auto if_finished = [&](double x) { return finished ? Json(x) : Json(nullptr); };
  Json out{{"rule", rule.scale.name()},
           {"formula", rule.scale.describe()},
           {"dk", rule.dk},
           {"standing", name_of(s.standing)},
           {"learning_rate", if_finished(s.learning_rate)},
           {"seeds", s.seeds},
           {"diverged", s.diverged},
           {"median", if_finished(s.median)},
           {"worst", if_finished(s.worst)},
           {"best", if_finished(s.best)},
           {"steps_to_goal", s.steps_to_goal ? Json(*s.steps_to_goal) : Json(nullptr)},
           {"first_sigma", if_finished(s.first_sigma)},
           {"last_sigma", if_finished(s.last_sigma)},
           {"conclusion", s.conclusion},
           {"tuning", tuning_json(rule)},
           {"runs", Json::array()}};
  for (const lab::RunResult& run : rule.runs)
    if (run.outcome != lab::Outcome::kNotStarted)
      out["runs"].push_back({{"seed", run.options.seed},
                             {"outcome", name_of(run.outcome)},
                             {"evaluations", evaluations_json(run)},
                             {"steps", steps_json(run, shown_steps(run))}});
  return out;
}

std::string value_text(double value, lab::Measure measure) {
  return measure == lab::Measure::kAccuracy ? percent(value) : fixed(value, 3);
}

/// "no scaling": a rule in a sentence, where "1 (none)" would not read.
std::string said(const std::string& rule) { return rule == Scale::none().describe() ? "no scaling" : rule; }

/// "no scaling ends behind 1/√d_k, 1/d_k ends level with it": how rules stand to the reference; empty where there is
/// nothing to say.
std::string standings(const std::vector<const lab::RuleSummary*>& ends) {
  const auto reference =
      std::find_if(ends.begin(), ends.end(), [](auto* s) { return s->standing == lab::Standing::kReference; });
  if (reference == ends.end()) return "";
  std::string out;
  struct Words {
    lab::Standing standing;
    const char *one, *several;
  };
  for (const auto& [standing, one, several] :
       {Words{lab::Standing::kBehind, "ends behind", "end behind"},
        Words{lab::Standing::kUnclear, "cannot be told apart from", "cannot be told apart from"},
        Words{lab::Standing::kLevel, "ends level with", "end level with"},
        Words{lab::Standing::kAhead, "ends ahead of", "end ahead of"}}) {
    std::vector<std::string> rules;
    for (const lab::RuleSummary* s : ends)
      if (s->standing == standing) rules.push_back(said(s->rule));
    if (rules.empty()) continue;
    out += fmt::format("{}{} {} {}", out.empty() ? "" : ", ", listed(rules), rules.size() == 1 ? one : several,
                       out.empty() ? said((*reference)->rule) : "it");
  }
  return out;
}

}  // namespace

Json json_of(const RunSoFar& so_far) {
  const lab::RunResult& run = so_far.run;
  const lab::RunOptions& o = run.options;
  Json out{{"rule", o.scale.name()},
           {"learning_rate", o.learning_rate},
           {"seed", o.seed},
           {"dk", o.model.dim_qk},
           {"width", o.model.width},
           {"layers", o.model.layers},
           {"heads_per_layer", o.model.heads},
           {"sequences", o.sequences},
           {"last_step", o.steps},
           {"step", run.steps.size()},
           {"outcome", name_of(run.outcome)}};
  out["done"] = run.outcome == lab::Outcome::kFinished || run.outcome == lab::Outcome::kDiverged;
  const lab::StepTrace none, &last = run.steps.empty() ? none : run.steps.back();
  const auto or_null = [&](float x) { return run.steps.empty() ? Json(nullptr) : Json(shortest(x)); };
  out["loss"] = or_null(last.loss), out["accuracy"] = or_null(last.accuracy),
  out["gradient_norm"] = or_null(last.gradient_norm);
  out["heads"] = Json::array();
  for (std::size_t h = 0; h < last.heads.size(); ++h) {
    const lab::HeadTrace& head = last.heads[h];
    out["heads"].push_back({{"layer", h / static_cast<std::size_t>(o.model.heads)},
                            {"head", h % static_cast<std::size_t>(o.model.heads)},
                            {"sigma", shortest(head.sigma)},
                            {"entropy", shortest(head.entropy)},
                            {"p_max", shortest(head.p_max)},
                            {"score_max", shortest(head.score_max)}});
  }
  std::vector<const lab::StepTrace*> steps;
  for (std::size_t i = so_far.from; i < run.steps.size(); ++i) steps.push_back(&run.steps[i]);
  out["steps"] = steps_json(run, steps);
  out["evaluations"] = evaluations_json(run);
  return out;
}

Json json_of(const lab::TrainResult& result) {
  const lab::TrainOptions& o = result.options;
  const std::vector<lab::RuleSummary> summaries = lab::summarise(result);
  Json out{{"experiment", "train"},
           {"task", result.task},
           {"measure", name_of(result.measure)},
           {"seed", o.run.seed},
           {"seeds", o.seeds},
           {"steps", o.run.steps},
           {"sequences", o.run.sequences},
           {"width", o.run.model.width},
           {"layers", o.run.model.layers},
           {"heads", o.run.model.heads},
           {"dk", o.dk},
           {"learning_rates", o.learning_rates},
           {"rules", Json::array()}};
  for (std::size_t i = 0; i < result.rules.size(); ++i)
    out["rules"].push_back(rule_json(result.rules[i], summaries[i]));
  out["complete"] = result.complete;
  out["conclusion"] = conclusion_of(result);
  return out;
}

std::string text_of(const lab::TrainResult& result, const Layout& layout) {
  const lab::TrainOptions& o = result.options;
  const std::string rates = o.learning_rates.size() == 1
                                ? fmt::format("at a learning rate of {:g}", o.learning_rates.front())
                                : fmt::format("each at the best of {} learning rates", o.learning_rates.size());
  const auto counted = [](std::int64_t count, const char* what) {
    return counted_of(static_cast<std::size_t>(count), what);
  };
  std::string out = layout.wrap(fmt::format(
      "{}; {} of width {}, {} of {}, {}, {}.", result.task, counted(o.run.model.layers, "layer"), o.run.model.width,
      counted(o.run.steps, "step"), counted(o.run.sequences, "sequence"), counted(o.seeds, "seed"), rates));
  const bool accuracy = result.measure == lab::Measure::kAccuracy;
  Table table({{"d_k", Table::Align::kRight, Table::Place::kKey},
               {"scale", Table::Align::kLeft, Table::Place::kKey},
               {"rate"},
               {accuracy ? "right" : "loss"},
               {"worst"},
               {"best"},
               {accuracy ? "to 99 %" : "to goal"},
               {"σ first"},
               {"σ last"}});
  for (const lab::RuleSummary& s : lab::summarise(result)) {
    if (s.seeds == 0) {
      table.add({whole(s.dk), s.rule, "–", "–"});
      continue;
    }
    const auto value = [&](double x) { return value_text(x, result.measure); };
    table.add({whole(s.dk), s.rule, fmt::format("{:g}", s.learning_rate), value(s.median), value(s.worst),
               value(s.best), s.steps_to_goal ? fmt::format("{:g}", *s.steps_to_goal) : "never",
               fixed(s.first_sigma, 2), fixed(s.last_sigma, 2)});
  }
  out += "\n" + table.text(layout.columns) + "\n" +
         layout.wrap(fmt::format(
             "{}, median over seeds; {}; σ is the spread of scores within a row.",
             accuracy ? "Held-out answers that are right" : "Held-out loss in nats",
             accuracy ? "steps until 99 % are" : "steps to 1.05 times the loss that the reference ends with"));
  for (const std::string& sentence : lab::conclusions(result)) out += "\n" + layout.wrap(sentence, "  ");
  return out + unfinished(result.complete, layout) + "\n" + layout.wrap(conclusion_of(result));
}

// Each rule has sentences of its own; this says how they stand and puts their ends side by side.
std::string conclusion_of(const lab::TrainResult& result) {
  const bool accuracy = result.measure == lab::Measure::kAccuracy;
  const std::vector<lab::RuleSummary> summaries = lab::summarise(result);
  std::string out;
  for (const std::int64_t dk : result.options.dk) {
    std::vector<const lab::RuleSummary*> finished;
    for (const lab::RuleSummary& s : summaries)
      if (s.dk == dk && s.seeds > 0) finished.push_back(&s);
    if (finished.empty()) continue;
    std::stable_partition(finished.begin(), finished.end(),
                          [](auto* s) { return s->standing == lab::Standing::kReference; });
    std::vector<std::string> ends;
    for (const lab::RuleSummary* s : finished)
      ends.push_back(value_text(s->median, result.measure) + " under " + said(s->rule));
    const std::string claim = standings(finished);
    out += fmt::format("{}At d_k = {}, {}{}{}: {}.", out.empty() ? "" : " ", dk, claim, claim.empty() ? "" : "; ",
                       accuracy ? "held-out answers right in the end" : "held-out loss in the end", listed(ends));
  }
  if (out.empty()) return "Nothing was finished.";
  const std::string over =
      result.options.seeds == 1 ? "One seed" : fmt::format("Medians of {} seeds", result.options.seeds);
  return fmt::format("{} {}, {}.", out, over,
                     result.options.learning_rates.size() == 1 ? "all at one learning rate"
                                                               : "each rule at its own best learning rate");
}

}  // namespace rootdk::report
