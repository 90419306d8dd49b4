// The command line, with the parser (CLI11) kept out of sight: it takes long to compile, and verbs need little of it.
#pragma once

#include <vector>

#include "options.h"

namespace rootdk::app {

/// Picks the verb, runs it, and returns the exit status: 2 with one line on standard error for anything that was wrong.
int run_command(const std::vector<Verb>& verbs, int argc, char** argv);

}  // namespace rootdk::app
