// The subcommands: each has a file of its own, and adds itself to the command line.
#pragma once

#include "common.h"

namespace rootdk::app {

Verb tour_verb();
Verb explain_verb();
Verb variance_verb();
Verb phase_verb();
Verb gradient_verb();
Verb precision_verb();
Verb init_verb();
Verb train_verb();
Verb playground_verb();
Verb whatif_verb();
Verb attend_verb();
Verb audit_verb();
Verb plan_verb();
Verb rules_verb();
Verb doctor_verb();
Verb bench_verb();

}  // namespace rootdk::app
