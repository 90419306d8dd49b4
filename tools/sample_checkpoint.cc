// The model that the site ships as a sample: four layers of four heads that learn to recall pairs, and the same before
// training. sample_checkpoint.py compiles and runs it, and keeps what an audit reads.
#include <cstdio>
#include <string>

#include "rootdk/lab/train/recall.h"
#include "rootdk/lab/train/run.h"
#include "rootdk/lab/train/safetensors_store.h"

int main(int, char** arguments) {
  const std::string folder = arguments[1];
  const rootdk::lab::RecallTask task;
  rootdk::lab::SafetensorsStore store;
  rootdk::lab::RunOptions options;
  options.model.width = 64, options.model.layers = 4, options.model.heads = 4, options.model.dim_qk = 16;
  const auto run = [&](const char* name) {
    rootdk::lab::RunObserver observer;
    observer.store = &store;
    observer.checkpoint_path = folder + "/" + name + ".safetensors";
    observer.on_evaluation = [](const rootdk::lab::Evaluation& e) {
      std::printf("step %d: %.1f %% right\n", static_cast<int>(e.step), 100 * static_cast<double>(e.accuracy));
      std::fflush(stdout);
    };
    rootdk::lab::train(task, options, observer);
  };
  options.learning_rate = 1e-2, options.steps = 400;
  run("trained");
  options.learning_rate = 1e-12, options.steps = 1;  // as it was initialised
  run("untrained");
}
