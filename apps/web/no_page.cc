// No reports as HTML from here: the page is there already.
#include "report/page.h"

namespace rootdk::report {

const std::string_view kPageBefore, kPageAfter, kAuditPageBefore, kAuditPageAfter;

}  // namespace rootdk::report
