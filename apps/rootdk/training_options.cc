// The options' names, and the task and lab::TrainOptions that they come to.
#include "training_options.h"

#include "arguments.h"
#include "base/refuse.h"
#include "rootdk/lab/train/grammar.h"
#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/text.h"

namespace rootdk::app {

namespace {

constexpr std::size_t kGrammarCharacters = 200'000;

}  // namespace

void TrainingOptions::declare(OptionList& list) {
  list.option("--task", task, "recall: pairs to remember, made on the fly; text: the next character");
  list.option("--file", file, "Text to train on; without it one is made up by a grammar");
  list.option("--rules", rules, "Scales to compare; rootdk rules lists them");
  list.option("--dk", dk, "Head dims to train at");
  list.option("--lr", rates,
              "Learning rates to choose from, for each rule its own; the default is five from 3e-4 to 3e-2");
  declare_of_one_run(list);
  list.option("--seeds", seeds, "Runs that count for each rule");
}

void TrainingOptions::declare_of_one_run(OptionList& list) {
  list.option("--layers", layers, "Blocks; 0 is the task's default");
  list.option("--steps", steps, "Steps of a run; 0 is the task's default");
  list.option("--batch", batch, "Sequences in a batch; 0 is the task's default");
}

std::unique_ptr<lab::Task> TrainingOptions::make_task(std::uint64_t seed) const {
  choice("--task", task, {"recall", "text"});
  if (task == "recall" && !file.empty())
    base::refuse("--file: given, but --task is recall, which makes its own sequences");
  if (task == "recall") return std::make_unique<lab::RecallTask>();
  return std::make_unique<lab::TextTask>(file.empty() ? lab::grammar_text(kGrammarCharacters, seed)
                                                      : lab::read_text(file));
}

lab::TrainOptions TrainingOptions::options(std::uint64_t seed) const {
  lab::TrainOptions out = task == "text" ? lab::text_defaults() : lab::TrainOptions();
  out.rules = scales("--rules", rules);
  out.dk = whole_numbers("--dk", dk);
  if (!rates.empty()) out.learning_rates = numbers("--lr", rates);
  if (layers < 0) base::refuse("--layers: {}, but at least 1 is wanted (0 is the default)", layers);
  if (steps < 0) base::refuse("--steps: {}, but at least 1 is wanted (0 is the default)", steps);
  if (batch < 0) base::refuse("--batch: {}, but at least 1 is wanted (0 is the default)", batch);
  if (layers > 0) out.run.model.layers = layers;
  if (steps > 0) out.run.steps = steps;
  if (batch > 0) out.run.sequences = batch;
  out.seeds = seeds;
  out.run.seed = seed;
  return out;
}

}  // namespace rootdk::app
