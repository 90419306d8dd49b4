// How wrong a kernel may be: at most twice as wrong as the plain method in the same dtype, plus the rounding it cannot
// avoid. The floors are derived from the problem, never typed.
#pragma once

#include <string>
#include <vector>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

/// Unavoidable error of each result, as an absolute bound on its largest element.
struct Floors {
  double o, lse, raw_max, score_max, p_max;
  double d_q, d_k, d_v, d_scale, d_bias, d_sink;
};

Floors floors(const Case& c, const Result& exact);

/// Empty if `fast` is within the rule; else which result is out, by how much.
std::string compare(const Case& c, const Result& fast, const Result& plain, const Result& exact);

}  // namespace rootdk::test
