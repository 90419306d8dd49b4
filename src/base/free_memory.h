// What the kernel's own files say about memory. They are texts like any other: what cannot be read in them sets no
// limit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "rootdk/memory.h"

namespace rootdk::base {

/// The text at this path; nothing where there is none.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

struct AddressSpace {
  std::optional<std::int64_t> limit = {};  ///< RLIMIT_AS
  std::int64_t page = 4096, stack = 8 << 20;
};

FreeMemory free_memory(const ReadFile& read, const AddressSpace& space, int threads);

/// Throws if the need is larger.
void want_memory(const MemoryNeed& need, const FreeMemory& free);

/// A number of bytes that was computed in floating point, where no product of sizes runs over. Not a number is the
/// largest.
inline std::int64_t saturated(double bytes) {
  return bytes < 0x1p63 ? static_cast<std::int64_t>(bytes) : std::numeric_limits<std::int64_t>::max();
}

}  // namespace rootdk::base
