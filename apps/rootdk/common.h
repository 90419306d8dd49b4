// What verbs share: --json, --seed and --threads, and how a result becomes output.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/parallel.h"
#include "base/refuse.h"
#include "memory.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "report/experiments.h"
#include "terminal.h"

namespace rootdk::app {

/// 128 + SIGINT, as shells have it.
inline constexpr int kInterruptedStatus = 130;

/// The options of a verb derive from this.
struct Common {
  bool json = false;
  std::uint64_t seed = 1;
  int threads = 0;

  void declare(OptionList& list) {
    list.flag("--json", json, "The result as JSON on standard output (docs/results-json.md)");
    list.option("--seed", seed, "Of everything random; the same seed gives the same numbers at any thread count");
    list.option("--threads", threads, "Threads to use; 0 is all that OpenMP offers");
  }

  /// Sets the threads.
  void begin() const {
    constexpr int kMost = 1024;
    if (threads < 0 || threads > kMost)
      base::refuse("--threads: {}, but a number from 0 to {} is wanted", threads, kMost);
    if (threads > 0) base::set_threads(threads);
  }
};

template <class Result>
void emit(const Common& common, const Result& result) {
  print(common.json ? report::json_text(result) : report::text_of(result, output_layout()));
}

/// Runs an experiment with a progress bar, prints what it found, finished or not, and says how it ended. What does not
/// fit into memory was refused before.
template <class Experiment>
int run_experiment(const Common& common, const std::string& title, const Experiment& experiment) {
  const auto result = [&] {
    Progress progress(title);
    return experiment(progress.watch());
  }();
  emit(common, result);
  return result.complete ? 0 : kInterruptedStatus;
}

/// The same for an experiment on options that know what they take.
template <class Options, class Result>
int run_experiment(const Common& common, const std::string& title, const Options& options,
                   Result (*experiment)(const Options& options, const lab::Watch& watch)) {
  common.begin();
  want_memory_for_options(lab::memory_of(options));
  return run_experiment(common, title, [&](const lab::Watch& watch) { return experiment(options, watch); });
}

}  // namespace rootdk::app
