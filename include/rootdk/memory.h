// How much memory is free, and the refusal of what would take more. What an experiment or an audit will take is known
// before it begins: one line then, in place of a machine that stands still.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "rootdk/export.h"

namespace rootdk {

struct FreeMemory {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  ///< the largest where no limit is known
  std::string limit = {};                                         ///< what leaves no more; empty: the machine itself
};

/// The least of what the machine has available, what the limits of this process's cgroups leave (of v1 and v2, those
/// above its own, too) and what RLIMIT_AS leaves beside the stacks of `threads` threads. Caches of files are free: they
/// give way.
ROOTDK_API FreeMemory free_memory(int threads = 1);

/// What something is going to take.
struct MemoryNeed {
  std::int64_t bytes = 0;     ///< at its peak, beside what the process has already
  int threads = 1;            ///< that it runs on
  std::string argument = {};  ///< what makes it so much; empty: nothing stands out
  std::string value = {};     ///< of that argument
};

ROOTDK_API bool fits(const MemoryNeed& need, const FreeMemory& free);

/// Throws kOutOfMemory if there is not as much: "layers: 100000 would take 912 GB of memory, but 21.4 GB are free".
ROOTDK_API void want_memory(const MemoryNeed& need);

}  // namespace rootdk
