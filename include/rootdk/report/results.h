// What the laboratory and the audit found, in text: the JSON that the command prints (docs/results-json.md,
// docs/audit.md), its tables, and the one sentence that follows.
#pragma once

#include <string>
#include <vector>

#include "rootdk/audit/drift.h"
#include "rootdk/audit/findings.h"
#include "rootdk/export.h"
#include "rootdk/lab/explain.h"
#include "rootdk/lab/rules.h"

namespace rootdk::report {

ROOTDK_API std::string to_json(const lab::Explanation& explanation);
ROOTDK_API std::string to_text(const lab::Explanation& explanation);
ROOTDK_API std::string to_sentence(const lab::Explanation& explanation);

ROOTDK_API std::string to_json(const std::vector<lab::Rule>& rules);

/// `drift`: what moved since an earlier checkpoint, if there is one; not owned.
ROOTDK_API std::string to_json(const audit::Audit& audit, const std::vector<audit::HeadDrift>* drift = nullptr);
/// A map, and a table of the heads furthest from right; without colours.
ROOTDK_API std::string to_text(const audit::Audit& audit, const std::vector<audit::HeadDrift>* drift = nullptr);
ROOTDK_API std::string to_sentence(const audit::Audit& audit);
/// A line for each head, after one of titles.
ROOTDK_API std::string to_csv(const audit::Audit& audit);

}  // namespace rootdk::report
