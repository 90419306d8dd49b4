// What to train, as options: of `rootdk train`, and of a page's single runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "options.h"
#include "rootdk/lab/train/experiment.h"

namespace rootdk::app {

struct TrainingOptions {
  std::string task = "recall", file, rules = "none,sqrt_dk,dk", dk = "64", rates;
  std::int64_t layers = 0, steps = 0, batch = 0, seeds = 3;

  void declare(OptionList& list);
  /// Those of them that one run has, too.
  void declare_of_one_run(OptionList& list);

  std::unique_ptr<lab::Task> make_task(std::uint64_t seed) const;
  lab::TrainOptions options(std::uint64_t seed) const;
};

}  // namespace rootdk::app
