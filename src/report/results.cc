// The public functions over json_of, text_of and conclusion_of, one per kind of result.
#include "rootdk/report/results.h"

#include "report/audit.h"
#include "report/experiments.h"
#include "report/json.h"

namespace rootdk::report {

std::string to_json(const lab::Explanation& explanation) { return dumped(json_of(explanation)); }
std::string to_text(const lab::Explanation& explanation) { return text_of(explanation); }
std::string to_sentence(const lab::Explanation& explanation) { return conclusion_of(explanation); }

std::string to_json(const std::vector<lab::Rule>& rules) { return dumped(json_of(rules)); }

std::string to_json(const audit::Audit& audit, const std::vector<audit::HeadDrift>* drift) {
  Json out = json_of(audit);
  if (drift != nullptr) out["drift"] = json_of(*drift);
  return dumped(out);
}

std::string to_text(const audit::Audit& audit, const std::vector<audit::HeadDrift>* drift) {
  const AuditText options;
  return text_of(audit, options) + (drift != nullptr ? "\n" + text_of(*drift, options.worst) : "");
}

std::string to_sentence(const audit::Audit& audit) { return conclusion_of(audit); }
std::string to_csv(const audit::Audit& audit) { return csv_of(audit); }

}  // namespace rootdk::report
