// One training run: a transformer, a task, a scale rule, a learning rate and a seed. Logged at every step, stopped at
// any, and taken up again to the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/train/checkpoint_store.h"
#include "rootdk/lab/train/task.h"
#include "rootdk/memory.h"
#include "rootdk/nn/adamw.h"
#include "rootdk/nn/transformer.h"
#include "rootdk/scale.h"

namespace rootdk::lab {

struct RunOptions {
  nn::TransformerOptions model = {};   ///< its vocabulary is the task's, whatever this says
  Scale scale = Scale::inv_sqrt_dk();  ///< the rule; one that Scale::parse knows
  double learning_rate = 3e-3;         ///< the largest of the run
  double warmup_share = 0.05;          ///< of the steps: the rate rises from 0 …
  double final_rate_share = 0.1;       ///< … and falls along a cosine to this share of itself
  std::int64_t steps = 600;
  std::int64_t sequences = 64;            ///< in a batch
  std::optional<double> clip_norm = 1.0;  ///< gradients longer than this are shortened to it; absent: never
  nn::AdamWOptions optimiser = {};
  std::uint64_t seed = 1;               ///< of weights and batches
  std::int64_t evaluate_every = 25;     ///< steps; and after the last
  std::int64_t evaluation_batches = 4;  ///< held-out ones, the same for every run
  std::int64_t checkpoint_every = 100;  ///< steps; and after the last, and where it is stopped
};

/// What the scores of one head did in one forward pass, over the batch.
struct HeadTrace {
  float sigma = 0;      ///< standard deviation of scores within a row: what 1/√d_k is to make 1
  float entropy = 0;    ///< of a row's probabilities, in nats
  float p_max = 0;      ///< largest probability of a row
  float score_max = 0;  ///< largest score of all

  bool operator==(const HeadTrace&) const = default;
};

/// One step, before its weights moved.
struct StepTrace {
  std::int64_t step = 0;  ///< from 1
  float loss = 0;
  float accuracy = 0;
  float gradient_norm = 0;       ///< before clipping
  std::vector<HeadTrace> heads;  ///< [layer][head]

  bool finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm); }
  bool operator==(const StepTrace&) const = default;
};

/// Held-out batches after so many steps.
struct Evaluation {
  std::int64_t step = 0;
  float loss = 0;
  float accuracy = 0;

  bool operator==(const Evaluation&) const = default;
};

enum class Outcome : std::uint8_t {
  kNotStarted,
  kFinished,
  kStopped,   ///< asked to; the log ends there
  kDiverged,  ///< loss or gradient no longer finite; the log ends with that step
};

struct RunResult {
  RunOptions options;  ///< with every default filled in
  Outcome outcome = Outcome::kNotStarted;
  std::vector<StepTrace> steps;
  std::vector<Evaluation> evaluations;
};

/// Hears of a run as it goes, and may end it. Anything may be absent.
struct RunObserver {
  std::function<void(const StepTrace&)> on_step = {};
  std::function<void(const Evaluation&)> on_evaluation = {};
  std::function<bool()> stop = {};   ///< asked after every step: true ends the run
  CheckpointStore* store = nullptr;  ///< where checkpoints go
  std::string checkpoint_path = {};  ///< and under which name
  bool resume = false;               ///< go on from the checkpoint there, if there is one
};

/// The learning rate of a step, from 1.
ROOTDK_API double learning_rate_at(const RunOptions& options, std::int64_t step);

/// At its peak, with a store for checkpoints or without. Refuses options that do not fit.
ROOTDK_API MemoryNeed memory_of(const Task& task, const RunOptions& options, bool has_store = false);

/// Runs until all steps are done, loss or gradients are not finite, or the observer stops it. Throws if options do not
/// fit, or if the checkpoint to resume from is of a run of other options.
///
/// A checkpoint holds the weights under LLaMA's names ([out, in], as `Transformer::parameters` lists them),
/// `train.adamw.m` and `.v`, and the log so far (`train.steps`, `train.heads`, `train.evaluations`); its metadata the
/// model's sizes under the names of a LLaMA config (hidden_size, head_dim, …), the scale rule, and every option that
/// decides the run.
ROOTDK_API RunResult train(const Task& task, const RunOptions& options, const RunObserver& observer = {});

/// The same run step by step, for who has something else to do in between.
class ROOTDK_API TrainingRun {
 public:
  /// The task must outlive it.
  TrainingRun(const Task& task, const RunOptions& options);
  TrainingRun(TrainingRun&&) noexcept;
  ~TrainingRun();

  /// Goes on where that checkpoint was made, or throws and leaves everything as it was; `name` is what messages call
  /// it.
  void restore(const Checkpoint& checkpoint, const std::string& name);
  Checkpoint checkpoint();

  bool ended() const { return result_.outcome == Outcome::kFinished || result_.outcome == Outcome::kDiverged; }
  std::int64_t steps_done() const;

  /// The next step, and the evaluation that is due after it; nothing once it has ended.
  void step();

  /// So far; until it has ended, stopped.
  const RunResult& result() const { return result_; }

 private:
  std::unique_ptr<class Trainer> trainer_;
  RunResult result_;
};

/// The options that a checkpoint's run had, but for those that decide nothing (checkpoint_every). Throws for one that
/// is not of rootdk's training; `name` is what messages call it.
ROOTDK_API RunOptions options_of(const Checkpoint& checkpoint, const std::string& name);

}  // namespace rootdk::lab
