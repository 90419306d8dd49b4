// How wrong a kernel may be: at most twice as wrong as the plain method in the same dtype, plus the rounding it cannot
// avoid; in the largest element of each result, and in the norm of each tensor. The floors are derived from the
// problem, never typed.
#pragma once

#include <string>
#include <vector>

#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {

/// Unavoidable error of a tensor of rows, before it is stored: of each row's elements, of all, and of its norm.
struct RowFloors {
  double every = 0;         ///< of any element
  std::vector<double> row;  ///< of an element of this row, beyond that
  double norm = 0;          ///< of the norm, beyond that

  double largest() const;
};

/// Unavoidable error of each result, as an absolute bound on its largest element.
struct Floors {
  double o, lse, raw_max, score_max, p_max;
  double d_q, d_k, d_v, d_scale, d_bias, d_sink, d_log_n_gain, d_log_n_offset;
  RowFloors o_rows, d_q_rows, d_k_rows, d_v_rows;
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

  /// The largest share of what is allowed that any part of `fast` takes up: above 1 means out.
  double share(const Result& fast) const;

  const Result& exact() const { return exact_; }

 private:
  /// Calls visit(name, error, allowed) for every part and every rule; `comparable` is false where one is finite and the
  /// other is not.
  template <class Visit>
  void each(const Result& fast, const Visit& visit) const;

  DType dtype_;
  Result plain_, exact_;
  Floors floors_[2][2];  ///< by what is rounded: weights, backward
};

}  // namespace rootdk::test
