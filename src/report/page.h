// The HTML around the results; made from web/ at build time. Both parts are empty where the build had no D3.
#pragma once

#include <string_view>

namespace rootdk::report {

extern const std::string_view kPageBefore, kPageAfter;

}  // namespace rootdk::report
