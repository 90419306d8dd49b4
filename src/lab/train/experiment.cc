#include "rootdk/lab/train/experiment.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "cpu/parallel.h"
#include "lab/train/check.h"

namespace rootdk::lab {

namespace {

// One run that is to be made, and where its result goes.
struct Job {
  RunLabel label;
  RunOptions options;
  RunResult* result;
};

template <class T>
void check_different(const char* name, std::vector<T> values) {
  if (values.empty()) base::refuse("{}: none given, but at least one is wanted", name);
  std::sort(values.begin(), values.end());
  const auto twice = std::adjacent_find(values.begin(), values.end());
  if (twice != values.end()) base::refuse("{}: {} given twice", name, *twice);
}

// With one learning rate there is nothing to find out.
std::size_t rates_to_try(const TrainOptions& options) {
  return options.learning_rates.size() > 1 ? options.learning_rates.size() : 0;
}

void check(const TrainOptions& options) {
  std::vector<std::string> names;
  for (const Scale& rule : options.rules) names.push_back(rule.name());
  check_different("rules", names);
  check_different("dk", options.dk);
  check_different("learning rates", options.learning_rates);
  if (!std::is_sorted(options.learning_rates.begin(), options.learning_rates.end()))
    base::refuse("learning rates: {}, but ascending ones are wanted", fmt::join(options.learning_rates, ", "));
  check_between("seeds", options.seeds, 1, 1000);
  check_between("parallel_runs", options.parallel_runs, 0, 1024);
}

double final_loss(const RunResult& run) {
  if (run.outcome != Outcome::kFinished || run.evaluations.empty()) return std::numeric_limits<double>::infinity();
  const double loss = static_cast<double>(run.evaluations.back().loss);
  return std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss;
}

bool ended(const RunResult& run) { return run.outcome == Outcome::kFinished || run.outcome == Outcome::kDiverged; }

RunOptions options_of(const TrainOptions& all, const RuleRuns& rule, double learning_rate, std::uint64_t seed) {
  RunOptions options = all.run;
  options.scale = rule.scale;
  options.model.dim_qk = rule.dk;
  options.learning_rate = learning_rate;
  options.seed = seed;
  return options;
}

void run_all(const Task& task, const std::vector<Job>& jobs, int at_once, const TrainObserver& observer) {
  std::mutex mutex;
  cpu::parallel_tasks(static_cast<std::int64_t>(jobs.size()), at_once, [&](std::int64_t index, int) {
    const Job& job = jobs[static_cast<std::size_t>(index)];
    if (observer.stop && observer.stop()) return;
    RunObserver one;
    one.stop = observer.stop;
    one.store = observer.store;
    one.resume = observer.resume;
    if (observer.store) one.checkpoint_path = fmt::format("{}/{}.safetensors", observer.folder, job.label.name());
    const auto locked = [&](const auto& call, const auto& what) {
      const std::lock_guard<std::mutex> lock(mutex);
      call(job.label, what);
    };
    if (observer.on_step) one.on_step = [&](const StepTrace& trace) { locked(observer.on_step, trace); };
    if (observer.on_evaluation) one.on_evaluation = [&](const Evaluation& e) { locked(observer.on_evaluation, e); };
    *job.result = train(task, job.options, one);
    if (observer.on_run) locked(observer.on_run, *job.result);
  });
}

}  // namespace

TrainOptions text_defaults() {
  TrainOptions options;
  options.run.sequences = 16;
  options.run.steps = 300;
  return options;
}

std::string RunLabel::name() const {
  std::string text = fmt::format("{}-dk{}-lr{}-seed{}", rule, dk, learning_rate, seed);
  for (char& c : text) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_';
    if (!plain) c = '_';
  }
  return text;
}

std::int64_t total_steps(const TrainOptions& options) {
  const auto rules = static_cast<std::int64_t>(options.rules.size() * options.dk.size());
  return rules * (static_cast<std::int64_t>(rates_to_try(options)) + options.seeds) * options.run.steps;
}

TrainObserver watched_by(const Watch& watch, const TrainOptions& options) {
  TrainObserver observer;
  observer.on_step = [watch, done = 0.0, all = static_cast<double>(total_steps(options))](
                         const RunLabel&, const StepTrace&) mutable { watch.report(++done / all); };
  observer.stop = [watch] { return watch.stopped(); };
  return observer;
}

TrainResult train_rules(const Task& task, const TrainOptions& options, const TrainObserver& observer) {
  check(options);
  TrainResult result;
  result.options = options;
  result.task = task.description();
  result.measure = task.measure();
  if (result.options.parallel_runs == 0) result.options.parallel_runs = omp_in_parallel() ? 1 : omp_get_max_threads();
  for (const std::int64_t dk : options.dk)
    for (const Scale& scale : options.rules) {
      RuleRuns rule = {scale, dk, {}, {}, {}};
      rule.tuning.resize(rates_to_try(options));
      rule.runs.resize(static_cast<std::size_t>(options.seeds));
      result.rules.push_back(std::move(rule));
    }

  const std::uint64_t tuning_seed = options.run.seed;
  std::vector<Job> jobs;
  for (RuleRuns& rule : result.rules)
    for (std::size_t r = 0; r < rule.tuning.size(); ++r) {
      const double rate = options.learning_rates[r];
      jobs.push_back({{rule.scale.name(), rule.dk, rate, tuning_seed, true},
                      options_of(options, rule, rate, tuning_seed),
                      &rule.tuning[r]});
    }
  run_all(task, jobs, result.options.parallel_runs, observer);

  jobs.clear();
  for (RuleRuns& rule : result.rules) {
    if (!std::all_of(rule.tuning.begin(), rule.tuning.end(), ended)) continue;
    const auto best =
        std::min_element(rule.tuning.begin(), rule.tuning.end(),
                         [](const RunResult& a, const RunResult& b) { return final_loss(a) < final_loss(b); });
    rule.best = static_cast<std::size_t>(best - rule.tuning.begin());  // 0 if none was tried
    const double rate = options.learning_rates[*rule.best];
    for (std::size_t s = 0; s < rule.runs.size(); ++s) {
      const std::uint64_t seed = tuning_seed + 1 + s;
      jobs.push_back(
          {{rule.scale.name(), rule.dk, rate, seed, false}, options_of(options, rule, rate, seed), &rule.runs[s]});
    }
  }
  run_all(task, jobs, result.options.parallel_runs, observer);

  result.complete = std::all_of(result.rules.begin(), result.rules.end(), [](const RuleRuns& rule) {
    return rule.best && std::all_of(rule.runs.begin(), rule.runs.end(), ended);
  });
  return result;
}

}  // namespace rootdk::lab
