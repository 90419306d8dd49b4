// Before any row moves: each rank checks what it was given, then all compare. Whatever is wrong is said on every rank,
// with the number of the rank it came from.
#pragma once

#include "distributed/group.h"
#include "rootdk/distributed/attention.h"

namespace rootdk::distributed {

/// What a rank was called with; one of the two pairs is there.
struct CallArguments {
  const Problem& problem;
  const Share& share;
  const Inputs& inputs;  ///< of backward, too
  const Outputs* outputs = nullptr;
  const BackwardInputs* backward = nullptr;
  const Gradients* gradients = nullptr;
  bool kept = false;  ///< heads of forward are still here
};

/// The sizes of the whole sequence. Throws RankError if a rank's arguments are wrong, or another's.
Shape agree(const Group& all, const CallArguments& arguments, const SharedMeter& meter);

}  // namespace rootdk::distributed
