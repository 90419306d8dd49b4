// Attention over ranks, forward and backward: each holds its pieces of Q, K and V and gets those of O and the
// gradients.
//
// The Problem is that of the whole sequence and the same on every rank: masks, key lengths and documents are counted as
// if one rank held everything. Only `allowed` and `bias` are each rank's own: their rows are its queries, their columns
// all keys. There is no dropout, no paged K and V, and no gradient of a bias.
//
// What does not fit (a shape, a mask, a way) is said on every rank, with the number of the rank it came from, before
// any row moves. The result has the same bits for the same layout and way, whatever the threads and the transport.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "rootdk/attention.h"
#include "rootdk/distributed/layout.h"
#include "rootdk/distributed/transport.h"
#include "rootdk/export.h"

namespace rootdk::distributed {

enum class Way : std::uint8_t {
  kRing,  ///< K and V go round while the kernel runs on those that are here; a rank never holds more than two parts
  kAllGather,  ///< every rank gets all of K and V first: cheap where few key heads serve many query heads
  kHeads,      ///< every rank gets all rows of some heads, and sends their output back (Ulysses)
  kTwoLevels,  ///< heads inside a node, a ring between nodes
};

/// "ring", "all_gather", "heads", "two_levels"
constexpr const char* name_of(Way way) {
  switch (way) {
    case Way::kRing: return "ring";
    case Way::kAllGather: return "all_gather";
    case Way::kHeads: return "heads";
    case Way::kTwoLevels: return "two_levels";
  }
  return "";
}
ROOTDK_API Way parse_way(std::string_view name);  ///< throws Error for anything else

/// How a problem is shared out. The same on every rank.
struct Share {
  Layout queries = {}, keys = {};
  Way way = Way::kRing;
  int ranks_per_node = 1;  ///< kTwoLevels: so many consecutive ranks are a node; divides the number of ranks
  int threads = 0;         ///< of each rank; 0: as many as the machine has. Never changes a bit of the result
};

/// What a call took, on this rank.
struct Usage {
  std::int64_t data_bytes = 0;     ///< sent: rows, and gradients of K and V
  std::int64_t data_messages = 0;  ///< in so many messages
  std::int64_t control_bytes = 0;  ///< sent: what ranks agree on, statistics, gradients that are one number per head
  std::int64_t peak_bytes = 0;     ///< most that was allocated at one time, messages and workspaces included
};

/// What forward leaves: where heads travel, those that came here stay, so that backward need not ask for them again.
struct Notes {
  Usage usage = {};
  std::shared_ptr<const void> kept = {};
};

/// `outputs.o` and `outputs.lse` (which backward wants) are of this rank's queries, as are row tensors, which are all
/// there or none. The statistics returned are of all ranks, the same on each: without causes, gaps and key mass, and
/// from every row. They cost what full ones do at any level but none.
ROOTDK_API Stats forward(Transport& transport, const Problem& problem, const Share& share, const Inputs& inputs,
                         const Outputs& outputs, Notes* notes = nullptr);

/// Gradients of this rank's rows; those that are one number per head are summed over all ranks. `notes`, if there are
/// any, are forward's.
ROOTDK_API void backward(Transport& transport, const Problem& problem, const Share& share, const BackwardInputs& inputs,
                         const Gradients& gradients, Notes* notes = nullptr);

}  // namespace rootdk::distributed
