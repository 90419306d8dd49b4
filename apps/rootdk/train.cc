// rootdk train: the proof by training. One model, one task, several scale rules, each at its own best learning rate.
#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "destinations.h"
#include "results.h"
#include "rootdk/lab/train/safetensors_store.h"
#include "training_options.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  TrainingOptions training;
  std::string out;
  bool resume = false, force = false;
};

// What the library calls things, and which options that are.
constexpr std::pair<std::string_view, std::string_view> kOptions[] = {{"sequences", "batch"}, {"learning rates", "lr"},
                                                                      {"dim_qk", "dk"},       {"layers", "layers"},
                                                                      {"steps", "steps"},     {"seeds", "seeds"}};

void want_memory_for(const lab::Task& task, const lab::TrainOptions& options, bool has_store) try {
  MemoryNeed need = lab::memory_of(task, options, has_store);
  for (const auto& [name, option] : kOptions)
    if (need.argument == name) need.argument = option;
  want_memory_for_options(need);
} catch (const Error& error) {
  const std::string_view what = error.what();
  for (const auto& [name, option] : kOptions)
    if (what.starts_with(name) && what.substr(name.size()).starts_with(": "))
      throw Error(error.code(), fmt::format("--{}{}", option, what.substr(name.size())));
  throw;
}

int run(const Options& o) {
  o.begin();
  if (o.resume && o.out.empty()) base::refuse("--resume: which runs? --out DIR names the folder of their checkpoints");
  Destinations destinations(o.force);
  destinations.reads(o.training.file);
  destinations.writes_runs("--out", o.out, o.resume);
  const std::unique_ptr<lab::Task> task = o.training.make_task(o.seed);
  const lab::TrainOptions options = o.training.options(o.seed);
  want_memory_for(*task, options, !o.out.empty());
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
            o->training.declare(list);
            list.option("--out", o->out,
                        "Folder for checkpoints, report.html and results.json; made if it is not there");
            list.flag("--resume", o->resume, "Go on from the checkpoints in --out, to the same bits");
            list.flag("--force", o->force, kForceHelp);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
