// A case in words. Apart from the case itself, because it asks the engine for a plan.
#include <fmt/format.h>

#include "support/case.h"

namespace rootdk::test {

std::string Case::describe() const {
  return fmt::format("{}diagonal kind {} offset {}\n", make_plan(problem, shape).explain(),
                     static_cast<int>(problem.mask.diagonal.kind), problem.mask.diagonal.offset);
}

}  // namespace rootdk::test
