// The law Var(q·k) = d_k, measured: by how the components are distributed, what breaks it, where its d_k terms come
// from, and what dividing does to a variance.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/estimate.h"
#include "rootdk/lab/watch.h"
#include "rootdk/memory.h"

namespace rootdk::lab {

/// How a component of q or k is distributed, with mean 0 and variance 1.
enum class Component : std::uint8_t {
  kNormal,
  kUniform,     ///< on ±√3
  kRademacher,  ///< ±1
  kStudentT5,  ///< Student's t with 5 degrees of freedom, over √(5/3): heavy tails, the fourth moment is 9, the sixth
               ///< infinite
};
ROOTDK_API std::string_view name_of(Component component);

struct VarianceOptions {
  std::vector<std::int64_t> dk = {1, 4, 16, 64, 128, 256, 512};
  std::vector<Component> components = {Component::kNormal, Component::kUniform, Component::kRademacher,
                                       Component::kStudentT5};
  std::int64_t pairs = 1'000'000;   ///< of vectors; shorter vectors are the beginnings of longer ones
  double sigma_q = 1, sigma_k = 1;  ///< standard deviation of a component
  double mean = 0;                  ///< of every component of q and of k
  double correlation = 0;           ///< of any two components of a vector, from 0 to 1, through one shared draw
  std::int64_t walks = 0;           ///< of how many pairs, at most 256, to keep how q·k grows term by term
  std::uint64_t seed = 1;
};

/// Var(q·k) = (σ_q²σ_k²)·(d + d(d−1)ρ²) + μ²(σ_q² + σ_k²)·(d + d(d−1)ρ): tr(Σ_qΣ_k) + μ_qᵀΣ_kμ_q + μ_kᵀΣ_qμ_k written
/// out.
ROOTDK_API double expected_variance(const VarianceOptions& options, std::int64_t dk);

struct VarianceRow {
  Component component = Component::kNormal;
  std::int64_t dk = 0;
  double mean = 0, mean_expected = 0;
  double mean_low = 0, mean_high = 0;  ///< 95 %
  double variance = 0;                 ///< unbiased: over pairs − 1
  double low = 0, high = 0;            ///< 95 %
  double expected = 0;                 ///< expected_variance
  double after_sqrt_dk = 0;            ///< variance of the same products, each divided by √d_k …
  double after_dk = 0;                 ///< … and by d_k
};

/// How the intervals of the variance were found. Either way they are ±1.96·√(κ₄/N + 2κ₂²/(N − 1)), the exact standard
/// error of a sample variance of N values with cumulants κ.
enum class IntervalFrom : std::uint8_t {
  kKnownMoments,     ///< κ from the moments of the components, which are known: no tail has to be estimated
  kMeasuredMoments,  ///< κ from the sample; for correlated components
};

/// How many q·k lie where, in equal steps over ten expected standard deviations about the expected mean.
struct ProductHistogram {
  std::int64_t dk = 0;
  double low = 0, high = 0;           ///< where the steps begin and end
  std::vector<std::int64_t> counts;   ///< one a step
  std::int64_t below = 0, above = 0;  ///< beyond the steps
};

/// (q₁k₁ + q₂k₂ + q₃k₃)² written out: the mean of qᵢkᵢ·qⱼkⱼ.
struct SquareTerm {
  int i = 0, j = 0;
  double mean = 0, standard_error = 0, expected = 0;
};

/// Var(x/c) = Var(x)/c², on numbers one can check by hand. Population variances.
struct DividedNumbers {
  std::array<double, 3> numbers = {2, 4, 6};
  double divisor = 2;
  double variance = 0, variance_divided = 0;
};

/// q·k of the first pairs as it grows: the sum of its first terms, at most 256 places from the first to the largest
/// d_k.
struct Walks {
  std::vector<std::int64_t> terms;        ///< how many were added, ascending
  std::vector<std::vector<double>> sums;  ///< [pair][place], of the first kind of component
};

struct Variance {
  VarianceOptions options;
  IntervalFrom intervals = IntervalFrom::kKnownMoments;
  std::vector<VarianceRow> rows;
  std::vector<SquareTerm> terms;             ///< nine, of the first kind of component
  std::vector<ProductHistogram> histograms;  ///< one for each d_k, of the first kind of component
  DividedNumbers divided;
  Walks walks;  ///< empty unless asked for
  bool complete = true;
};

/// At its peak. Refuses what the experiment refuses.
ROOTDK_API MemoryNeed memory_of(const VarianceOptions& options);

ROOTDK_API Variance measure_variance(const VarianceOptions& options = {}, const Watch& watch = {});

}  // namespace rootdk::lab
