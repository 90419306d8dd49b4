// One instance of json_text for each kind of result, so that callers need not include nlohmann's JSON.
#include "report/experiments.h"
#include "report/json.h"

namespace rootdk::report {

template <class Result>
std::string json_text(const Result& result) {
  return dumped(json_of(result));
}

template std::string json_text(const lab::Explanation&);
template std::string json_text(const lab::Variance&);
template std::string json_text(const lab::Phase&);
template std::string json_text(const lab::Gradient&);
template std::string json_text(const lab::Precision&);
template std::string json_text(const lab::Initialisation&);
template std::string json_text(const lab::TrainResult&);
template std::string json_text(const lab::Whatif&);
template std::string json_text(const lab::Playground&);
template std::string json_text(const lab::Timing&);
template std::string json_text(const lab::Health&);
template std::string json_text(const RankPlan&);
template std::string json_text(const std::vector<lab::Rule>&);

}  // namespace rootdk::report
