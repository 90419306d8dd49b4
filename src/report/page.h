// The HTML around the results, of the laboratory and of an audit; made from web/ at build time. All parts are empty
// where the build had no D3.
#pragma once

#include <string_view>

namespace rootdk::report {

extern const std::string_view kPageBefore, kPageAfter;
extern const std::string_view kAuditPageBefore, kAuditPageAfter;

}  // namespace rootdk::report
