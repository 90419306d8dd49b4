// A kernel that rounds as the fast ones on a GPU do, and that can be broken on purpose: probabilities and dS in the
// storage dtype, sums in f32, o read back as it was stored. Without rounding, in double, it says what a fault does
// exactly.
#pragma once

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

/// What a kernel may get wrong; nothing, unless said.
struct Faults {
  bool drop_forward = false, drop_backward = false;  ///< the last key of every tile of 64
  bool drop_last = false;                            ///< the key that a causal query stands on
  double scale = 1;                                  ///< times c
  bool no_delta = false;                             ///< dO·o left out of D
  bool no_d_lse = false;                             ///< dLSE left out of D
  bool next_dropout = false;                         ///< the dropout of the row after
  bool next_bias = false;                            ///< in every 64th row, the bias of the row after
};

/// Forward and backward. Statistics but lse are `exact`'s: they are not its subject.
Result run_simulated(const Case& c, const Result& exact, const Faults& faults = {});
Result run_simulated_exactly(const Case& c, const Result& exact, const Faults& faults);

}  // namespace rootdk::test
