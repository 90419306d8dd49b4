// The laboratory: experiments on the scale of attention, from one row of scores to a saved head. Each returns data and
// prints nothing; each gives the same numbers for the same seed at any thread count. In the order in which they tell
// the story:
#pragma once

#include "rootdk/lab/watch.h"           // IWYU pragma: export
#include "rootdk/lab/estimate.h"        // IWYU pragma: export
#include "rootdk/lab/explain.h"         // IWYU pragma: export
#include "rootdk/lab/variance.h"        // IWYU pragma: export
#include "rootdk/lab/phase.h"           // IWYU pragma: export
#include "rootdk/lab/gradient.h"        // IWYU pragma: export
#include "rootdk/lab/precision.h"       // IWYU pragma: export
#include "rootdk/lab/initialisation.h"  // IWYU pragma: export
#include "rootdk/lab/whatif.h"          // IWYU pragma: export
#include "rootdk/lab/playground.h"      // IWYU pragma: export
// Beside the story: what there is to choose from, and what it runs on.
#include "rootdk/lab/rules.h"   // IWYU pragma: export
#include "rootdk/lab/health.h"  // IWYU pragma: export
#include "rootdk/lab/timing.h"  // IWYU pragma: export
