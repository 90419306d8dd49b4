// Medians over seeds, who reached the reference's loss when, and sentences from those numbers alone.
#include "rootdk/lab/train/conclusions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace rootdk::lab {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double value_of(const Evaluation& e, Measure measure) {
  return static_cast<double>(measure == Measure::kAccuracy ? e.accuracy : e.loss);
}

bool better(double a, double b, Measure measure) { return measure == Measure::kAccuracy ? a > b : a < b; }

double at_the_end(const RunResult& run, Measure measure) {
  const double failed = measure == Measure::kAccuracy ? 0 : kInfinity;
  if (run.outcome != Outcome::kFinished || run.evaluations.empty()) return failed;
  const double value = value_of(run.evaluations.back(), measure);
  return std::isnan(value) ? failed : value;
}

// Steps after which a held-out value was first as good as the goal.
double steps_to(double goal, const RunResult& run, Measure measure) {
  for (const Evaluation& e : run.evaluations)
    if (!better(goal, value_of(e, measure), measure) && !std::isnan(value_of(e, measure)))
      return static_cast<double>(e.step);
  return kInfinity;
}

double mean_sigma(const StepTrace& step) {
  double sum = 0;
  for (const HeadTrace& head : step.heads) sum += static_cast<double>(head.sigma);
  return step.heads.empty() ? 0 : sum / static_cast<double>(step.heads.size());
}

bool finished(const RuleRuns& rule) {
  return rule.best && !rule.runs.empty() && std::all_of(rule.runs.begin(), rule.runs.end(), [](const RunResult& run) {
           return run.outcome == Outcome::kFinished || run.outcome == Outcome::kDiverged;
         });
}

RuleSummary summary_of(const RuleRuns& rule, const TrainResult& result) {
  RuleSummary s;
  s.rule = rule.scale.describe();
  s.dk = rule.dk;
  if (!finished(rule)) return s;
  const std::vector<double>& rates = result.options.learning_rates;
  s.learning_rate = rates[*rule.best];
  s.rate_is_smallest = rates.size() > 1 && *rule.best == 0;
  s.rate_is_largest = rates.size() > 1 && *rule.best + 1 == rates.size();
  s.seeds = static_cast<std::int64_t>(rule.runs.size());
  std::vector<double> ends, first, last;
  for (const RunResult& run : rule.runs) {
    ends.push_back(at_the_end(run, result.measure));
    if (run.outcome == Outcome::kDiverged) ++s.diverged;
    if (run.steps.empty()) continue;
    first.push_back(mean_sigma(run.steps.front()));
    last.push_back(mean_sigma(run.steps.back()));
  }
  s.median = median(ends);
  const auto [low, high] = std::minmax_element(ends.begin(), ends.end());
  s.worst = result.measure == Measure::kAccuracy ? *low : *high;
  s.best = result.measure == Measure::kAccuracy ? *high : *low;
  if (!first.empty()) s.first_sigma = median(first), s.last_sigma = median(last);
  return s;
}

Standing standing_of(const RuleSummary& rule, const RuleSummary& reference, Measure measure) {
  const double level = measure == Measure::kAccuracy ? kLevelAccuracy : kLevelLoss * reference.median;
  if (rule.median == reference.median || std::fabs(rule.median - reference.median) <= level) return Standing::kLevel;
  if (better(rule.worst, reference.best, measure)) return Standing::kAhead;
  if (better(reference.worst, rule.best, measure)) return Standing::kBehind;
  return Standing::kUnclear;
}

// Which of the rules of one d_k the others are measured by; nothing if it did not finish.
std::optional<std::size_t> reference_of(std::span<const RuleRuns> rules, std::span<const RuleSummary> all,
                                        Measure measure) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const bool done = finished(rules[i]);
    if (rules[i].scale.name() == Scale::inv_sqrt_dk().name()) return done ? std::optional(i) : std::nullopt;
    if (done && (!best || better(all[i].median, all[*best].median, measure))) best = i;
  }
  return best;
}

std::string value_text(double value, Measure measure) {
  return measure == Measure::kAccuracy ? fmt::format("{:.1f} %", 100 * value) : fmt::format("{:.3f}", value);
}

std::string end_text(const RuleSummary& s, Measure measure) {
  std::string text = measure == Measure::kAccuracy
                         ? fmt::format("ends with {} of held-out answers right", value_text(s.median, measure))
                         : fmt::format("ends at a held-out loss of {} nats", value_text(s.median, measure));
  if (s.seeds > 1)
    text += fmt::format(" (median of {} seeds, {} to {})", s.seeds, value_text(std::min(s.worst, s.best), measure),
                        value_text(std::max(s.worst, s.best), measure));
  text += fmt::format(", at a learning rate of {:g}", s.learning_rate);
  if (s.diverged > 0) text += fmt::format("; {} of its runs diverged", s.diverged);
  return text;
}

std::string goal_text(Measure measure, const RuleSummary& reference) {
  return measure == Measure::kAccuracy ? value_text(kGoalAccuracy, measure)
                                       : fmt::format("a loss of {}", value_text(kGoalLoss * reference.median, measure));
}

std::string speed_text(const RuleSummary& s, const RuleSummary& reference, Measure measure, std::int64_t steps) {
  const std::string goal = goal_text(measure, reference);
  if (!s.steps_to_goal) return fmt::format("it does not reach {} in {} steps", goal, steps);
  std::string text = fmt::format("it reaches {} after {:g} steps", goal, *s.steps_to_goal);
  if (&s == &reference || !reference.steps_to_goal) return text;
  const double times = *s.steps_to_goal / *reference.steps_to_goal;
  text += times == 1 ? ", as soon as the other" : fmt::format(", {:.2g} times as many as the other", times);
  return text;
}

std::string sentence(const RuleSummary& s, const RuleSummary* reference, Measure measure, const TrainOptions& options) {
  const bool tuned = options.learning_rates.size() > 1;
  std::string text = fmt::format("d_k = {}, c = {}: ", s.dk, s.rule);
  if (s.seeds == 0) return text + "not finished, so nothing is said about it.";
  text += end_text(s, measure);
  if (!reference) return text + ". What it is to be compared with is not finished.";
  const std::string speed = speed_text(s, *reference, measure, options.run.steps);
  const std::string other = fmt::format("c = {}", reference->rule);
  const std::string gap = measure == Measure::kAccuracy
                              ? fmt::format("{:.1f} points", 100 * std::fabs(s.median - reference->median))
                              : fmt::format("{:.3f} nats", std::fabs(s.median - reference->median));
  switch (s.standing) {
    case Standing::kUnfinished: break;
    case Standing::kReference: text += fmt::format("; {}.", speed); break;
    case Standing::kAhead: text += fmt::format(". That is ahead of {} by {}; {}.", other, gap, speed); break;
    case Standing::kLevel:
      text += fmt::format(". {} level with {} at the end; {}.", tuned ? "With its rate tuned it is" : "That is", other,
                          speed);
      break;
    case Standing::kUnclear:
      text += fmt::format(". Its median is {} than that of {} by {}, but seeds overlap, so that shows nothing; {}.",
                          better(s.median, reference->median, measure) ? "better" : "worse", other, gap, speed);
      break;
    case Standing::kBehind:
      text += fmt::format(". That is behind {} by {}{}; {}.", other, gap, tuned ? ", with its rate tuned" : "", speed);
      break;
  }
  if (s.rate_is_smallest || s.rate_is_largest)
    text += fmt::format(" Its best rate is the {} tried: one beyond may do better.",
                        s.rate_is_smallest ? "smallest" : "largest");
  return text;
}

// first … last−1 of the result are the rules of one d_k.
template <class Call>
void for_each_dk(const TrainResult& result, const Call& call) {
  for (std::size_t first = 0, last; first < result.rules.size(); first = last) {
    for (last = first; last < result.rules.size() && result.rules[last].dk == result.rules[first].dk; ++last) {
    }
    call(first, last);
  }
}

}  // namespace

std::vector<RuleSummary> summarise(const TrainResult& result) {
  std::vector<RuleSummary> all;
  for (const RuleRuns& rule : result.rules) all.push_back(summary_of(rule, result));
  for_each_dk(result, [&](std::size_t first, std::size_t last) {
    const auto reference = reference_of(std::span(result.rules).subspan(first, last - first),
                                        std::span(all).subspan(first, last - first), result.measure);
    if (!reference) return;
    const RuleSummary& other = all[first + *reference];
    const double goal = result.measure == Measure::kAccuracy ? kGoalAccuracy : kGoalLoss * other.median;
    for (std::size_t i = first; i < last; ++i) {
      if (all[i].seeds == 0) continue;
      all[i].standing = i == first + *reference ? Standing::kReference : standing_of(all[i], other, result.measure);
      std::vector<double> steps;
      for (const RunResult& run : result.rules[i].runs) steps.push_back(steps_to(goal, run, result.measure));
      if (const double middle = median(steps); std::isfinite(middle)) all[i].steps_to_goal = middle;
    }
  });
  for_each_dk(result, [&](std::size_t first, std::size_t last) {
    const auto group = std::span(all).subspan(first, last - first);
    const auto found = std::find_if(group.begin(), group.end(),
                                    [](const RuleSummary& s) { return s.standing == Standing::kReference; });
    for (RuleSummary& s : group)
      s.conclusion = sentence(s, found == group.end() ? nullptr : &*found, result.measure, result.options);
  });
  return all;
}

std::vector<std::string> conclusions(const TrainResult& result) {
  const std::vector<RuleSummary> all = summarise(result);
  std::vector<std::string> sentences;
  for_each_dk(result, [&](std::size_t first, std::size_t last) {
    const auto group = std::span(all).subspan(first, last - first);
    for (const bool reference : {true, false})
      for (const RuleSummary& s : group)
        if ((s.standing == Standing::kReference) == reference) sentences.push_back(s.conclusion);
  });
  return sentences;
}

}  // namespace rootdk::lab
