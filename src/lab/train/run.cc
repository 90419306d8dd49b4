#include "rootdk/lab/train/run.h"

#include <utility>

#include "lab/train/check.h"
#include "lab/train/trainer.h"

namespace rootdk::lab {

RunResult train(const Task& task, const RunOptions& options, const RunObserver& observer) {
  if (observer.store && observer.checkpoint_path.empty())
    base::refuse("checkpoint_path: empty, but there is a store to save to");
  if (observer.resume && !observer.store) base::refuse("resume: wanted, but there is no store to load from");
  Trainer trainer(task, options);
  RunResult result;
  result.options = trainer.options();
  std::int64_t saved = -1;  // the step that the last checkpoint is of
  if (observer.resume)
    if (const auto checkpoint = observer.store->load(observer.checkpoint_path)) {
      trainer.restore(*checkpoint, observer.checkpoint_path, result);
      saved = trainer.steps_done();
    }

  const RunOptions& o = trainer.options();
  const auto save = [&] {
    if (observer.store && saved != trainer.steps_done())
      observer.store->save(observer.checkpoint_path, trainer.checkpoint(result));
    saved = trainer.steps_done();
  };
  result.outcome = Outcome::kFinished;
  while (trainer.steps_done() < o.steps) {
    if (observer.stop && observer.stop()) {
      result.outcome = Outcome::kStopped;
      break;
    }
    StepTrace trace = trainer.step();
    if (observer.on_step) observer.on_step(trace);
    const bool finite = trace.finite();
    result.steps.push_back(std::move(trace));
    if (!finite) {
      result.outcome = Outcome::kDiverged;
      return result;  // the checkpoint before this one is the last that is worth anything
    }
    const std::int64_t done = trainer.steps_done();
    if (done % o.evaluate_every == 0 || done == o.steps) {
      result.evaluations.push_back(trainer.evaluate());
      if (observer.on_evaluation) observer.on_evaluation(result.evaluations.back());
    }
    if (done % o.checkpoint_every == 0) save();
  }
  save();
  return result;
}

}  // namespace rootdk::lab
