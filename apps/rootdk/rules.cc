// rootdk rules: everything that sets or bounds the scores.
#include "verbs.h"

namespace rootdk::app {

Verb rules_verb() {
  const auto o = std::make_shared<Common>();
  return {"rules", "The rules: formula, source, and where each is in the library",
          "  rootdk rules\n"
          "  rootdk rules --json",
          [o](OptionList& list) { o->declare(list); },
          [o] {
            o->begin();
            emit(*o, lab::all_rules());
            return 0;
          }};
}

}  // namespace rootdk::app
