// What a model is to be run on, against the model.
#pragma once

#include "rootdk/audit/run.h"

namespace rootdk::audit {

/// What messages call it: tokens or embeddings.
const char* name_of_input(const RunInput& input);

/// Refuses a model that cannot be run, and what it cannot be run on.
void check_run(const checkpoint::Checkpoint& checkpoint, const Model& model, const RunInput& input);

}  // namespace rootdk::audit
