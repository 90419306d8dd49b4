// The command's memory: malloc's arenas under a limit of addresses, and refusals that name an option.
#include "memory.h"

#include <malloc.h>
#include <sys/resource.h>

namespace rootdk::app {

void share_one_arena() {
#ifdef M_ARENA_MAX
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
#endif
}

void want_memory_for_options(MemoryNeed need) {
  if (!need.argument.empty()) need.argument = "--" + need.argument;
  want_memory(need);
}

}  // namespace rootdk::app
