// Whether two runs of a problem gave the same bits: outputs, gradients and every statistic.
#pragma once

#include <string>
#include <vector>

#include "support/run_case.h"

namespace rootdk::test {

/// The same bits, or NaN both.
bool equal_bits(double a, double b);

/// Every number of a head's statistics, in a fixed order.
std::vector<double> numbers(const HeadStats& head);
std::vector<double> numbers(const HeadGradients& head);

/// A result's parts, apart from statistics.
struct Part {
  const char* name;
  std::vector<double> Result::*values;
};
inline constexpr Part kRowParts[] = {
    {"lse", &Result::lse}, {"raw_max", &Result::raw_max}, {"score_max", &Result::score_max}, {"p_max", &Result::p_max}};
inline constexpr Part kHeadParts[] = {{"d_scale", &Result::d_scale},
                                      {"d_sink", &Result::d_sink},
                                      {"d_log_n_gain", &Result::d_log_n_gain},
                                      {"d_log_n_offset", &Result::d_log_n_offset}};

/// Empty if all bits are the same; else what differs first of each part.
std::string other_bits(const Result& a, const Result& b);

}  // namespace rootdk::test
