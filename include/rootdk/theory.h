// What the scores should have been: predictions to hold beside the measurements of rootdk/stats.h.
// From one dot product to a whole head, and from the spread of the scores to what softmax makes of it.
#pragma once

#include "rootdk/theory/dot_product.h"       // IWYU pragma: export
#include "rootdk/theory/softmax_row.h"       // IWYU pragma: export
#include "rootdk/theory/score_moments.h"     // IWYU pragma: export
#include "rootdk/theory/gaussian_softmax.h"  // IWYU pragma: export
#include "rootdk/theory/head.h"              // IWYU pragma: export
#include "rootdk/theory/judge.h"             // IWYU pragma: export
