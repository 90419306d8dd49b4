// A mean from independent batches, its standard error from how they differ, and the comparison every simulation ends
// in.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rootdk::theory {

class Batches {
 public:
  static constexpr int kCount = 64;

  void add(double batch_mean) { means_.push_back(batch_mean); }

  double mean() const {
    double sum = 0;
    for (const double m : means_) sum += m;
    return sum / static_cast<double>(means_.size());
  }
  double standard_error() const {
    double squares = 0;
    for (const double m : means_) squares += (m - mean()) * (m - mean());
    const auto n = static_cast<double>(means_.size());
    return std::sqrt(squares / (n - 1) / n);
  }

 private:
  std::vector<double> means_;
};

/// Within 4 standard errors, which must be small enough to tell: at most `resolution` of what is expected (or of
/// `size`).
inline void expect_agrees(const Batches& measured, double expected, const char* what, double resolution = 0.02,
                          double size = 0) {
  const double error = measured.standard_error();
  EXPECT_NEAR(measured.mean(), expected, 4 * error) << what;
  EXPECT_LE(error, resolution * (size > 0 ? size : std::fabs(expected))) << what << ": too few samples to tell";
}

}  // namespace rootdk::theory
