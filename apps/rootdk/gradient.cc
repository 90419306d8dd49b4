// rootdk gradient: what a backward pass brings to the scores, to Q and to K.
#include "arguments.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::GradientOptions experiment;
  std::string dk = joined(experiment.dk), rules = joined(experiment.rules);
};

int run(const Options& o) {
  lab::GradientOptions options = o.experiment;
  options.dk = whole_numbers("--dk", o.dk);
  options.rules = scales("--rules", o.rules);
  options.seed = o.seed;
  return run_experiment(o, "gradient", options, lab::measure_gradient);
}

}  // namespace

Verb gradient_verb() {
  const auto o = std::make_shared<Options>();
  return {"gradient", "What backward brings to the scores, Q and K: means, medians and tails",
          "  rootdk gradient\n"
          "  rootdk gradient --dk 64 --keys 4096 --rules none,sqrt_dk,dk,\"dk(8)\"",
          [o](OptionList& list) {
            list.option("--dk", o->dk, "Head dimensions");
            list.option("--rules", o->rules, "Scales; rootdk rules lists them");
            list.option("--keys", o->experiment.keys, "Number of keys, from 2");
            list.option("--queries", o->experiment.queries, "Queries in a batch");
            list.option("--batches", o->experiment.batches, "Independent batches, from 2");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
