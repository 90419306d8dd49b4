// Single training runs that a page lets go on step by step. They live until they are ended, or the worker is.
#pragma once

#include <vector>

#include "options.h"

namespace rootdk::app {

/// train_start, train_resume, train_advance, train_checkpoint, train_end.
std::vector<Verb> training_verbs();

}  // namespace rootdk::app
