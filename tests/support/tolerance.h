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
  double d_q, d_k, d_v, d_scale, d_bias, d_sink, d_log_n_gain, d_log_n_offset;
};

/// What a kernel rounds to the storage dtype on the way.
struct Rounds {
  bool weights = false;   ///< probabilities, forward
  bool backward = false;  ///< probabilities and dS, backward

  static Rounds of(const Result& r) { return {r.rounded_weights, r.rounded_backward}; }
};

Floors floors(const Case& c, const Result& exact, Rounds rounds = {});

/// The error rule for one problem: holds what every kernel's result is compared with.
class Yardstick {
 public:
  Yardstick(const Case& c, Result plain, Result exact);

  /// Runs the reference and the plain method.
  explicit Yardstick(const Case& c) : Yardstick(c, run_plain(c), run_reference(c)) {}

  /// Empty if `fast` is within the rule; else which result is out, by how much.
  std::string judge(const Result& fast) const;

  const Result& exact() const { return exact_; }

 private:
  Result plain_, exact_;
  Floors floors_[2][2];  ///< by what is rounded: weights, backward
};

}  // namespace rootdk::test
