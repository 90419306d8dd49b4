#include <omp.h>

#include "cpu/fused.h"
#include "rootdk/plan.h"

namespace rootdk {

Machine Machine::here() {
  Machine machine;
  // Inside somebody's parallel region the cores are taken.
  machine.threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  for (const cpu::FusedForward& kernel : cpu::fused_forward()) machine.isas.emplace_back(kernel.isa);
  return machine;
}

}  // namespace rootdk
