// What the audit found, said four ways: a map and a table for a terminal, JSON, CSV.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "rootdk/audit.h"

namespace rootdk::report {

using Json = nlohmann::ordered_json;

struct AuditText {
  bool colour = false;     ///< ANSI colours in the map; its letters say the same
  std::size_t worst = 10;  ///< heads in the table
};

Json json_of(const audit::Audit& audit);
std::string text_of(const audit::Audit& audit, const AuditText& options = {});
std::string conclusion_of(const audit::Audit& audit);
/// A line for each head, after one of titles.
std::string csv_of(const audit::Audit& audit);

/// `worst` first of what moved most; 0: all.
Json json_of(const std::vector<audit::HeadDrift>& drift);
std::string text_of(const std::vector<audit::HeadDrift>& drift, std::size_t worst);

Json json_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out);
std::string text_of(const audit::Clipped& clipped, const audit::Clip& clip, const std::string& out);

}  // namespace rootdk::report
