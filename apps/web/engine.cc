// The engine, the laboratory and the audit behind a page: the command's verbs, called with a request instead of a
// command line. Files that the page was given lie in a file system of the worker's own (web/site/worker.js), so that
// the verbs find them by name.
#include <emscripten.h>

#include <vector>

#include "request.h"
#include "training.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

// New ones for every request: their options still have their defaults.
std::vector<Verb> verbs() {
  std::vector<Verb> all = training_verbs();
  for (Verb (*const verb)() :
       {&explain_verb, &variance_verb, &phase_verb, &gradient_verb, &precision_verb, &init_verb, &train_verb,
        &playground_verb, &whatif_verb, &attend_verb, &audit_verb, &rules_verb, &doctor_verb})
    all.push_back(verb());
  return all;
}

}  // namespace

/// JSON in, JSON out; the answer is there until the next call.
extern "C" EMSCRIPTEN_KEEPALIVE const char* rootdk_call(const char* request) {
  return respond(verbs(), request).c_str();
}

}  // namespace rootdk::app
