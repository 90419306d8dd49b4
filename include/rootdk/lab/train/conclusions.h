// What the runs say, and no more: numbers over seeds for each rule, and from these a sentence for each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/lab/train/experiment.h"

namespace rootdk::lab {

/// Against the reference rule of the same d_k: 1/√d_k if it was trained, else whichever ended best.
enum class Standing : std::uint8_t {
  kUnfinished,  ///< or the reference is
  kReference,
  kAhead,    ///< its median is better, by more than kLevelAccuracy or kLevelLoss, and so is its worst seed than the
             ///< reference's best
  kLevel,    ///< medians within that
  kUnclear,  ///< medians farther apart, but the seeds overlap
  kBehind,   ///< as kAhead, the other way round
};

inline constexpr double kGoalAccuracy = 0.99;  ///< what a task of right answers is to reach
inline constexpr double kGoalLoss = 1.05;  ///< … and one of losses: so many times the reference's median at the end
inline constexpr double kLevelAccuracy = 0.005;  ///< medians nearer than this are level
inline constexpr double kLevelLoss = 0.01;       ///< … and losses nearer than this share of the reference's

/// Over counted seeds. A run that diverged has accuracy 0 and infinite loss.
struct RuleSummary {
  std::string rule;  ///< Scale::describe
  std::int64_t dk = 0;
  Standing standing = Standing::kUnfinished;
  double learning_rate = 0;                                ///< its best, or the only one
  bool rate_is_smallest = false, rate_is_largest = false;  ///< of several tried: a better one may lie beyond
  std::int64_t seeds = 0, diverged = 0;
  double median = 0, worst = 0, best = 0;  ///< of the task's measure on held-out batches, at the end
  std::optional<double> steps_to_goal;     ///< median; absent if the median seed never got there
  double first_sigma = 0, last_sigma = 0;  ///< spread of scores within a row: median over seeds, mean over heads
  std::string conclusion;                  ///< a sentence or two
};

/// [d_k][rule], as in the result. Unfinished rules have no numbers.
ROOTDK_API std::vector<RuleSummary> summarise(const TrainResult& result);

/// What is concluded of each, the reference first.
ROOTDK_API std::vector<std::string> conclusions(const TrainResult& result);

}  // namespace rootdk::lab
