// A number that was measured, and how well.
#pragma once

#include <span>

#include "rootdk/export.h"

namespace rootdk::lab {

/// A mean over independent batches with its 95 % interval: Student's t with one degree of freedom less than there are
/// batches.
struct Estimate {
  double value = 0;
  double standard_error = 0;
  double low = 0, high = 0;
};

/// At least two batches.
ROOTDK_API Estimate estimate(std::span<const double> batches);

/// The t that a Student variable of so many degrees of freedom (at least 1) stays within, up and down, with probability
/// `share`.
ROOTDK_API double student_bound(int degrees, double share = 0.95);

}  // namespace rootdk::lab
