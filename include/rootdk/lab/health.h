// What the library finds on this machine, and whether its kernels compute what they should here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/export.h"
#include "rootdk/memory.h"

namespace rootdk::lab {

/// One kernel on one instruction set against the double reference, on a small problem of one dtype.
struct KernelCheck {
  std::string kernel, isa, dtype;
  double error = 0;  ///< largest |o − exact|
  double allowed = 0;
  bool passed() const { return error <= allowed; }
};

struct Health {
  std::string version;  ///< of rootdk
  std::string compiler;
  std::vector<std::string> libraries;  ///< it was built with: "Highway 1.0.3"
  std::string processor;
  std::int64_t memory_bytes = 0;  ///< 0: not known
  FreeMemory free;
  int cores = 0;                  ///< that this process may use
  int threads = 0;                ///< that a call would use
  std::vector<std::string> isas;  ///< best first
  std::string plan;               ///< how a usual problem would be computed, in words
  std::vector<KernelCheck> checks;
  bool healthy() const {
    for (const KernelCheck& check : checks)
      if (!check.passed()) return false;
    return !checks.empty();
  }
};

ROOTDK_API MemoryNeed memory_to_examine();

ROOTDK_API Health examine();

}  // namespace rootdk::lab
