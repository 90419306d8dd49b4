// What the audit found, said four ways: a map and a table for a terminal, JSON, CSV.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "report/memory.h"
#include "report/text.h"
#include "rootdk/audit.h"

namespace rootdk::report {

using Json = nlohmann::ordered_json;

struct AuditText {
  bool colour = false;     ///< ANSI colours in the map; its letters say the same
  std::size_t worst = 10;  ///< heads in the table, and most that are spoken of
  Layout layout = {};
};

Json json_of(const audit::Audit& audit);
/// Of that JSON, before there is any.
JsonSize json_size(const audit::Model& model, const audit::Options& options);
std::string text_of(const audit::Audit& audit, const AuditText& options = {});
/// What was found, in a few words: "3 of 72 heads would be frozen at 4,096 keys".
std::string headline_of(const audit::Audit& audit);
std::string conclusion_of(const audit::Audit& audit);
/// "frozen (2 heads, from the weights alone): 0.1, 3.2; not_finite (1 head): 1.1": those to which any of the verdicts
/// applies, though another may be more serious. Empty if there are none.
std::string heads_that_are(const audit::Audit& audit, const std::vector<theory::Verdict>& verdicts);
/// A line for each head, after one of titles.
std::string csv_of(const audit::Audit& audit);

/// `worst` first of what moved most; 0: all.
Json json_of(const std::vector<audit::HeadDrift>& drift);
std::string text_of(const std::vector<audit::HeadDrift>& drift, std::size_t worst, const Layout& layout = {});

std::string conclusion_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out);
Json json_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out);
std::string text_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out,
                    const Layout& layout = {});

}  // namespace rootdk::report
