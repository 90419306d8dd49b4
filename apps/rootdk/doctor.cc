// rootdk doctor: what the library finds on this machine, and whether its kernels are right here.
#include "verbs.h"

namespace rootdk::app {

Verb doctor_verb() {
  const auto o = std::make_shared<Common>();
  return {"doctor", "The machine, its kernels, and a check of each against the reference",
          "  rootdk doctor\n"
          "  rootdk doctor --json > machine.json",
          [o](OptionList& list) { o->declare(list); },
          [o] {
            o->begin();
            want_memory(lab::memory_to_examine());
            const lab::Health health = lab::examine();
            emit(*o, health);
            return health.healthy() ? 0 : 1;
          }};
}

}  // namespace rootdk::app
