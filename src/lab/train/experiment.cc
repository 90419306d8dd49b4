// Learning rates tried first, then every rule × seed × d_k as jobs, as many at once as memory allows.
#include "rootdk/lab/train/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "base/parallel.h"
#include "lab/need.h"
#include "lab/train/check.h"
#include "lab/train/memory.h"
#include "lab/train/trainer.h"

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

RunOptions options_at(const TrainOptions& all, std::int64_t dk) {
  RunOptions options = all.run;
  options.model.dim_qk = dk;
  return options;
}

int runs_at_once(const Task& task, TrainOptions options, bool has_store) {
  options.parallel_runs = base::free_threads();
  const FreeMemory free = free_memory(options.parallel_runs);
  while (options.parallel_runs > 1 && !fits(memory_of(task, options, has_store), free)) --options.parallel_runs;
  return options.parallel_runs;
}

void run_all(const Task& task, const std::vector<Job>& jobs, int at_once, const TrainObserver& observer) {
  std::mutex mutex;
  base::parallel_tasks(static_cast<std::int64_t>(jobs.size()), at_once, [&](std::int64_t index, int) {
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
    *job.result = run(task, job.options, one);
    if (observer.on_run) locked(observer.on_run, *job.result);
  });
}

/// The time of a step, up to a factor: it goes with the number of weights.
double cost_of_step(const nn::TransformerOptions& model, std::int64_t dk) {
  const auto width = static_cast<double>(model.width), heads = static_cast<double>(model.heads);
  const double values = model.dim_v > 0 ? heads * static_cast<double>(model.dim_v) : width;
  const double hidden = model.mlp_hidden > 0 ? static_cast<double>(model.mlp_hidden) : width * 8 / 3;
  return width * (2 * heads * static_cast<double>(dk) + 2 * values + 3 * hidden);
}

/// How far all runs together have come, and which of them are under way.
class RunsInProgress {
 public:
  explicit RunsInProgress(const TrainOptions& options) : options_(options) {
    for (const std::int64_t dk : options.dk)
      all_ += cost_of_step(options.run.model, dk) * static_cast<double>(total_steps(options)) /
              static_cast<double>(options.dk.size());
  }

  /// Steps that an earlier process made are no work of this one.
  void step(const RunLabel& label, std::int64_t step) {
    const auto known = find(label);
    if (known != active_.end()) {
      known->step = step;
    } else {
      active_.push_back({label, label.name(), step});
      all_ -= cost(label) * static_cast<double>(step - 1);
    }
    done_ += cost(label);
  }

  /// Steps that it will not make are work of nobody.
  void end(const RunLabel& label) {
    const auto known = find(label);
    all_ -= cost(label) * static_cast<double>(options_.run.steps - (known != active_.end() ? known->step : 0));
    if (known != active_.end()) active_.erase(known);
  }

  double done() const { return all_ > 0 ? std::min(1.0, done_ / all_) : 1; }

  std::string what() const {
    if (active_.empty()) return "";
    const auto& [label, name, step] = active_.front();
    std::string out = fmt::format("{}, rate {:g}, seed {}, step {}/{}", label.rule, label.learning_rate, label.seed,
                                  step, options_.run.steps);
    if (options_.dk.size() > 1) out += fmt::format(", d_k {}", label.dk);
    if (label.tuning) out += ", to find the rate";
    if (active_.size() > 1) out += fmt::format(", and {} more", active_.size() - 1);
    return out;
  }

 private:
  struct Active {
    RunLabel label;
    std::string name;
    std::int64_t step;
  };

  double cost(const RunLabel& label) const { return cost_of_step(options_.run.model, label.dk); }
  std::vector<Active>::iterator find(const RunLabel& label) {
    return std::find_if(active_.begin(), active_.end(), [&](const Active& a) { return a.name == label.name(); });
  }

  TrainOptions options_;
  double all_ = 0, done_ = 0;
  std::vector<Active> active_;  ///< in the order in which they began
};

}  // namespace

RunOptions run_of(const TrainOptions& options, const Scale& rule, std::int64_t dk, double learning_rate,
                  std::uint64_t seed) {
  RunOptions one = options.run;
  one.scale = rule;
  one.model.dim_qk = dk;
  one.learning_rate = learning_rate;
  one.seed = seed;
  return one;
}

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
  if (watch.progress) {
    const auto runs = std::make_shared<RunsInProgress>(options);  // calls come one at a time
    observer.on_step = [watch, runs](const RunLabel& label, const StepTrace& trace) {
      runs->step(label, trace.step);
      watch.report(runs->done(), runs->what());
    };
    observer.on_run = [watch, runs](const RunLabel& label, const RunResult&) {
      runs->end(label);
      watch.report(runs->done(), runs->what());
    };
  }
  observer.stop = [watch] { return watch.stopped(); };
  return observer;
}

MemoryNeed memory_of(const Task& task, const TrainOptions& options, bool has_store) {
  check(options);
  for (const std::int64_t dk : options.dk) checked(options_at(options, dk), task);
  const auto bytes = [&](const TrainOptions& o) {
    double most = 0;
    for (const std::int64_t dk : o.dk)
      most = std::max(most, bytes_of_state(checked(options_at(o, dk), task), task, has_store));
    const double runs = real(o.dk.size()) * real(o.rules.size()) * (real(rates_to_try(o)) + real(o.seeds));
    return most * std::max(1, o.parallel_runs) + runs * bytes_of_log(checked(options_at(o, o.dk.front()), task));
  };
  return need_of(options, bytes, Size{"layers", [](auto& o) -> auto& { return o.run.model.layers;
}
}  // namespace rootdk::lab
, Size{"sequences", [](auto& o) -> auto& {return o.run.sequences;
}
}
, Size{"dk", &TrainOptions::dk}, Size{"steps", [](auto& o) -> auto& {return o.run.steps;
}
}, Size{"seeds", &TrainOptions::seeds},
                 Size{"rules", &TrainOptions::rules}, Size{"learning rates", &TrainOptions::learning_rates});
}

TrainResult train_rules(const Task& task, const TrainOptions& options, const TrainObserver& observer) {
  want_memory(memory_of(task, options, observer.store != nullptr));
  TrainResult result;
  result.options = options;
  result.task = task.description();
  result.measure = task.measure();
  if (options.parallel_runs == 0) result.options.parallel_runs = runs_at_once(task, options, observer.store != nullptr);
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
      const RunLabel label = {rule.scale.name(), rule.dk, rate, tuning_seed, true};
      jobs.push_back({label, run_of(options, rule.scale, rule.dk, rate, tuning_seed), &rule.tuning[r]});
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
      const RunLabel label = {rule.scale.name(), rule.dk, rate, seed, false};
      jobs.push_back({label, run_of(options, rule.scale, rule.dk, rate, seed), &rule.runs[s]});
    }
  }
  run_all(task, jobs, result.options.parallel_runs, observer);

  result.complete = std::all_of(result.rules.begin(), result.rules.end(), [](const RuleRuns& rule) {
    return rule.best && std::all_of(rule.runs.begin(), rule.runs.end(), ended);
  });
  return result;
}

}  // namespace rootdk::lab
