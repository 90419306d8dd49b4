// A rank needs keys if there is a tile between it and them.
#include "distributed/needs.h"

#include "distributed/tiles.h"

namespace rootdk::distributed {

bool Needs::operator()(int rank, int of) const {
  return rank == of || !tiles_of(mask, shape, queries.pieces[static_cast<std::size_t>(rank)],
                                 keys.pieces[static_cast<std::size_t>(of)])
                            .empty();
}

int Needs::hops(int of) const {
  for (int far = keys.ranks() - 1; far > 0; --far)
    if ((*this)((of + far) % keys.ranks(), of)) return far;
  return 0;
}

}  // namespace rootdk::distributed
