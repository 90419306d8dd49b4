// rootdk phase: soft or frozen, over d_k and the number of keys.
#include "arguments.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::PhaseOptions experiment;
  std::string dk = joined(experiment.dk), keys = joined(experiment.keys), rules = joined(experiment.rules);
};

int run(const Options& o) {
  lab::PhaseOptions options = o.experiment;
  options.dk = whole_numbers("--dk", o.dk);
  options.keys = whole_numbers("--keys", o.keys);
  options.rules = scales("--rules", o.rules);
  options.seed = o.seed;
  return run_experiment(o, "phase", options, lab::measure_phase);
}

}  // namespace

Verb phase_verb() {
  const auto o = std::make_shared<Options>();
  return {"phase", "Entropy, largest weight and tr J over d_k × keys, measured and by theory",
          "  rootdk phase\n"
          "  rootdk phase --dk 64,128 --keys 1024,65536 --rules \"sqrt_dk,sqrt_dk*ssmax(0.43)\"",
          [o](OptionList& list) {
            list.option("--dk", o->dk, "Head dimensions");
            list.option("--keys", o->keys, "Numbers of keys, from 2");
            list.option("--rules", o->rules, "Scales; rootdk rules lists them");
            list.option("--queries", o->experiment.queries, "Queries in a batch");
            list.option("--batches", o->experiment.batches,
                        "Independent batches, from 2; intervals come from how they differ");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
