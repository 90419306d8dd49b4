// What a verb will take in memory, refused in the words of the command line.
#pragma once

#include <algorithm>

#include "report/memory.h"
#include "rootdk/memory.h"

namespace rootdk::app {

/// Under ulimit -v: glibc would set 64 MiB of the addresses aside for each thread. Before there are any threads.
void share_one_arena();

/// The library's "layers" are --layers here.
void want_memory_for_options(MemoryNeed need);

/// What comes on top of a result where it is told as JSON or on a page.
struct Telling {
  bool tree = true;  ///< even where neither is asked for
  bool json = false, page = false;

  double bytes(const report::JsonSize& size) const {
    const double text = std::max(json ? report::bytes_of_text(size) : 0, page ? report::bytes_of_page(size) : 0);
    return (tree || json || page ? report::bytes_of_tree(size) : 0) + text;
  }
};

}  // namespace rootdk::app
