// How much of a model is looked at in one go, and what that takes in memory.
#pragma once

#include <cstddef>
#include <vector>

#include "audit/inputs.h"
#include "rootdk/audit/findings.h"

namespace rootdk::audit {

/// Where the layers end that are looked at together with layer `begin`.
std::size_t end_of_group(const std::vector<Attention>& layers, std::size_t begin);

/// Of an audit with these options, beside the input of a run; `inputs` may be null.
MemoryNeed memory_of(const checkpoint::Checkpoint& checkpoint, const Model& model, const Options& options,
                     const Inputs* inputs);

}  // namespace rootdk::audit
