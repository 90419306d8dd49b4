// The audit: reads a checkpoint and says for every head how far its scale is from right, without running the model.
//
//   const auto file = checkpoint::Checkpoint::open(path);      what is in it (rootdk/checkpoint/checkpoint.h)
//   const audit::Model model = audit::recognise(file);         which tensors make which heads
//   const audit::Audit found = audit::audit(file, model);      what their scores will do
#pragma once

#include "rootdk/audit/model.h"      // IWYU pragma: export
#include "rootdk/audit/recognise.h"  // IWYU pragma: export
#include "rootdk/audit/run.h"        // IWYU pragma: export
#include "rootdk/audit/findings.h"   // IWYU pragma: export
#include "rootdk/audit/parts.h"      // IWYU pragma: export
#include "rootdk/audit/drift.h"      // IWYU pragma: export
#include "rootdk/audit/clip.h"       // IWYU pragma: export
