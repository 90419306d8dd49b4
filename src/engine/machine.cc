// The machine that we are on: its free threads, and the instruction sets that kernels were found for.
#include "base/parallel.h"
#include "cpu/fused.h"
#include "rootdk/plan.h"

namespace rootdk {

Machine Machine::here() {
  Machine machine;
  machine.threads = base::free_threads();
  for (const cpu::FusedForward& kernel : cpu::fused_forward()) machine.isas.emplace_back(kernel.isa);
  return machine;
}

}  // namespace rootdk
