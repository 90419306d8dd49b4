// The verbs that start, resume, advance, save and end such runs, and the table of runs by number.
#include "training.h"

#include <map>
#include <memory>
#include <string>

#include "base/refuse.h"
#include "output.h"
#include "progress.h"
#include "report/experiments.h"
#include "report/json.h"
#include "rootdk/lab/train/safetensors_store.h"
#include "training_options.h"

namespace rootdk::app {

namespace {

struct Held {
  std::unique_ptr<lab::Task> task;  ///< first: the run looks at it
  lab::TrainingRun run;
};

std::map<std::int64_t, Held>& held() {
  static std::map<std::int64_t, Held> runs;
  return runs;
}

Held& find(std::int64_t id) {
  const auto found = held().find(id);
  if (found == held().end()) base::refuse("--run: {} is none of the runs here", id);
  return found->second;
}

int tell(std::int64_t id, std::size_t from) {
  const Held& one = find(id);
  report::Json out{{"experiment", "train_run"}, {"run", id}, {"task", one.task->description()}};
  out.update(report::json_of(report::RunSoFar{one.run.result(), from}));
  print(report::dumped(out));
  return 0;
}

int hold(std::unique_ptr<lab::Task> task, lab::TrainingRun run) {
  static std::int64_t last = 0;
  held().emplace(++last, Held{std::move(task), std::move(run)});
  return tell(last, 0);
}

Verb start_verb() {
  struct Options : TrainingOptions {
    std::string rule = "sqrt_dk", rate;
    std::uint64_t seed = 1;
  };
  const auto o = std::make_shared<Options>();
  return {"train_start", "Begins a run", "",
          [o](OptionList& list) {
            list.option("--task", o->task, "recall or text");
            list.option("--file", o->file, "Text to train on");
            list.option("--rule", o->rule, "The scale");
            list.option("--dk", o->dk, "Head dim");
            list.option("--learning-rate", o->rate, "The largest of the run");
            o->declare_of_one_run(list);
            list.option("--seed", o->seed, "Of weights and batches");
          },
          [o] {
            o->rules = o->rule;
            o->rates = o->rate;
            const lab::TrainOptions all = o->options(o->seed);
            const double rate = o->rate.empty() ? lab::RunOptions().learning_rate : all.learning_rates.front();
            for (const auto& [name, count] : {std::pair{"--rule", all.rules.size()}, {"--dk", all.dk.size()}})
              if (count != 1) base::refuse("{}: {} given, but one run has one", name, count);
            if (!o->rate.empty() && all.learning_rates.size() != 1) base::refuse("--learning-rate: one run has one");
            auto task = o->make_task(o->seed);
            lab::TrainingRun run(*task, lab::run_of(all, all.rules.front(), all.dk.front(), rate, o->seed));
            return hold(std::move(task), std::move(run));
          }};
}

Verb resume_verb() {
  const auto file = std::make_shared<std::string>();
  return {"train_resume", "Goes on with the run of a checkpoint", "",
          [file](OptionList& list) { list.argument("file", *file, "What train_checkpoint gave"); },
          [file] {
            lab::SafetensorsStore store;
            const auto checkpoint = store.load(*file);
            if (!checkpoint) base::refuse("{}: is not there", *file);
            const lab::RunOptions options = lab::options_of(*checkpoint, *file);
            auto task = TrainingOptions().make_task(options.seed);  // another one is refused by its description
            lab::TrainingRun run(*task, options);
            run.restore(*checkpoint, *file);
            return hold(std::move(task), std::move(run));
          }};
}

struct OneRun {
  std::int64_t run = 0, steps = 1;
};

Verb advance_verb() {
  const auto o = std::make_shared<OneRun>();
  return {"train_advance", "Some steps more", "",
          [o](OptionList& list) {
            list.option("--run", o->run, "Which");
            list.option("--steps", o->steps, "At most");
          },
          [o] {
            if (o->steps < 0) base::refuse("--steps: {}, but at least 0 is wanted", o->steps);
            lab::TrainingRun& run = find(o->run).run;
            const std::size_t from = run.result().steps.size();
            Progress progress("train");
            const lab::Watch watch = progress.watch();
            for (std::int64_t i = 0; i < o->steps && !run.ended(); ++i) {
              run.step();
              watch.report(static_cast<double>(i + 1) / static_cast<double>(o->steps));
            }
            return tell(o->run, from);
          }};
}

Verb checkpoint_verb() {
  const auto o = std::make_shared<OneRun>();
  return {"train_checkpoint", "Writes a run down", "", [o](OptionList& list) { list.option("--run", o->run, "Which"); },
          [o] {
            constexpr const char* kPath = "/tmp/checkpoint.safetensors";  // the worker takes it from there
            lab::SafetensorsStore().save(kPath, find(o->run).run.checkpoint());
            print(report::dumped({{"file", kPath}}));
            return 0;
          }};
}

Verb end_verb() {
  const auto o = std::make_shared<OneRun>();
  return {"train_end", "Forgets a run", "", [o](OptionList& list) { list.option("--run", o->run, "Which"); },
          [o] {
            find(o->run);
            held().erase(o->run);
            print("{}");
            return 0;
          }};
}

}  // namespace

std::vector<Verb> training_verbs() {
  return {start_verb(), resume_verb(), advance_verb(), checkpoint_verb(), end_verb()};
}

}  // namespace rootdk::app
