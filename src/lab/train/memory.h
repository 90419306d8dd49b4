// What a run holds in memory.
#pragma once

#include "rootdk/lab/train/run.h"

namespace rootdk::lab {

/// At the peak of a run, with every default of its options filled in: all but the log.
double bytes_of_state(const RunOptions& options, const Task& task, bool has_store);

/// Of the log when all steps are done; results keep it.
double bytes_of_log(const RunOptions& options);

}  // namespace rootdk::lab
