// print, into the answer to the page's request.
#include "output.h"
#include "request.h"

namespace rootdk::app {

void print(std::string_view text) { answer() += text; }

}  // namespace rootdk::app
