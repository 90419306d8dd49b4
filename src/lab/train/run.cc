// Steps until the end, a stop or a loss that is not finite; evaluations and checkpoints in between.
#include "rootdk/lab/train/run.h"

#include <utility>

#include "lab/train/check.h"
#include "lab/train/trainer.h"

namespace rootdk::lab {

TrainingRun::TrainingRun(const Task& task, const RunOptions& options)
    : trainer_(std::make_unique<Trainer>(task, options)) {
  result_.options = trainer_->options();
  result_.outcome = Outcome::kStopped;
}
TrainingRun::TrainingRun(TrainingRun&&) noexcept = default;
TrainingRun::~TrainingRun() = default;

std::int64_t TrainingRun::steps_done() const { return trainer_->steps_done(); }

void TrainingRun::restore(const Checkpoint& checkpoint, const std::string& name) {
  trainer_->restore(checkpoint, name, result_);
  result_.outcome = steps_done() < result_.options.steps ? Outcome::kStopped : Outcome::kFinished;
}

Checkpoint TrainingRun::checkpoint() { return trainer_->checkpoint(result_); }

void TrainingRun::step() {
  if (ended()) return;
  const RunOptions& o = result_.options;
  result_.steps.push_back(trainer_->step());
  if (!result_.steps.back().finite()) {
    result_.outcome = Outcome::kDiverged;
    return;
  }
  const std::int64_t done = steps_done();
  if (done % o.evaluate_every == 0 || done == o.steps) result_.evaluations.push_back(trainer_->evaluate());
  if (done == o.steps) result_.outcome = Outcome::kFinished;
}

RunResult train(const Task& task, const RunOptions& options, const RunObserver& observer) {
  want_memory(memory_of(task, options, observer.store != nullptr));
  return run(task, options, observer);
}

RunResult run(const Task& task, const RunOptions& options, const RunObserver& observer) {
  if (observer.store && observer.checkpoint_path.empty())
    base::refuse("checkpoint_path: empty, but there is a store to save to");
  if (observer.resume && !observer.store) base::refuse("resume: wanted, but there is no store to load from");
  TrainingRun run(task, options);
  std::int64_t saved = -1;  // the step that the last checkpoint is of
  if (observer.resume)
    if (const auto checkpoint = observer.store->load(observer.checkpoint_path)) {
      run.restore(*checkpoint, observer.checkpoint_path);
      saved = run.steps_done();
    }

  const auto save = [&] {
    if (observer.store && saved != run.steps_done()) observer.store->save(observer.checkpoint_path, run.checkpoint());
    saved = run.steps_done();
  };
  while (!run.ended() && !(observer.stop && observer.stop())) {
    const std::size_t evaluations = run.result().evaluations.size();
    run.step();
    if (observer.on_step) observer.on_step(run.result().steps.back());
    // The checkpoint before one that is not finite is the last that is worth anything.
    if (run.result().outcome == Outcome::kDiverged) return run.result();
    if (observer.on_evaluation && run.result().evaluations.size() > evaluations)
      observer.on_evaluation(run.result().evaluations.back());
    if (run.steps_done() % run.result().options.checkpoint_every == 0) save();
  }
  save();
  return run.result();
}

}  // namespace rootdk::lab
