// rootdk precision: saturation and rounding, told apart.
#include "arguments.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::PrecisionOptions experiment;
  std::string dk = joined(experiment.dk), rules = joined(experiment.rules), gains = joined(experiment.gains);
};

int run(const Options& o) {
  lab::PrecisionOptions options = o.experiment;
  options.dk = whole_numbers("--dk", o.dk);
  options.rules = scales("--rules", o.rules);
  options.gains = numbers("--gains", o.gains);
  options.seed = o.seed;
  return run_experiment(o, "precision", options, lab::measure_precision);
}

}  // namespace

Verb precision_verb() {
  const auto o = std::make_shared<Options>();
  return {"precision", "The same scores in f64, f32, f16 and bf16: saturation is not rounding",
          "  rootdk precision\n"
          "  rootdk precision --dk 128 --gains 1,100,10000",
          [o](OptionList& list) {
            list.option("--dk", o->dk, "Head dimensions");
            list.option("--rules", o->rules, "Scales; rootdk rules lists them");
            list.option("--gains", o->gains, "What q·k is multiplied by first: a head whose scores have exploded");
            list.option("--keys", o->experiment.keys, "Number of keys, from 2");
            list.option("--queries", o->experiment.queries, "Number of queries");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
