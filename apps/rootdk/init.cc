// rootdk init: where 1/√d_k is right, and what it is off by elsewhere.
#include "arguments.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::InitialisationOptions experiment;
  std::string widths = joined(experiment.widths), dk = joined(experiment.dk);
};

int run(const Options& o) {
  lab::InitialisationOptions options = o.experiment;
  options.widths = whole_numbers("--widths", o.widths);
  options.dk = whole_numbers("--dk", o.dk);
  options.seed = o.seed;
  return run_experiment(o, "init", options, lab::measure_initialisation);
}

}  // namespace

Verb init_verb() {
  const auto o = std::make_shared<Options>();
  return {"init", "Scores of freshly initialised projections: predicted and measured spread",
          "  rootdk init\n"
          "  rootdk init --widths 4096 --dk 128 --batches 4",
          [o](OptionList& list) {
            list.option("--widths", o->widths, "Model widths D");
            list.option("--dk", o->dk, "Head dimensions");
            list.option("--tokens", o->experiment.tokens, "Queries, and as many keys, in a batch");
            list.option("--heads", o->experiment.heads, "Heads in a batch");
            list.option("--batches", o->experiment.batches, "Batches with weights and tokens of their own, from 2");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
