// Which ranks need the keys of which, and how far along the ring keys have to travel: from masks and layouts alone, so
// that every rank, and the cost model, comes to the same answer.
#pragma once

#include "rootdk/distributed/layout.h"
#include "rootdk/problem.h"

namespace rootdk::distributed {

struct Needs {
  const Mask& mask;
  const Shape& shape;  ///< of the whole sequence
  const Layout &queries, &keys;

  /// Whether a query of one rank sees a key of another, as far as causal masks, windows and documents go; its own
  /// always.
  bool operator()(int rank, int of) const;

  /// How many ranks further the keys of a rank go: to the last that needs them.
  int hops(int of) const;
};

}  // namespace rootdk::distributed
