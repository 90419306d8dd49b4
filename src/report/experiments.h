// What the laboratory found, said three ways: as JSON, as tables for a terminal, and as the one sentence that follows
// from the numbers (and from nothing else: every sentence is put together from what was measured).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/text.h"
#include "rootdk/distributed/cost.h"
#include "rootdk/lab.h"
#include "rootdk/lab/train/experiment.h"
#include "rootdk/problem.h"
#include "rootdk/stats.h"

namespace rootdk::report {

using Json = nlohmann::ordered_json;

/// json_of(result) as text, for those who have no other use for the JSON library.
template <class Result>
std::string json_text(const Result& result);

Json json_of(const lab::Explanation& explanation);
std::string text_of(const lab::Explanation& explanation, const Layout& layout = {});
std::string conclusion_of(const lab::Explanation& explanation);

Json json_of(const lab::Variance& variance);
std::string text_of(const lab::Variance& variance, const Layout& layout = {});
std::string conclusion_of(const lab::Variance& variance);

Json json_of(const lab::Phase& phase);
std::string text_of(const lab::Phase& phase, const Layout& layout = {});
std::string conclusion_of(const lab::Phase& phase);

Json json_of(const lab::Gradient& gradient);
std::string text_of(const lab::Gradient& gradient, const Layout& layout = {});
std::string conclusion_of(const lab::Gradient& gradient);

Json json_of(const lab::Precision& precision);
std::string text_of(const lab::Precision& precision, const Layout& layout = {});
std::string conclusion_of(const lab::Precision& precision);

Json json_of(const lab::Initialisation& initialisation);
std::string text_of(const lab::Initialisation& initialisation, const Layout& layout = {});
std::string conclusion_of(const lab::Initialisation& initialisation);

Json json_of(const lab::TrainResult& result);
std::string text_of(const lab::TrainResult& result, const Layout& layout = {});
std::string conclusion_of(const lab::TrainResult& result);

/// A run under way: where it stands, and its steps after the first `from`.
struct RunSoFar {
  const lab::RunResult& run;
  std::size_t from = 0;
};
Json json_of(const RunSoFar& so_far);

Json json_of(const lab::Whatif& whatif);
std::string text_of(const lab::Whatif& whatif, const Layout& layout = {});
std::string conclusion_of(const lab::Whatif& whatif);

Json json_of(const lab::Playground& playground);
std::string text_of(const lab::Playground& playground, const Layout& layout = {});
std::string conclusion_of(const lab::Playground& playground);

Json json_of(const lab::Timing& timing);
std::string text_of(const lab::Timing& timing, const Layout& layout = {});
std::string conclusion_of(const lab::Timing& timing);

Json json_of(const lab::Health& health);
std::string text_of(const lab::Health& health, const Layout& layout = {});
std::string conclusion_of(const lab::Health& health);

/// One call of attention: what was computed, and what its scores did.
struct Attended {
  Shape shape;
  std::string rule;
  bool causal = false;
  std::string kernel, isa;
  Stats stats;
};
Json json_of(const Attended& attended);
std::string text_of(const Attended& attended, const Layout& layout = {});
std::string conclusion_of(const Attended& attended);

/// What attention over ranks would cost in each way.
struct RankPlan {
  Shape shape;  ///< of the whole sequence
  bool causal = false;
  std::string layout;
  int ranks = 1;
  distributed::Cluster cluster;
  distributed::Choice choice;
};
Json json_of(const RankPlan& plan);
std::string text_of(const RankPlan& plan, const Layout& layout = {});
std::string conclusion_of(const RankPlan& plan);

Json json_of(const std::vector<lab::Rule>& rules);
std::string text_of(const std::vector<lab::Rule>& rules, const Layout& layout = {});

}  // namespace rootdk::report
