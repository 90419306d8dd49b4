// The state of a run and how one step changes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/lab/train/run.h"

namespace rootdk::lab {

/// With every default filled in. Throws if they do not fit.
RunOptions checked(RunOptions options, const Task& task);

/// `train` without a look at the memory that is free.
RunResult run(const Task& task, const RunOptions& options, const RunObserver& observer);

class Trainer {
 public:
  /// Before the first step.
  Trainer(const Task& task, const RunOptions& options);
  Trainer(const Trainer&) = delete;  // the lists point into the models
  Trainer& operator=(const Trainer&) = delete;

  const RunOptions& options() const { return options_; }
  std::int64_t steps_done() const { return optimiser_.state().steps; }

  /// The next batch forward, backward, and the weights moved; unless loss or gradient is not finite, which the trace
  /// shows.
  StepTrace step();

  Evaluation evaluate();

  /// Weights, moments and the log; `restore` brings all of it back, or throws and leaves everything as it was.
  Checkpoint checkpoint(const RunResult& log);
  void restore(const Checkpoint& checkpoint, const std::string& path, RunResult& log);

 private:
  const Task& task_;
  RunOptions options_;
  nn::Transformer model_, gradients_;
  std::vector<nn::Parameter<float>> parameters_, gradient_list_;
  nn::AdamW optimiser_;
  nn::BasicTransformerSaved<float> saved_;
  std::vector<float> d_logits_;
  Batch batch_;
};

}  // namespace rootdk::lab
