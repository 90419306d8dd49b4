// Scaled dot-product attention that can be seen into. Reading these headers in order is reading the flow:
// tensors → Problem → Plan → forward / backward → Stats.
#pragma once

#include "rootdk/error.h"      // IWYU pragma: export
#include "rootdk/tensor.h"     // IWYU pragma: export
#include "rootdk/scale.h"      // IWYU pragma: export
#include "rootdk/mask.h"       // IWYU pragma: export
#include "rootdk/transform.h"  // IWYU pragma: export
#include "rootdk/stats.h"      // IWYU pragma: export
#include "rootdk/problem.h"    // IWYU pragma: export
#include "rootdk/plan.h"       // IWYU pragma: export
#include "rootdk/attention.h"  // IWYU pragma: export
// Beside the flow: rules that act on q and k, that look at the data first, and that act on weights.
#include "rootdk/qk_norm.h"       // IWYU pragma: export
#include "rootdk/adaptive.h"      // IWYU pragma: export
#include "rootdk/weight_rules.h"  // IWYU pragma: export
