// rootdk bench: a first look at speed. ./run bench in a checkout has the peers.
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options : Common {
  lab::TimingOptions experiment;
};

}  // namespace

Verb bench_verb() {
  const auto o = std::make_shared<Options>();
  return {"bench", "Forward at a few shapes against this machine's multiply-add peak",
          "  rootdk bench\n"
          "  rootdk bench --threads 1 --json\n"
          "  ./run bench      in a checkout: against PyTorch, ONNX Runtime, OpenBLAS",
          [o](OptionList& list) {
            list.option("--rounds", o->experiment.rounds, "Times every shape is timed; medians are shown");
            o->declare(list);
          },
          [o] { return run_experiment(*o, "bench", o->experiment, lab::time_forward); }};
}

}  // namespace rootdk::app
