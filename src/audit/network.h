// What a model does beside its scores, so that it can be run: from a family's "block" to names of tensors and sizes.
#pragma once

#include <optional>

#include "audit/family.h"
#include "audit/named_tensors.h"
#include "audit/settings.h"
#include "rootdk/audit/model.h"

namespace rootdk::audit {

/// `model` has its layers and its embedding. Refuses what cannot be run, and says why.
Network network_of(const NamedTensors& tensors, const Settings& settings, const Family& family,
                   std::optional<theory::Norm::Kind> norm_kind, const Model& model);

}  // namespace rootdk::audit
