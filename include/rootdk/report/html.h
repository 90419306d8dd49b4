// The laboratory's report, or an audit, as one HTML file that needs nothing else: charts, tables and formulas around
// the results it shows.
#pragma once

#include <string>
#include <string_view>

#include "rootdk/export.h"

namespace rootdk::report {

/// Whether this library was built with D3, which pages need.
ROOTDK_API bool has_html();

/// A page for results.json (`rootdk tour --out`), with the results inside it. Chapters whose experiment the page does
/// not know keep their question and conclusion and have no chart. Throws rootdk::Error if this is not such JSON, or if
/// the library was built without D3.
ROOTDK_API std::string html(std::string_view results_json);

/// Whether this is the text of rootdk.html, the page with the engine in it, which `./run site` makes.
ROOTDK_API bool is_laboratory(std::string_view page);

/// The results as the first part of that page. Needs no D3: the page has it. Throws rootdk::Error where `page` is
/// another file.
ROOTDK_API std::string laboratory_html(std::string_view page, std::string_view results_json);

/// A page for what `rootdk audit --json` prints: a map of layers and heads, each in detail, all in a table.
ROOTDK_API std::string audit_html(std::string_view audit_json);

}  // namespace rootdk::report
