// The proof by training: one model, one task, several scale rules. Every rule gets its own best learning rate, then is
// trained from the same seeds on the same batches as the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/train/checkpoint_store.h"
#include "rootdk/lab/train/run.h"
#include "rootdk/lab/train/task.h"
#include "rootdk/lab/watch.h"
#include "rootdk/scale.h"

namespace rootdk::lab {

/// The defaults are for RecallTask: minutes on two cores.
struct TrainOptions {
  std::vector<Scale> rules = {Scale::none(), Scale::inv_sqrt_dk(), Scale::inv_dk()};
  std::vector<std::int64_t> dk = {64};
  std::vector<double> learning_rates = {3e-4, 1e-3, 3e-3, 1e-2,
                                        3e-2};  ///< ascending; tried with a seed that does not count
  std::int64_t seeds = 3;                       ///< counted
  RunOptions run = {};  ///< all else; its seed is the one rates are tried with, the counted ones follow it
  /// Runs at a time, each on one thread (one at a time has all threads). 0: as many as threads, or as there is memory
  /// for. No bit depends on it.
  int parallel_runs = 0;
};

/// The same for TextTask, whose sequences are longer: fewer of them and fewer steps.
ROOTDK_API TrainOptions text_defaults();

/// Which of the runs.
struct RunLabel {
  std::string rule;  ///< Scale::name
  std::int64_t dk = 0;
  double learning_rate = 0;
  std::uint64_t seed = 0;
  bool tuning = false;  ///< to find the learning rate; not counted

  /// "none-dk64-lr0.001-seed2"; for files.
  ROOTDK_API std::string name() const;
};

/// One rule at one d_k.
struct RuleRuns {
  Scale scale;
  std::int64_t dk = 0;
  std::vector<RunResult> tuning;  ///< one per learning rate; none if there is but one
  /// Of the learning rates: the least held-out loss at the end; absent until all were tried
  std::optional<std::size_t> best;
  std::vector<RunResult> runs;  ///< one per counted seed, at the best rate
};

struct TrainResult {
  TrainOptions options;  ///< with every default filled in
  std::string task;      ///< its description
  Measure measure = Measure::kLoss;
  std::vector<RuleRuns> rules;  ///< [d_k][rule]
  bool complete = false;        ///< false: stopped; what is there is still true
};

/// Hears of all runs, and may end them. Calls come from several threads, but one at a time; `stop` must bear to be
/// called from several at once. Anything may be absent.
struct TrainObserver {
  std::function<void(const RunLabel&, const StepTrace&)> on_step = {};
  std::function<void(const RunLabel&, const Evaluation&)> on_evaluation = {};
  std::function<void(const RunLabel&, const RunResult&)> on_run = {};  ///< when it has ended, however
  std::function<bool()> stop = {};
  CheckpointStore* store = nullptr;
  std::string folder = {};  ///< checkpoints are <folder>/<label's name>.safetensors
  bool resume = false;      ///< runs that have a checkpoint there go on from it
};

/// One of the runs.
ROOTDK_API RunOptions run_of(const TrainOptions& options, const Scale& rule, std::int64_t dk, double learning_rate,
                             std::uint64_t seed);

/// Steps of all runs together, for progress.
ROOTDK_API std::int64_t total_steps(const TrainOptions& options);

/// Reports the share of the work that is done and which run is under way, and stops when the watch does. Steps that a
/// checkpoint had already are no work. The watch is then called from the threads that train: its progress from one at a
/// time, its stop from several at once.
ROOTDK_API TrainObserver watched_by(const Watch& watch, const TrainOptions& options);

/// At its peak; one run at a time where parallel_runs is 0. Refuses options that do not fit.
ROOTDK_API MemoryNeed memory_of(const Task& task, const TrainOptions& options, bool has_store = false);

ROOTDK_API TrainResult train_rules(const Task& task, const TrainOptions& options = {},
                                   const TrainObserver& observer = {});

}  // namespace rootdk::lab
