// rootdk train: the proof by training. One model, one task, several scale rules, each at its own best learning rate.
#include <chrono>

#include "arguments.h"
#include "destinations.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/lab/train/grammar.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/safetensors_store.h"
#include "rootdk/lab/train/text.h"
#include "results.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

constexpr std::size_t kGrammarCharacters = 200'000;

struct Options : Common {
  std::string task = "recall", file, out, rules = "none,sqrt_dk,dk", dk = "64", rates;
  std::int64_t layers = 0, steps = 0, batch = 0, seeds = 3;
  bool resume = false, force = false;
};

std::unique_ptr<lab::Task> task_of(const Options& o) {
  if (o.task != "recall" && o.task != "text") base::refuse("--task: \"{}\", but recall or text is wanted", o.task);
  if (o.task == "recall" && !o.file.empty())
    base::refuse("--file: given, but --task is recall, which makes its own sequences");
  if (o.task == "recall") return std::make_unique<lab::RecallTask>();
  return std::make_unique<lab::TextTask>(o.file.empty() ? lab::grammar_text(kGrammarCharacters, o.seed)
                                                        : lab::read_text(o.file));
}

lab::TrainOptions options_of(const Options& o) {
  lab::TrainOptions options = o.task == "text" ? lab::text_defaults() : lab::TrainOptions();
  options.rules = scales("--rules", o.rules);
  options.dk = whole_numbers("--dk", o.dk);
  if (!o.rates.empty()) options.learning_rates = numbers("--lr", o.rates);
  if (o.layers < 0) base::refuse("--layers: {}, but at least 1 is wanted (0 is the default)", o.layers);
  if (o.steps < 0) base::refuse("--steps: {}, but at least 1 is wanted (0 is the default)", o.steps);
  if (o.batch < 0) base::refuse("--batch: {}, but at least 1 is wanted (0 is the default)", o.batch);
  if (o.layers > 0) options.run.model.layers = o.layers;
  if (o.steps > 0) options.run.steps = o.steps;
  if (o.batch > 0) options.run.sequences = o.batch;
  options.seeds = o.seeds;
  options.run.seed = o.seed;
  return options;
}

int run(const Options& o) {
  o.begin();
  if (o.resume && o.out.empty()) base::refuse("--resume: which runs? --out DIR names the folder of their checkpoints");
  Destinations destinations(o.force);
  destinations.reads(o.file);
  destinations.writes_runs("--out", o.out, o.resume);
  const std::unique_ptr<lab::Task> task = task_of(o);
  const lab::TrainOptions options = options_of(o);
  lab::SafetensorsStore store;
  const Folder folder = o.out.empty() ? Folder() : Folder(o.out);
  const auto start = std::chrono::steady_clock::now();
  const lab::TrainResult result = [&] {
    Progress progress("train");
    lab::TrainObserver observer = lab::watched_by(progress.watch(), options);
    if (!o.out.empty()) {
      observer.store = &store;
      observer.folder = o.out;
      observer.resume = o.resume;
    }
    return lab::train_rules(*task, options, observer);
  }();
  if (!o.out.empty()) {
    Results results(o);
    results.add({"train", "Training under each rule",
                 "The same transformer from the same seeds on the same batches, under each rule: what do they learn?"},
                tell(result), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    results.set_complete(result.complete);
    results.keep(o.out);
  }
  emit(o, result);
  if (!o.out.empty() && !o.json) print("\n" + Results::where(o.out));
  return result.complete ? 0 : kInterruptedStatus;
}

}  // namespace

Verb train_verb() {
  const auto o = std::make_shared<Options>();
  return {"train", "The proof by training: the same transformer under each rule, at its best learning rate",
          "  rootdk train\n"
          "  rootdk train --dk 16,64,256 --out runs           checkpoints as safetensors, and runs/report.html\n"
          "  rootdk train --dk 16,64,256 --out runs --resume  go on where it was stopped\n"
          "  rootdk train --task text --file book.txt --rules sqrt_dk,dk(8) --lr 0.001,0.003",
          [o](OptionList& list) {
            list.option("--task", o->task, "recall: pairs to remember, made on the fly; text: the next character");
            list.option("--file", o->file, "Text to train on; without it one is made up by a grammar");
            list.option("--rules", o->rules, "Scales to compare; rootdk rules lists them");
            list.option("--dk", o->dk, "Head dims to train at");
            list.option("--lr", o->rates,
                        "Learning rates to choose from, for each rule its own; the default is five from 3e-4 to 3e-2");
            list.option("--layers", o->layers, "Blocks; 0 is the task's default");
            list.option("--steps", o->steps, "Steps of a run; 0 is the task's default");
            list.option("--batch", o->batch, "Sequences in a batch; 0 is the task's default");
            list.option("--seeds", o->seeds, "Runs that count for each rule");
            list.option("--out", o->out,
                        "Folder for checkpoints, report.html and results.json; made if it is not there");
            list.flag("--resume", o->resume, "Go on from the checkpoints in --out, to the same bits");
            list.flag("--force", o->force, kForceHelp);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
